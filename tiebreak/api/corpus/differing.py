"""Finds where a run leaves its program: the game of a dispute, against a run that another back-end computes.

The defender shows what the back-end computed when it ran whole steps, in its own order and in chains. What it never
made there, intermediate results of a chain, is what it computes one by one. The challenger is torch alone, if that
reaches the expected record, and the integers of the definition otherwise. Both play by the rules, from the run root
down to an element, and everything left of the place that the walk reaches is the same on both sides.
"""

import secrets
import shutil
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from tiebreak.api.corpus.computing import INTEGERS, TORCH, BackendChoice, logs_of
from tiebreak.api.corpus.programs import CorpusProgram
from tiebreak.engine.arithmetic.backend import identity
from tiebreak.engine.data.tensors import canonical, tensor_bytes
from tiebreak.engine.logged.committed import CommittedLogs
from tiebreak.engine.run.directory import RECORD_BYTES, RECORDS, RunDirectory
from tiebreak.engine.run.evidence import Evidence, tree_of_values
from tiebreak.engine.run.interpreter import Interpreter, Planned
from tiebreak.engine.run.schedule import Unit
from tiebreak.engine.run.train import Worker
from tiebreak.protocol.commitments.computation import MAX_OPERANDS_SHOWN, FirstDifference, OperandElement
from tiebreak.protocol.commitments.job import Head
from tiebreak.protocol.game import rules
from tiebreak.protocol.game.match import by_rules, play
from tiebreak.protocol.game.sides import Challenger, Defender, Summary, describe
from tiebreak.protocol.program.isa import Opcode
from tiebreak.protocol.program.program import Program
from tiebreak.protocol.program.reference import needed_elements, unpack
from tiebreak.protocol.tags import Digest
from tiebreak.protocol.trees import Tree


def first_difference(
    program: CorpusProgram, choice: BackendChoice, run: RunDirectory, scratch: Path
) -> FirstDifference | None:
    """The place where a finished run leaves its program. scratch: a new folder.

    Returns None if that is not found: the logs differ, or the back-end computes something else each time.
    """
    expected = {step: (root, bits) for step, root, bits in program.expected.records}
    found = enumerate((record.step, (record.state_root.hex(), record.loss_bits)) for record in run.records())
    checkpoint = next((place for place, (step, made) in found if expected[step] != made), None)
    if checkpoint is None:
        return None
    truth, by = _truth(program, choice, run, checkpoint, scratch)
    head = Head(job_id=run.job.id, count=checkpoint + 1, run_root=run.root(checkpoint + 1))
    with choice.used():
        shown = _Shown(run, choice.interpreter(run.job, run.program, _Watched), CommittedLogs.of(run))
        match = play(
            rules.start(run.job, head, Digest(bytes(32)), 0), defender=Defender(shown),
            challenger=Challenger(truth, secrets.token_bytes(32)), judge=by_rules(count(1).__next__),
        )  # fmt: skip
        return _difference(describe(match.final, run.program, truth), shown, truth, by)


def _truth(
    program: CorpusProgram, choice: BackendChoice, run: RunDirectory, checkpoint: int, scratch: Path
) -> tuple[Evidence, str]:
    """The run as another back-end computes it from the last checkpoint that is right, and the back-end's name."""
    last = run.job.last_step(checkpoint)
    for backend in (TORCH, INTEGERS)[choice.backend == TORCH :]:
        path, other = scratch / backend, BackendChoice(backend=backend)
        shutil.copytree(run.path, path)
        with (path / RECORDS).open("r+b") as file:
            file.truncate(checkpoint * RECORD_BYTES)
        own, interpreter = RunDirectory.open(path), other.interpreter(run.job, run.program)
        for step in own.kept():
            if step >= last:
                own.drop_state(step)
        with other.used():
            Worker(own, interpreter, stop_if_not_finite=False, logs=logs_of(program, own)).work(last)
        record = own.record_at(checkpoint)
        if backend == INTEGERS or (last, record.state_root.hex(), record.loss_bits) in program.expected.records:
            return Evidence(own, interpreter, CommittedLogs.of(own)), backend
    raise AssertionError("integers are the last")


