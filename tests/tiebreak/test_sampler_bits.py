"""The bits that sampler and trainer see are the same, in 100 steps, and whoever samples in any way reaches one root."""

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import tiebreak
from tests.conftest import CaseCounter
from tests.parts import slow_except
from tests.tiebreak.test_sampled_rollouts import trainer
from tiebreak.api.huggingface import sampled_rollouts
from tiebreak.api.huggingface.sampled_rollouts import SAMPLED
from tiebreak.api.machine import Machine
from tiebreak.engine.capture.state import MODEL
from tiebreak.engine.capture.step_run import replaced
from tiebreak.engine.logged.files import LogFiles
from tiebreak.engine.run import schedule
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.engine.run.interpreter import Interpreter
from tiebreak.protocol.program.isa import MapFunction, Opcode
from tiebreak.protocol.program.program import Program
from tiebreak.protocol.program.rounding import StepLog

pytestmark = pytest.mark.slow

PLAIN = sampled_rollouts.drafts
STEPS = 20


def trained(folder: Path, machine: Machine = Machine(), **more: Any) -> tiebreak.Run:
    made = trainer(folder, **{"max_steps": STEPS, "gradient_accumulation_steps": 1, **more})
    tiebreak.hf.train(made, exact_sampling=True, check="none", machine=machine)
    run = tiebreak.open_run(folder / "run")
    assert float(RunDirectory.open(run.directory).state(run.steps)[MODEL + SAMPLED]) == 1.0
    return run


def compared(program: Program) -> tuple[int, int]:
    """The ratio of a token's probabilities that the loss weighs, and the log-probability of which it is made."""
    for index, instruction in enumerate(program.body):
        if (instruction.opcode, instruction.function) == (Opcode.MAP, MapFunction.EXP):
            of = program.body[instruction.operands[0].value]
            if (of.opcode, of.function) == (Opcode.MAP, MapFunction.SUB) and of.operands[0] == of.operands[1]:
                return index, of.operands[0].value
    raise AssertionError("expected a ratio")


def test_sampler_and_trainer_see_the_same_log_probabilities_in_100_steps(tmp_path: Path, cases: CaseCounter) -> None:
    """Both are observed: the sampler's last pass over what it publishes, and the training step itself."""
    steps, plain, settled = 100, Interpreter.step, sampled_rollouts.settled
    seen: dict[bool, dict[int, dict[int, Tensor]]] = {True: {}, False: {}}
    masks = dict[int, Tensor]()

    def step(self: Any, number: int, state: Any, data: Any, observe: Any = None, **more: Any) -> Any:
        watched, found = compared(self.program), dict[int, Tensor]()
        if observe is not None:
            self.in_order = schedule.in_order(self.program, {*range(len(self.program.body))})
        masks[number] = data["completion_mask"][0] == 1

        def watch(leaf: int, tensor: Tensor) -> Tensor:
            if leaf in watched:
                found[leaf] = tensor.clone()
            return tensor if observe is None else observe(leaf, tensor)

        seen[observe is not None][number] = found
        return plain(self, number, state, data, watch, **more)

    def again(prompts: Any, length: int, end: Any, draft: Any, exact: Any) -> Any:
        answers, mended = settled(prompts, length, end, draft, exact)
        exact([own + answer for own, answer in zip(prompts, answers, strict=True)])
        return answers, mended

    with replaced(sampled_rollouts, settled=again), pytest.MonkeyPatch.context() as patch:
        patch.setattr(Interpreter, "step", step)
        run = trained(tmp_path / "run", max_steps=steps)
    ratio, said = compared(RunDirectory.open(run.directory).program)
    for number in range(1, steps + 1):
        sampler, own = (seen[who][number][said][masks[number]] for who in (True, False))
        assert sampler.view(torch.int32).equal(own.view(torch.int32))
        assert seen[False][number][ratio][masks[number]].eq(1.0).all()
        cases(len(own))
    assert abs(seen[False][1][said].mean() - seen[False][steps][said].mean()) > 0.01, "weights have moved"
    assert run.audit().agrees


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> tiebreak.Run:
    return trained(tmp_path_factory.mktemp("honest") / "run")


def narrow(model: Any, *rest: Any) -> list[list[int]]:
    """A draft of weights that are held in bfloat16."""
    return PLAIN(copy.deepcopy(model).to(torch.bfloat16), *rest)


def without_cache(model: Any, *rest: Any) -> list[list[int]]:
    with replaced(model.generation_config, use_cache=False):
        return PLAIN(model, *rest)


def one_by_one(
    model: Any, rows: Sequence[list[int]], rooms: Sequence[int], noise: Callable[..., Any], *rest: Any
) -> list[list[int]]:
    """Each row alone, so that nothing is filled up."""

    def each(at: int) -> list[list[int]]:
        own = slice(at, at + 1)
        return PLAIN(model, rows[own], rooms[own], lambda _, place: noise(at, place), *rest)

    return [each(at)[0] for at in range(len(rows))]


def nothing(_: Any, rows: Sequence[list[int]], *rest: Any) -> list[list[int]]:
    """The same token once, whatever the weights."""
    return [[*own, 7] for own in rows]


def published(run: tiebreak.Run) -> tuple[str, list[StepLog]]:
    """The root, and all that the logs say."""
    logs = LogFiles(RunDirectory.open(run.directory))
    return run.root, [logs.step_log(step) for step in range(1, run.steps + 1)]


@pytest.mark.parametrize("drafts", slow_except([narrow, without_cache, one_by_one, nothing], nightly=[without_cache]))
def test_any_draft_leads_to_the_same_rollouts(honest: tiebreak.Run, tmp_path: Path, drafts: Any) -> None:
    with replaced(sampled_rollouts, drafts=drafts):
        assert published(trained(tmp_path / "run")) == published(honest)


def test_thread_counts_and_orders_lead_to_the_same_rollouts(honest: tiebreak.Run, tmp_path: Path) -> None:
    """And another thread count audits them."""
    run = trained(tmp_path / "run", Machine(threads=3, permute=5))
    assert published(run) == published(honest)
    assert tiebreak.open_run(run.directory, machine=Machine(threads=2)).audit().agrees


def test_drafts_that_are_interrupted_are_drawn_again(honest: tiebreak.Run, tmp_path: Path, cases: CaseCounter) -> None:
    """Ctrl-C in the middle of a row, several times in one run."""
    left = [0]

    def drafts(model: Any, rows: Any, rooms: Any, noise: Callable[..., Any], *rest: Any) -> list[list[int]]:
        def counted(row: int, at: int) -> Any:
            left[0] -= 1
            if not left[0]:
                raise KeyboardInterrupt
            return noise(row, at)

        return PLAIN(model, rows, rooms, counted, *rest)

    with replaced(sampled_rollouts, drafts=drafts):
        for left[0] in (40, 3, 220, 97):
            with pytest.raises(KeyboardInterrupt):
                trained(tmp_path / "run")
            cases(1)
        assert published(trained(tmp_path / "run")) == published(honest)
