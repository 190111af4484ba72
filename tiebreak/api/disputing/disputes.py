"""Disputes over a signed run, played in one process: they find its first departure from the program, and the loser.

An archive holds checkpoints, and if they do not follow from each other, nobody can compute from it what happened
between two of them. There its trainer loses for want of an answer. To say more, the game is played again with the
answers that the trainer would have had to give: the steps of the replay, and in the end what it committed to.
"""

import secrets
import struct
from dataclasses import dataclass, replace
from itertools import count as count_up
from pathlib import Path
from typing import Final

from tiebreak.api.machine import Machine
from tiebreak.api.machine.interpreters import make_interpreter
from tiebreak.engine.arithmetic.backend import identity
from tiebreak.engine.data.tensors import tensor_bytes
from tiebreak.engine.logged.committed import CommittedLogs
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.engine.run.evidence import Evidence, tree_of_values
from tiebreak.engine.run.interpreter import Interpreter
from tiebreak.engine.run.segments import compare
from tiebreak.protocol.commitments.job import SignedHead, game_id
from tiebreak.protocol.commitments.records import StepRecord, identify
from tiebreak.protocol.errors import ConfigurationError, VerificationError
from tiebreak.protocol.game import rules
from tiebreak.protocol.game.match import Match, by_rules, play
from tiebreak.protocol.game.moves import Side
from tiebreak.protocol.game.sides import Challenger, Defender, Summary, describe
from tiebreak.protocol.game.state import GameState, Level
from tiebreak.protocol.program.isa import Opcode
from tiebreak.protocol.program.program import Program
from tiebreak.protocol.tags import Digest
from tiebreak.protocol.trees import Tree

MAX_F32: Final = 2.0**128 - 2.0**104


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Dispute:
    """A finished game over a head.

    final: of the game played from the trainer's archive. located: of the game that locates the difference, a second one
    if the archive could not answer; summary and walk belong to it. walk: one (tree, height, position) for each
    selection of the first child node that differs.
    """

    head: SignedHead
    program: Program
    final: GameState
    located: GameState
    summary: Summary
    walk: tuple[tuple[Level, int, int], ...]

    @property
    def loser(self) -> str:
        assert self.final.verdict is not None  # a finished game always has a verdict
        return "challenger" if self.final.verdict.winner is Side.DEFENDER else "trainer"

    @property
    def sentence(self) -> str:
        """One sentence that locates the difference, from the checkpoint down to the element, as far as the game got."""
        ended = self.summary if self.located is self.final else describe(self.final, self.program)
        if not (place := _place(self.final, ended, self.program)):
            return "the signed root does not open to checkpoints"
        found = f"the run leaves the program first in {', '.join(place)}"
        if self.located is self.final:
            return found
        shown = ", ".join(_place(self.located, self.summary, self.program)[1:])
        return f"{found}; its archive does not show how, but what it committed to, or told, differs first in {shown}"

    def __repr__(self) -> str:
        return f"<dispute: the {self.loser} loses; {self.sentence}>"


def open_both(run: Path, replay: Path) -> tuple[RunDirectory, RunDirectory]:
    """Opens the trainer's run and the auditor's replay. Raises `ConfigurationError` if their jobs differ."""
    defended, own = RunDirectory.open(run), RunDirectory.open(replay)
    if defended.job != own.job:
        raise ConfigurationError(
            f"{replay}: expected a replay of job {defended.job.id.hex()}, got one of {own.job.id.hex()}"
        )
    return defended, own


def dispute(defended: RunDirectory, own: RunDirectory, machine: Machine, count: int | None = None) -> Dispute | None:
    """Plays the game over a head of `defended` (default: the last) against the auditor's replay `own`.

    count: the number of checkpoints that the head covers. Returns None if the head is what the program produces. Raises
    `ConfigurationError` if there is no such head, `StateError` if the replay has not got that far.
    """
    if not (heads := {head.head.count: head for head in defended.heads()}):
        raise ConfigurationError(
            f"{defended.path}: expected at least one signed head, got none; nothing to dispute yet"
        )
    chosen = max(heads) if count is None else count
    if chosen not in heads:
        raise ConfigurationError(
            f"{defended.path}: expected a head of {chosen} checkpoints, got those of {sorted(heads)}"
        )
    head = heads[chosen]
    if compare(own, head).agrees:
        return None
    interpreter = make_interpreter(defended.program, machine, defended.job)
    challenger = Evidence(own, interpreter, CommittedLogs.of(own))

    def played(evidence: Evidence) -> Match:
        return play(
            rules.start(defended.job, head.head, game_id(head.head, defended.agreement.domain, bytes(20), 0), 0),
            defender=Defender(evidence),
            challenger=Challenger(challenger, secrets.token_bytes(32)),
            judge=by_rules(count_up(1).__next__),
        )

    match = located = played(Evidence(defended, interpreter, CommittedLogs.of(defended)))
    summary = describe(match.final, defended.program, challenger)
    if summary.leaf is None and (fitted := _fitted(defended, own, chosen, interpreter)) is not None:
        again = played(fitted)
        said = describe(again.final, defended.program, challenger)
        if said.leaf is not None:
            located, summary = again, said
    walk = tuple((state.level, state.height, state.below(chosen.index)) for state, chosen in located.selections)
    return Dispute(
        head=head, program=defended.program, final=match.final, located=located.final, summary=summary, walk=walk
    )


