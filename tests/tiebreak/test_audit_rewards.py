"""`tiebreak audit --rewards`, and what reports say of late data."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
import torch

import tiebreak
from tests.engine.test_late_data import late_program
from tests.tiebreak.parties import Commands, Parties
from tests.tiebreak.test_grpo import KEYS
from tests.tiebreak.test_sampled_rollouts import trainer
from tiebreak.api.certification.certificates import LATE, SignedCertificate, read_certificate
from tiebreak.api.certification.issuance import certify
from tiebreak.api.huggingface.rewards import ROLLOUTS
from tiebreak.api.provenance.cards import card, card_again
from tiebreak.api.provenance.source import FormatSource
from tiebreak.api.training.reading import SAMPLED, late_words
from tiebreak.cli import audit as audit_command
from tiebreak.engine.capture.state import MODEL
from tiebreak.engine.data import identities
from tiebreak.engine.data.disk import write_file
from tiebreak.engine.lowering.builder import Builder
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.protocol.commitments.dsse import Envelope
from tiebreak.protocol.commitments.statement import sign
from tiebreak.protocol.errors import VerificationError
from tiebreak.protocol.program.isa import DType

pytestmark = pytest.mark.slow

MINE: Final = """
print('output of a script')
from pathlib import Path
from tests.tiebreak import test_sampled_rollouts

def trainer(output_dir):
    return test_sampled_rollouts.trainer(Path(output_dir, "again"){more})
"""
OF_TEXT: Final = ", reward=test_sampled_rollouts.of_text"
DECLARED: Final = "by the trainer: advantages"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """A signed run with exact sampling; its weights are in the folder that has it."""
    made = trainer(tmp_path_factory.mktemp("rewards") / "run", max_steps=2)
    tiebreak.hf.train(made, client=KEYS[0], key=KEYS[1], check="none", exact_sampling=True)
    made.model.save_pretrained(Path(made.args.output_dir, "weights"))
    return RunDirectory.open(Path(made.args.output_dir, "run"))


def written(tmp_path: Path, more: str = "") -> Path:
    file = tmp_path / "my_rewards.py"
    file.write_text(MINE.format(more=f", max_steps=2{more}"))
    return file


def test_an_audit_computes_rewards_again_with_the_users_own_file(
    run: RunDirectory, tmp_path: Path, command: Commands
) -> None:
    mine, words = written(tmp_path), ["audit", run.path, "--output", tmp_path / "replay", "--rewards"]
    assert command(*words, mine).splitlines()[-6:] == [
        "rollouts   sampled, checked by the program, all of them", "prompts    data of the job", "advantages declared",
        f"declared   {DECLARED}",
        f"rewards    computed again by {mine} for steps 1 to 2 of 2: the advantages follow",
        "agrees: 2 checkpoints, 2 steps",
    ]  # fmt: skip
    of_part = command("audit", run.path, "--segment", 1, "--rewards", mine).splitlines()
    assert [line for line in of_part if line.startswith("rewards    computed again by ")]
    assert "rollouts   sampled, checked by the program, all of them" in of_part
    found = json.loads(command(*words, mine, "--json"))
    assert found["rewards"] == {"file": str(mine), "steps": 2}
    assert found["late_data"]["rollouts"].endswith("all of them")
    out, err = command.printed(*words, written(tmp_path, OF_TEXT), "--json", code=2)
    assert json.loads(out)["verdict"] == "other rewards"
    assert err.splitlines()[-1].startswith("AuditFailure: step 1, advantages of row ")


def test_a_file_is_refused_before_the_audit(
    run: RunDirectory, tmp_path: Path, command: Commands, monkeypatch: pytest.MonkeyPatch, parties: Parties
) -> None:
    mine, other = written(tmp_path), parties.trained(tmp_path / "other")
    assert "expected a run with declared advantages" in command.error("audit", other, "--rewards", mine)
    assert late_words(RunDirectory.open(other).program) == {}
    assert late_words(late_program()) == {"declared": "by the trainer: x, y, z"}
    mine.write_text("")
    words = ["audit", run.path, "--output", tmp_path / "replay", "--rewards", mine]
    assert "expected a function trainer(output_dir) in" in command.error(*words)
    mine.write_text("raise AssertionError")
    monkeypatch.setattr(audit_command, "missing_of", lambda _: ["torch", "trl"])
    assert command.error(*words).startswith("this needs what is not installed: torch, trl; install it by: pip install")
    assert not (tmp_path / "replay").exists()


def test_reports_say_who_answers_for_late_data(run: RunDirectory, command: Commands) -> None:
    for more in ([], ["--long"]):
        shown = json.loads(command("show", run.path, "--json", *more))
        assert shown["rollouts"] == "sampled, checked by the program"
        assert (shown["prompts"], shown["advantages"], shown["declared"]) == ("data of the job", "declared", DECLARED)
    found = late_words(run.program, identities({SAMPLED: torch.zeros(())}))
    assert found["rollouts"] == "sampled, checked by the program, which found others"


def test_names_of_a_stranger_stay_names() -> None:
    b = Builder()
    names = f"{MODEL}{ROLLOUTS}.mean_reward_0_Length(3)", f"{MODEL}{ROLLOUTS}.mean_reward_1_a;prompts:fine"
    rewards = {name: b.state(name, DType.F32, ()) for name in names}
    said, other = b.late("completion_ids", DType.F32, (3,)), b.late("x,y;z:|", DType.F32, (3,))
    late = late_words(b.finish(rewards, b.sum(b.add(said, other))))
    assert late == {
        "rollouts": "declared", "prompts": "data of the job", "advantages": "by the program",
        "rewards": "by the program: Length(3), a?prompts?fine",
        "declared": "by the trainer: completion_ids, x?y?z??",
    }  # fmt: skip


def test_certificates_and_cards_say_it_too(run: RunDirectory, tmp_path: Path) -> None:
    weights, output = run.path.parent / "weights", tmp_path / "certificate.json"
    signed, _ = certify(run, weights, output, KEYS[1])
    words = signed.certificate.environment[LATE]
    assert words.startswith("rollouts: sampled, checked by the program, all of them; prompts: data of the job; ")
    assert any(words in line for line in signed.leaves_open())
    source = FormatSource(signed=signed, certificate=output.name, folder=weights)
    text = card(source)
    assert f"| Late data | {words} |\n" in text.decode()
    assert card_again(source, text) == text
    forged = {**signed.certificate.environment, LATE: "rollouts: fine [x](http://x) | <b>"}
    other = replace(signed, certificate=replace(signed.certificate, environment=forged))
    assert "| Late data | rollouts: fine ?x?(http:??x) ? ?b? |\n" in card(replace(source, signed=other)).decode()


@pytest.mark.parametrize("change", [{}, {LATE: "rollouts: sampled"}])
def test_no_party_signs_a_certificate_that_says_otherwise(
    run: RunDirectory, tmp_path: Path, change: dict[str, Any]
) -> None:
    weights, output = run.path.parent / "weights", tmp_path / "certificate.json"
    certify(run, weights, output, KEYS[1])
    honest = read_certificate(output).certificate
    said = {name: text for name, text in honest.environment.items() if name != LATE} | change
    write_file(output, sign(Envelope(payload=replace(honest, environment=said).payload), KEYS[1]).encode())
    assert isinstance(read_certificate(output), SignedCertificate)
    with pytest.raises(VerificationError, match=r"expected late data of the run in .*, got"):
        certify(run, weights, output, KEYS[0])
