"""Audits of losses by the forward part alone: what they see, and what they cannot see."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.tiebreak.parties import STEPS, Commands, Parties, flip
from tiebreak.api.auditing.forward import audit_forward, loss_alone
from tiebreak.api.builtin.loader import load_task
from tiebreak.api.machine import Machine
from tiebreak.api.training.bundle import capture_bundle
from tiebreak.cli.key import load_key
from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.capture.state import TELEMETRY
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.engine.run.interpreter import Interpreter
from tiebreak.engine.run.train import Worker
from tiebreak.protocol.errors import CannotCheck, ConfigurationError
from tiebreak.protocol.program.isa import Opcode

Told = Callable[..., str]


@pytest.fixture
def told(command: Commands) -> Told:
    """What the command prints on stdout and stderr."""
    return lambda *more, code=0: "".join(command.printed("audit", "--forward", *more, "--threads", 1, code=code))


@pytest.mark.slow
def test_the_forward_part_gives_every_loss_of_a_run_bit_for_bit(cases: Callable[[], None]) -> None:
    bundle = capture_bundle(load_task("digits", steps=24), check="none")
    program = loss_alone(bundle.program)
    assert len(program.body) < len(bundle.program.body) / 2
    assert {i.opcode for i in program.body} >= {Opcode.RANDOM, Opcode.SHUFFLE}, "draws keep their streams"
    whole = Interpreter(bundle.program, Arithmetic(device=torch.device("cpu")))
    parts = [Interpreter(program, Arithmetic(device=torch.device("cpu"), permute=permute)) for permute in (None, 5)]
    state, data = whole.to_device(bundle.state), whole.place_data(bundle.data)
    for step in range(1, 25):
        result = whole.step(step, state, data)
        for part in parts:
            assert part.step(step, state, data).loss_bits == result.loss_bits
            cases()
        state = result.state


def test_an_honest_run_passes_a_forward_audit(parties: Parties, told: Told) -> None:
    folder = parties.path("run")
    words = told(folder, "--sample", "3")
    for expected in (
        "drawn      steps 1, 4, 7,", "of 3 of 3 segments", "1 false: 100%", "agrees     3 losses",
    ):  # fmt: skip
        assert expected in words
    found = json.loads(told(folder, "--sample", 1, "--json", "--seed", "x"))
    assert (found["agrees"], len(found["steps"]), found["drawable"]) == (True, 1, 3)
    assert found["detection"] == [{"false": 1, "probability": pytest.approx(1 / 3)}]
    assert 0 < found["share_of_a_replay"] < 0.5 / STEPS
    assert json.loads(told(folder, "--sample", 1, "--json", "--seed", "x"))["steps"] == found["steps"]


def lying(parties: Parties, folder: Path, change: Callable[[int, dict[str, torch.Tensor]], None]) -> RunDirectory:
    """The run of a trainer that changes the states that it commits to, and signs them."""

    class Lying(Interpreter):
        def step(self, number, *arguments, **options):  # type: ignore[no-untyped-def]
            result = super().step(number, *arguments, **options)
            change(number, result.state)
            return result

    made = RunDirectory.open(parties.signed(folder))
    made_by = Lying(made.program, Arithmetic(device=torch.device("cpu")))
    Worker(made, made_by, key=load_key(parties.path("trainer.pem")), stop_if_not_finite=False).work()
    return made


def nicer_loss(number: int, state: dict[str, torch.Tensor]) -> None:
    if number == 4:
        state[TELEMETRY][0] -= 0.01


def made_up_state(number: int, state: dict[str, torch.Tensor]) -> None:
    if number == 3:
        state["model.head.weight"] += 0.001


@pytest.mark.slow
def test_forward_audits_detect_false_losses_but_not_false_states(parties: Parties, tmp_path: Path, told: Told) -> None:
    nicer = lying(parties, tmp_path / "nicer", nicer_loss)
    words = told(nicer.path, "--sample", 99, code=2)
    assert ("step 4: expected loss" in words, f"0x{nicer.job.trainer.hex()}" in words) == (True, True)
    found = audit_forward(nicer, 99, "x", Machine(threads=1))
    assert found.fraud is not None
    assert found.fraud.step == 4
    for unseen in (
        lying(parties, tmp_path / "made up", made_up_state),
        RunDirectory.open(parties.cheating(tmp_path / "update", 3)),
    ):
        assert parties.audit(unseen.path, tmp_path / f"replay of {unseen.path.name}") == 2
        assert audit_forward(unseen, 99, "x", Machine(threads=1)).fraud is None


def test_only_losses_with_kept_states_can_be_checked(parties: Parties, tmp_path: Path, told: Told) -> None:
    folder = parties.trained(tmp_path / "run")
    opened = RunDirectory.open(folder)
    opened.drop_state(6)
    assert "of 1 of 3 segments; of others no state was kept" in told(folder, "--sample", 99)
    flip(opened.state_path(3))
    assert "the state after step 3 is withheld or damaged" in told(folder, "--sample", 99, code=3)
    opened.drop_state(3)
    opened.drop_state(7)
    with pytest.raises(CannotCheck, match="kept states around at least one segment"):
        audit_forward(opened, 99, "x", Machine(threads=1))
    told(parties.path("agreed"), code=1)
    told(folder, "--sample", 0, code=1)


def test_a_logged_run_is_refused_by_a_forward_audit(parties: Parties, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = RunDirectory.open(parties.path("run"))
    monkeypatch.setattr(type(opened.job), "is_logged", property(lambda _: True))
    with pytest.raises(ConfigurationError, match="policy logged"):
        audit_forward(opened, 99, "x", Machine(threads=1))