# ---------------------------------------------------------------- where an archive has no answer


class _Fitted(Evidence):
    """The replay of a run, except its trainer's commitments after a segment, and its reported losses."""

    def __init__(self, run: RunDirectory, interpreter: Interpreter, checkpoint: int) -> None:
        """Raises `VerificationError` if the state after the segment is not kept as it was committed."""
        super().__init__(run, interpreter, CommittedLogs.of(run))
        self._committed, self._lies = run.records()[checkpoint], dict[int, dict[int, bytes]]()
        job, program, last = run.job, run.program, run.job.last_step(checkpoint)
        told = {metric["step"]: metric.get("loss") for metric in run.metrics()}
        for step in range(job.first_step(checkpoint), last):
            loss = told.get(step)
            if isinstance(loss, float) and abs(loss) <= MAX_F32:
                self._tell_loss(step, struct.pack("<f", loss))
        self._tell_loss(last, self._committed.loss_bits.to_bytes(4, "little"))
        state, true, lies = run.state(last), super().value_tree(last), self._lies.setdefault(last, {})
        for slot, name in enumerate(program.state_spec()):
            written = program.commits[slot].operands[0].value
            if identity(state[name]) != true.node(0, written):
                lies[program.leaf_of_commit(slot)] = bytes(tensor_bytes(state[name]))
                if program.body[written].opcode != Opcode.SOURCE:
                    lies[written] = lies[program.leaf_of_commit(slot)]

    def _tell_loss(self, step: int, loss: bytes) -> None:
        if loss != super().record(step).loss_bits.to_bytes(4, "little"):
            self._lies[step] = {self.job.body_count - 1: loss}

    def record(self, step: int) -> StepRecord:
        if step == self._committed.step:
            return self._committed
        own, loss = super().record(step), self._lies.get(step, {}).get(self.job.body_count - 1)
        return own if loss is None else replace(own, loss_bits=int.from_bytes(loss, "little"))

    def tensor(self, step: int, value: int) -> bytes:
        lie = self._lies.get(step, {}).get(value)
        return super().tensor(step, value) if lie is None else lie

    def value_tree(self, step: int) -> Tree:
        true, program = super().value_tree(step), self.program
        ids = {leaf: Digest(true.node(0, leaf)) for leaf in range(len(program.body))}
        for slot, commit in enumerate(program.commits):
            ids[program.leaf_of_commit(slot)] = ids[commit.operands[0].value]
        for leaf, data in self._lies.get(step, {}).items():
            dtype, shape = program.instruction_at(leaf).dtype, program.instruction_at(leaf).shape
            ids[leaf] = identify(dtype, shape, data)
        return tree_of_values(program, ids)


def _fitted(defended: RunDirectory, own: RunDirectory, count: int, interpreter: Interpreter) -> _Fitted | None:
    """The answers a trainer would have to give on the first segment that differs; None if its archive lacks them."""
    pairs = enumerate(zip(defended.records()[:count], own.records(), strict=False))
    checkpoint = next((number for number, (theirs, true) in pairs if theirs != true), None)
    try:
        return None if checkpoint is None else _Fitted(defended, interpreter, checkpoint)
    except VerificationError:
        return None


def _place(final: GameState, ended: Summary, program: Program) -> list[str]:
    """The first checkpoint, step, instruction and element that differ, as far as a finished game got."""
    job, checkpoint, step = final.job, ended.checkpoint, ended.step
    # A side may fail to open the node that the walk has reached. Then only the leaf of the walk is known.
    if checkpoint is None and not final.height:
        checkpoint = final.position
    if step is None and final.level is Level.STEPS and not final.height and checkpoint is not None:
        step = job.first_step(checkpoint) + final.position
    if checkpoint is None:
        return []
    steps = f"steps {job.first_step(checkpoint)} to {job.last_step(checkpoint)}" if step is None else f"step {step}"
    place = [f"checkpoint {checkpoint + 1} of {job.checkpoints}", steps]
    if ended.leaf is not None:
        origin = ended.origin or _result_of(program, ended.leaf)
        place.append(f"instruction {ended.leaf} ({ended.instruction}{origin and f' of {origin}'})")
    if ended.element is not None:
        place.append(f"element {ended.element}")
    return place


def _result_of(program: Program, leaf: int) -> str:
    """The name of the result of the step that an instruction outside of all modules computes, if it is one."""
    for slot, name in enumerate(program.state_spec()):
        if leaf in (program.leaf_of_commit(slot), program.commits[slot].operands[0].value):
            return f"the new {name}"
    return "the loss" if leaf == len(program.body) - 1 else ""
