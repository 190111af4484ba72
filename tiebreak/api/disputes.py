"""Disputes over a signed run, played in one process: where the run departs from its program, and who is convicted."""

import secrets
from dataclasses import dataclass
from itertools import count as count_up
from pathlib import Path

from tiebreak.api.running import Machine
from tiebreak.engine.logged.committed import CommittedLogs
from tiebreak.engine.run.audit import compare
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.engine.run.evidence import Evidence
from tiebreak.protocol.commitments.job import SignedHead, game_id
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.game import rules
from tiebreak.protocol.game.match import by_rules, play
from tiebreak.protocol.game.moves import Side
from tiebreak.protocol.game.sides import Challenger, Defender, Summary, describe
from tiebreak.protocol.game.state import GameState, Level


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Dispute:
    """A finished game over a head.

    walk: one (tree, height, position) for each selection of the first child node that differs.
    """

    head: SignedHead
    final: GameState
    summary: Summary
    walk: tuple[tuple[Level, int, int], ...]

    @property
    def loser(self) -> str:
        assert self.final.verdict is not None  # a finished game always has a verdict
        return "challenger" if self.final.verdict.winner is Side.DEFENDER else "trainer"

    @property
    def sentence(self) -> str:
        """One sentence that locates the difference, from the checkpoint down to the element, as far as the game got."""
        return difference(self.final, self.summary)

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
    heads = {head.head.count: head for head in defended.heads()}
    if not heads:
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
    interpreter = machine.interpreter(defended)
    challenger = Evidence(own, interpreter, CommittedLogs.of(own))
    match = play(
        rules.start(defended.job, head.head, game_id(head.head, defended.agreement.domain, bytes(20), 0), 0),
        defender=Defender(Evidence(defended, interpreter, CommittedLogs.of(defended))),
        challenger=Challenger(challenger, secrets.token_bytes(32)),
        judge=by_rules(count_up(1).__next__),
    )
    summary = describe(match.final, defended.program, challenger)
    walk = tuple((state.level, state.height, state.below(chosen.index)) for state, chosen in match.selections)
    return Dispute(head=head, final=match.final, summary=summary, walk=walk)


def difference(final: GameState, ended: Summary) -> str:
    """One sentence about a finished game: the first checkpoint, step, instruction and element that differ."""
    job, checkpoint, step = final.job, ended.checkpoint, ended.step
    # A side may fail to open the node that the walk has reached. Then only the leaf of the walk is known.
    if checkpoint is None and not final.height:
        checkpoint = final.position
    if step is None and final.level is Level.STEPS and not final.height and checkpoint is not None:
        step = job.first_step(checkpoint) + final.position
    if checkpoint is None:
        return "the signed root does not open to checkpoints"
    place = [f"checkpoint {checkpoint + 1} of {job.checkpoints}"]
    if step is not None:
        place.append(f"step {step}")
    else:
        place.append(f"steps {job.first_step(checkpoint)} to {job.last_step(checkpoint)}")
    if ended.leaf is not None:
        origin = f" of {ended.origin}" if ended.origin else ""
        place.append(f"instruction {ended.leaf} ({ended.instruction}{origin})")
    if ended.element is not None:
        place.append(f"element {ended.element}")
    return f"the run leaves the program first in {', '.join(place)}"


def narrowed_to(state: GameState, level: Level, position: int) -> str:
    """Describes what a walk has found once it has reached leaf `position` of the tree of a level."""
    match level:
        case Level.RUN:
            job = state.job
            return f"checkpoint {position + 1}: steps {job.first_step(position)} to {job.last_step(position)}"
        case Level.STEPS:
            return f"step {state.step}"
        case Level.VALUES:
            half = 1 << state.job.half_depth
            return f"instruction {position}" if position < half else f"state entry {position - half}"
        case Level.CHUNKS:
            return f"chunk {position}"
        case Level.TERMS:
            return f"terms {4 * position} to {4 * position + 3}"
