"""Finds where a run leaves its program: the game of a dispute, against a run by the integers of the definition.

The defender shows what the back-end computed when it ran whole steps, in its own order and in chains. What it never
made there, intermediate results of a chain, is what it computes one by one. The challenger computes the first segment
that differs by the integer reference. Both play by the rules, from the run root down to an element, and everything left
of the place that the walk reaches is the same on both sides.
"""

import secrets
import shutil
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, ClassVar, Final

from torch import Tensor

from tiebreak.engine.arithmetic.backend import identity
from tiebreak.engine.data.tensors import canonical, tensor_bytes
from tiebreak.engine.logged.committed import CommittedLogs
from tiebreak.engine.run.directory import RECORD_BYTES, RECORDS, RunDirectory
from tiebreak.engine.run.evidence import Evidence, tree_of_values
from tiebreak.engine.run.interpreter import Interpreter, Planned
from tiebreak.engine.run.logs import Logs
from tiebreak.engine.run.schedule import Unit
from tiebreak.engine.run.train import Worker
from tiebreak.protocol.commitments.job import Head
from tiebreak.protocol.game import rules
from tiebreak.protocol.game.match import by_rules, play
from tiebreak.protocol.game.sides import Challenger, Defender, Summary, describe
from tiebreak.protocol.program.isa import Opcode
from tiebreak.protocol.program.reference import needed_elements, unpack
from tiebreak.protocol.tags import Digest
from tiebreak.protocol.trees import Tree

SHOWN: Final = 16
"""The operands of an element that are named; sums have more."""


def first_difference(
    run: RunDirectory, interpreter: "Watched", expected: Sequence[tuple[int, str, int]], integers: Interpreter,
    logs: Callable[[RunDirectory], Logs], scratch: Path,
) -> str:  # fmt: skip
    """The place where a finished run leaves its program, in words; empty if the interpreter did not repeat it.

    interpreter: what computed the run. expected: the records that it should have. integers: computes by the definition.
    logs: those of a run under way. scratch: a folder.
    """
    made = ((record.step, record.state_root.hex(), record.loss_bits) for record in run.records())
    checkpoint = next((place for place, record in enumerate(made) if record not in expected), None)
    if checkpoint is None:
        return ""
    shutil.copytree(run.path, scratch / "truth")
    own = RunDirectory.open(scratch / "truth")
    with own.folder(to_write=True) as folder, folder.changing(RECORDS) as file:
        file.truncate(checkpoint * RECORD_BYTES)
    Worker(own, integers, stop_if_not_finite=False, logs=logs(own)).work(run.job.last_step(checkpoint))
    truth = Evidence(own, integers, CommittedLogs.of(own))
    shown = _Shown(run, interpreter, CommittedLogs.of(run))
    head = Head(job_id=run.job.id, count=checkpoint + 1, run_root=run.root(checkpoint + 1))
    match = play(
        rules.start(run.job, head, Digest(bytes(32)), 0), defender=Defender(shown),
        challenger=Challenger(truth, secrets.token_bytes(32)), judge=by_rules(count(1).__next__),
    )  # fmt: skip
    return _in_words(describe(match.final, run.program, truth), shown, truth)


def _in_words(summary: Summary, shown: Evidence, truth: Evidence) -> str:
    """The end of a finished game; empty if it did not reach an instruction."""
    step, leaf = summary.step, summary.leaf
    if step is None or leaf is None:
        return ""
    i = truth.program.instruction_at(leaf)

    def bits(data: bytes, place: int, size: int = i.dtype.size) -> str:
        return data[place * size : (place + 1) * size][::-1].hex()

    theirs, own = shown.tensor(step, leaf), truth.tensor(step, leaf)
    element = summary.element
    if element is None:  # of a commit or a source, the game compares whole tensors
        element = next((place for place in range(i.numel) if bits(theirs, place) != bits(own, place)), 0)
    data = [truth.tensor(step, operand.value) for operand in i.operands]
    needed: tuple[tuple[int, int], ...] = ((0, element),) if i.opcode == Opcode.COMMIT else ()
    if i.opcode not in (Opcode.COMMIT, Opcode.SOURCE):
        types = truth.program.operand_dtypes(i)
        values = [unpack(dtype, part) for dtype, part in zip(types, data, strict=True)]
        needed = needed_elements(i, element, None, lambda operand, where: values[operand][where], types)
    read = [(i.operands[k].value, where, data[k]) for k, where in needed[:SHOWN]]
    sizes = [truth.program.body[value].dtype.size for value, _, _ in read]
    names = [f"value {v}[{at}] = {bits(part, at, size)}" for (v, at, part), size in zip(read, sizes, strict=True)]
    names += [f"{len(needed) - SHOWN:,} more"] * (len(needed) > SHOWN)
    return (
        f"first in step {step}, instruction {leaf} ({summary.instruction}), element {element}: "
        f"{bits(theirs, element)} instead of {bits(own, element)}, computed from {', '.join(names) or 'nothing'}"
    )


class Watched(Interpreter):
    """Keeps each value that a step makes in the planned order, as it was then, if there is a place for it."""

    made: dict[int, Tensor] | None = None

    def _executor(self, *given: Any, **options: Any) -> Planned:
        executor = super()._executor(*given, **options)
        execute, made = executor.execute, self.made

        def watched(unit: Unit, chain: Any) -> None:
            execute(unit, chain)
            if made is not None:
                made.update({n: executor.values[n].clone() for n in unit.members if n in executor.values})

        executor.execute = watched  # type: ignore[method-assign]
        return executor


class _Shown(Evidence):
    """The values of a watched interpreter: those that its planned step makes, and between them those one by one."""

    KEPT: ClassVar[Mapping[str, int]] = {"leaves": 2, "tensor_tree": 4, "accumulators": 1, "log_tree": 2}
    _interpreter: Watched

    def leaves(self, step: int) -> dict[int, Tensor]:
        """The tensor of each leaf of the value tree."""
        found: dict[int, Tensor] = {}

        def observe(leaf: int, tensor: Tensor) -> Tensor:
            found[leaf] = tensor.clone()
            return tensor

        before = self._state_after(step - 1)
        next(self._steps(step, step, before, observe))
        made = self._interpreter.made = dict[int, Tensor]()
        new = next(self._steps(step, step, before)).result.state
        self._interpreter.made, found = None, found | made
        found |= {self.program.leaf_of_commit(slot): new[name] for slot, name in enumerate(self.program.state_spec())}
        return {leaf: canonical(tensor.cpu()) for leaf, tensor in found.items()}

    def value_tree(self, step: int) -> Tree:
        return tree_of_values(self.program, {leaf: identity(tensor) for leaf, tensor in self.leaves(step).items()})

    def tensor(self, step: int, value: int) -> bytes:
        return bytes(tensor_bytes(self.leaves(step)[value]))