def _difference(summary: Summary, shown: Evidence, truth: Evidence, by: str) -> FirstDifference | None:
    """The end of a finished game, in numbers; None if it did not reach an instruction."""
    step, leaf, program = summary.step, summary.leaf, truth.program
    if step is None or leaf is None:
        return None
    size = program.instruction_at(leaf).dtype.size

    def cut(data: bytes) -> list[bytes]:
        return [data[at : at + size] for at in range(0, len(data), size)]

    pairs = list(zip(cut(shown.tensor(step, leaf)), cut(truth.tensor(step, leaf)), strict=True))
    element = summary.element
    if element is None:  # of a commit or a source, the game compares whole tensors
        element = next(place for place, (theirs, own) in enumerate(pairs) if theirs != own)
    operands = _operands(program, truth, step, leaf, element)
    return FirstDifference(
        step=step, instruction=leaf, name=summary.instruction or "", element=element,
        computed=pairs[element][0][::-1].hex(), correct=pairs[element][1][::-1].hex(),
        operands=operands[:MAX_OPERANDS_SHOWN], of=len(operands), by=by,
    )  # fmt: skip


def _operands(program: Program, truth: Evidence, step: int, leaf: int, element: int) -> tuple[OperandElement, ...]:
    """The elements that an element of a leaf is computed from."""
    i = program.instruction_at(leaf)
    if i.opcode == Opcode.SOURCE:
        return ()
    data = [truth.tensor(step, operand.value) for operand in i.operands]
    sizes = [program.body[operand.value].dtype.size for operand in i.operands]
    if i.opcode == Opcode.COMMIT:
        needed: tuple[tuple[int, int], ...] = ((0, element),)
    else:
        types = program.operand_dtypes(i)
        values = [unpack(dtype, part) for dtype, part in zip(types, data, strict=True)]
        needed = needed_elements(i, element, None, lambda operand, where: values[operand][where], types)
    return tuple(
        OperandElement(
            operand=k, value=i.operands[k].value, element=where,
            bits=data[k][where * sizes[k] : (where + 1) * sizes[k]][::-1].hex(),
        )
        for k, where in needed
    )  # fmt: skip


class _Watched(Interpreter):
    """Keeps each value that a step makes in the planned order, as it was when it was made."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options | {"graphs": False})
        self.made: dict[int, Tensor] = {}

    def _executor(self, *given: Any, **options: Any) -> Planned:
        executor = super()._executor(*given, **options)
        execute = executor.execute

        def watched(unit: Unit, chain: Any) -> None:
            execute(unit, chain)
            self.made |= {n: executor.values[n].clone() for n in unit.members if n in executor.values}

        executor.execute = watched  # type: ignore[method-assign]
        return executor


class _Shown(Evidence):
    """The values of a watched interpreter: those that its planned step makes, and between them those one by one."""

    KEPT: ClassVar[Mapping[str, int]] = {"leaves": 2, "tensor_tree": 4, "accumulators": 1, "log_tree": 2}
    _interpreter: _Watched

    def leaves(self, step: int) -> dict[int, Tensor]:
        """The tensor of each leaf of the value tree."""
        found: dict[int, Tensor] = {}

        def observe(leaf: int, tensor: Tensor) -> Tensor:
            found[leaf] = tensor.clone()
            return tensor

        before = self._state_after(step - 1)
        next(self._steps(step, step, before, observe))
        self._interpreter.made.clear()
        new = next(self._steps(step, step, before)).result.state
        found |= self._interpreter.made
        found |= {self.program.leaf_of_commit(slot): new[name] for slot, name in enumerate(self.program.state_spec())}
        return {leaf: canonical(tensor.cpu()) for leaf, tensor in found.items()}

    def value_tree(self, step: int) -> Tree:
        return tree_of_values(self.program, {leaf: identity(tensor) for leaf, tensor in self.leaves(step).items()})

    def tensor(self, step: int, value: int) -> bytes:
        return bytes(tensor_bytes(self.leaves(step)[value]))
