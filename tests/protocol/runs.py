"""Short runs by the integer reference, honest or tampered: the oracle of both players.

The program is `programs.every_kind` unless a `Setting` says otherwise.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial

import pytest

from conformance.whole_steps import execute, new_state
from tests.protocol.oracles import value as exact
from tests.protocol.programs import every_kind, initial_state, job_data
from tiebreak.protocol.commitments.accumulator_tree import AccumulatorTree
from tiebreak.protocol.commitments.eip712 import Address, Domain
from tiebreak.protocol.commitments.job import Head, Job, SignedHead
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.commitments.log_tree import LogTree, logs_tree
from tiebreak.protocol.commitments.records import (
    StepRecord,
    chunk_count,
    data_tree,
    identify,
    run_tree,
    state_leaf,
    state_tree,
    tensor_tree,
)
from tiebreak.protocol.errors import IllegalMove
from tiebreak.protocol.game import rules as game
from tiebreak.protocol.game.match import moves
from tiebreak.protocol.game.moves import Move, Side
from tiebreak.protocol.game.rules import GameState, Level, Reason, walk_moves
from tiebreak.protocol.game.sides import Defender, Party
from tiebreak.protocol.hashing import CHUNK_BYTES
from tiebreak.protocol.program.accumulator import BLOCK_LEAVES, Kind, decode_for, encode
from tiebreak.protocol.program.isa import MAX_NUMEL, MAX_TERMS, TERMS_PER_LEAF, DType, Instruction
from tiebreak.protocol.program.program import Program, half_and_half
from tiebreak.protocol.program.reference import accumulators, unpack
from tiebreak.protocol.program.rounding import Direction, Policy, StepLog
from tiebreak.protocol.tags import Digest
from tiebreak.protocol.trees import Tree, depth_of

CLIENT, TRAINER, CHALLENGER = (PrivateKey.from_int(k) for k in (1, 2, 3))
DOMAIN = Domain(chain_id=31337, contract=Address(bytes(range(20))))
STEPS, INTERVAL, CLOCK, REPLAY = 5, 2, 100, 7
GAME = Digest(b"\x0a" * 32)
"""The id of games that are played without messages."""
SECRET = b"\x5e" * 32
"""The secret from which a challenger's salts follow."""

Tamper = Callable[[int, int, bytes], bytes]
"""(step, leaf of the value tree, honest data) -> data."""


def honest(step: int, leaf: int, data: bytes) -> bytes:
    return data


@dataclass(frozen=True)
class Setting:
    """What a run is computed from: a program, the state before its first step, and the data."""

    name: str
    program: Program
    start: Mapping[str, bytes]
    data: Mapping[str, bytes]

    def state_ids(self, state: Mapping[str, bytes]) -> dict[str, Digest]:
        return {name: identify(*kind, state[name]) for name, kind in self.program.state_spec().items()}

    def data_ids(self) -> dict[str, Digest]:
        return {name: identify(*kind, self.data[name]) for name, kind in self.program.data_spec().items()}


EVERY = Setting("every", every_kind(), initial_state(), job_data())


def program() -> Program:
    return EVERY.program


def make_job(*, setting: Setting = EVERY, **options: int | None) -> Job:
    return job_over(setting.program, setting.state_ids(setting.start), setting.data_ids(), **options)  # type: ignore[arg-type]


def job_over(
    program: Program,
    state: Mapping[str, Digest],
    data: Mapping[str, Digest],
    *,
    steps: int = STEPS,
    interval: int = INTERVAL,
    levels: int = 2,
    nonce: int = 7,
    precision: int = 32,
    tolerances: int | None = None,
) -> Job:
    """A job on any program, by the ids of its initial state and data; with tolerances, of policy `logged`."""
    return Job.over(
        program, client=CLIENT.address, trainer=TRAINER.address, initial_state_root=state_tree(state).root,
        data_root=data_tree(data).root, steps=steps, checkpoint_interval=interval,
        policy=int(Policy.EXACT if tolerances is None else Policy.LOGGED), precision=precision,
        tolerances=tolerances or 0, reward=10, trainer_stake=20, challenger_stake=5, challenge_window=1000, clock=CLOCK,
        replay_time=REPLAY, talk_time=0, audit_time=0, deadline=100_000, descent_levels=levels, nonce=nonce,
    )  # fmt: skip


@dataclass(frozen=True)
class Computed:
    """One step of a run: data of all body values, and the state after it."""

    values: tuple[bytes, ...]
    state: dict[str, bytes]


Known = dict[tuple[str, int, int, int], Computed]
"""What was computed, by setting, precision, tolerances and step."""

_HONEST: Known = {}


class Logs:
    """The logs of a run's steps, and what was computed by them. A step without one has an empty log."""

    def __init__(self, steps: Mapping[int, StepLog], program: Program = EVERY.program) -> None:
        for step, log in steps.items():
            log.check(program, step)
        self._steps, self._program = steps, program
        self.computed: Known = {}
        self.tree = cache(self._make_tree)

    def of(self, step: int) -> StepLog:
        return self._steps.get(step, StepLog())

    def _make_tree(self, step: int) -> LogTree:
        return LogTree(self._program, self.of(step))

    def segment(self, job: Job, checkpoint: int) -> Tree:
        steps = range(job.first_step(checkpoint), job.last_step(checkpoint) + 1)
        return logs_tree([self.tree(step).root for step in steps])


class Run:
    """Answers `sides.Oracle`. `tamper` changes values as they are made, and so what is computed from them."""

    def __init__(
        self,
        job: Job,
        tamper: Tamper = honest,
        first: int = STEPS + 1,
        *,
        logs: Logs | None = None,
        setting: Setting = EVERY,
    ) -> None:
        """`first` is the first tampered step: those before it are the honest ones. logs: of a logged job."""
        self.job = job
        self.logs = Logs({}) if logs is None else logs
        self.setting, self.program = setting, setting.program
        self._tamper = tamper
        self._first = first
        self._steps: Known = {}
        self._value_trees: dict[int, Tree] = {}
        self._accumulators = cache(lambda *place: tree_over(self.encoded(*place)))

    def computed(self, step: int) -> Computed:
        job, honest_steps = self.job, self.logs.computed if self.job.is_logged else _HONEST
        known = honest_steps if step < self._first else self._steps
        key = (self.setting.name, job.precision, job.tolerances, step)
        if key not in known:
            known[key] = self._compute(step)
        return known[key]

    def state(self, step: int) -> Mapping[str, bytes]:
        return self.setting.start if step == 0 else self.computed(step).state

    def _compute(self, step: int) -> Computed:
        job, tamper = self.job, honest if step < self._first else self._tamper
        values = execute(
            self.program,
            self.state(step - 1),
            self.setting.data,
            step,
            job.precision,
            tolerances=job.tolerances,
            log=self.logs.of(step),
            change=partial(tamper, step),
        )
        state = {
            name: tamper(step, self.program.leaf_of_commit(slot), data)
            for slot, (name, data) in enumerate(new_state(self.program, values).items())
        }
        return Computed(tuple(values), state)

    def directions(self, step: int, leaf: int) -> dict[int, Direction]:
        entries = self.logs.of(step).entries.get(leaf)
        return {} if entries is None else dict(entries.directions())

    # -- the oracle

    @cached_property
    def _records(self) -> list[StepRecord]:
        return [self.job.initial_record, *(self._make_record(step) for step in range(1, self.job.steps + 1))]

    def _make_record(self, step: int) -> StepRecord:
        loss = int.from_bytes(self.computed(step).values[-1], "little")
        plain = StepRecord(step=step, state_root=self.state_leaves(step).root, loss_bits=loss)
        return replace(plain, log_root=self.log_root(step)) if self.job.is_logged else plain

    def log_root(self, step: int) -> Digest:
        return self.logs.segment(self.job, self.job.checkpoint_of(step)).root

    def log_tree(self, step: int) -> LogTree:
        return self.logs.tree(step)

    def record(self, step: int) -> StepRecord:
        return self._records[step]

    def run_tree(self, count: int) -> Tree:
        records = [self.record(self.job.last_step(checkpoint)).digest for checkpoint in range(count)]
        return run_tree(records, self.job.steps, self.job.checkpoint_interval)

    def steps_tree(self, checkpoint: int) -> Tree:
        steps = range(self.job.first_step(checkpoint), self.job.last_step(checkpoint) + 1)
        return Tree([self.record(step).digest for step in steps])

    def value_tree(self, step: int) -> Tree:
        if step not in self._value_trees:
            made = zip(self.program.body, self.computed(step).values, strict=True)
            body = [identify(i.dtype, i.shape, data) for i, data in made]
            self._value_trees[step] = half_and_half(body, self._state_leaves(step), self.program.half_depth)
        return self._value_trees[step]

    def _state_leaves(self, step: int) -> list[Digest]:
        return [state_leaf(name, self.state_id(step, name)) for name in self.program.state_spec()]

    def state_leaves(self, step: int) -> Tree:
        return Tree(self._state_leaves(step))

    def state_id(self, step: int, name: str) -> Digest:
        return identify(*self.program.state_spec()[name], self.state(step)[name])

    def data_id(self, name: str) -> Digest:
        return identify(*self.program.data_spec()[name], self.setting.data[name])

    def tensor(self, step: int, value: int) -> bytes:
        return self.computed(step).values[value]

    def tensor_tree(self, step: int, value: int) -> Tree:
        return tensor_tree(self.tensor(step, value))

    def accumulators(self, step: int, value: int, index: int) -> AccumulatorTree:
        return self._accumulators(step, value, index)

    def encoded(self, step: int, value: int, index: int) -> list[bytes]:
        """The encoded accumulators of an element, by the integer reference."""
        i = self.program.body[value]
        operands = [unpack(self.program.body[a.value].dtype, self.tensor(step, a.value)) for a in i.operands]
        types = self.program.operand_dtypes(i)
        return [encode(a) for a in accumulators(i, index, lambda operand, where: operands[operand][where], types)]

    def head(self, count: int | None = None) -> SignedHead:
        count = self.job.checkpoints if count is None else count
        head = Head(job_id=self.job.id, count=count, run_root=self.run_tree(count).root)
        return SignedHead.sign(head, DOMAIN, TRAINER)


def max_moves(job: Job) -> int:
    """An upper bound on the moves of any game about the job (invariant 7)."""
    return walk_moves(
        job.descent_levels,
        run=job.run_depth,
        steps=depth_of(job.checkpoint_interval),
        values=job.half_depth + 1,
        chunks=depth_of(MAX_NUMEL * max(dtype.size for dtype in DType) // CHUNK_BYTES),
        terms=depth_of(MAX_TERMS // TERMS_PER_LEAF),
    )


def check_length(end: GameState) -> None:
    """Asserts that a game that ended at an element or a partial sum took exactly `walk_moves` moves (invariant 7)."""
    job = end.job
    if end.level not in (Level.CHUNKS, Level.TERMS) or end.verdict.reason is not Reason.RECOMPUTED:
        return
    moves = walk_moves(
        job.descent_levels,
        run=job.run_depth,
        steps=depth_of(job.segment_steps(end.checkpoint)),
        values=job.half_depth + 1,
        chunks=depth_of(chunk_count(end.dtype, end.shape)),
        terms=depth_of(-(-end.terms // TERMS_PER_LEAF)) if end.terms else 0,
    )
    assert end.moves == moves <= max_moves(job)


def tree_over(encoded: Sequence[bytes]) -> AccumulatorTree:
    starts = range(0, len(encoded), BLOCK_LEAVES)
    blocks = [b"".join(encoded[start : start + BLOCK_LEAVES]) for start in starts]
    return AccumulatorTree(len(encoded), blocks.__getitem__)


def duel(
    run: Run,
    defender: Party,
    challenger: Party,
    *,
    count: int | None = None,
    on_move: Callable[[GameState, Move, GameState], None] | None = None,
) -> GameState:
    """A game against the head of `run`, without messages, a move a second. Illegal moves raise."""
    parties = {Side.DEFENDER: defender, Side.CHALLENGER: challenger}
    start = game.start(run.job, run.head(count).head, GAME, 0)
    for played in moves(
        start, parties, lambda state, move: game.apply(state, move, max(state.last + 1, state.earliest))
    ):
        assert played.after.moves <= max_moves(run.job)
        if on_move is not None:
            on_move(played.before, played.move, played.after)
    return played.after


def stuck(defender: Defender, challenger: Party) -> tuple[GameState, str]:
    """The state in which a defender of a tampered run concedes, and the error of the move that it would make."""
    made: list[tuple[GameState, Move, GameState]] = []
    end = duel(defender.oracle, defender, challenger, on_move=lambda *move: made.append(move))  # type: ignore[arg-type]
    before, _, _ = made[-1]
    assert (end.verdict.winner, end.verdict.reason) == (Side.CHALLENGER, Reason.CONCEDED)
    with pytest.raises(IllegalMove) as refused:
        game.apply(before, defender.opening(before), before.last)
    return before, str(refused.value)


def ordinary_element(run: Run, step: int, leaf: int) -> int | None:
    """The last element of a leaf whose lie an accumulator can hold: no NaN or infinity; None if there is none."""
    body = run.program.body
    if leaf >= len(body):
        return 0
    if body[leaf].dtype is not DType.F32:
        return body[leaf].numel - 1
    words = unpack(DType.F32, run.tensor(step, leaf))
    return max((k for k, bits in enumerate(words) if bits & 0x7F800000 != 0x7F800000), default=None)


def flip(data: bytes, bit: int) -> bytes:
    """The data with one bit flipped, counted from the lowest of the first byte."""
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def lie(
    at_step: int,
    at_leaf: int,
    element_index: int = 0,
    *,
    bit: int = 0,
    become: bytes | None = None,
    loss_bit: int = 0,
    setting: Setting = EVERY,
) -> Tamper:
    """One bit of one element, or other bytes; for a body value also of the losses from there on, as the head shows.

    loss_bit: another than the lie's own where that may carry through to the loss.
    """
    program = setting.program
    last, size = len(program.body) - 1, program.instruction_at(at_leaf).dtype.size
    start = size * element_index

    def tamper(step: int, leaf: int, data: bytes) -> bytes:
        if (step, leaf) == (at_step, at_leaf):
            return flip(data, 8 * start + bit) if become is None else data[:start] + become + data[start + size :]
        return flip(data, loss_bit) if step >= at_step and leaf == last and at_leaf <= last else data

    return tamper


class Liar(Run):
    """A tampered run whose accumulators are bent from leaf `bend_from` on, to end in the claimed element."""

    def __init__(
        self,
        job: Job,
        at_step: int,
        at_leaf: int,
        element_index: int = 0,
        *,
        bend_from: int = 0,
        logs: Logs | None = None,
        setting: Setting = EVERY,
        bit: int = 0,
        loss_bit: int = 0,
    ) -> None:
        tamper = lie(at_step, at_leaf, element_index, bit=bit, loss_bit=loss_bit, setting=setting)
        super().__init__(job, tamper, at_step, logs=logs, setting=setting)
        self._at = (at_step, at_leaf)
        self._bend_from = bend_from

    def encoded(self, step: int, value: int, index: int) -> list[bytes]:
        true = super().encoded(step, value, index)
        return true if (step, value) != self._at else bend(self, step, value, index, true, self._bend_from)


def bend(run: Run, step: int, value: int, index: int, true: list[bytes], first: int) -> list[bytes]:
    """Accumulators that are true before leaf `first` and end in what the run claims."""
    from_bits = claim(run.program.body[value], run.tensor(step, value), index, true[-1])
    return [*true[:first], *([from_bits] * (len(true) - first))]


def claim(i: Instruction, data: bytes, index: int, like: bytes) -> bytes:
    held = decode_for(i, like)
    raw = data[index * i.dtype.size : (index + 1) * i.dtype.size]
    bits = int.from_bytes(raw, "little", signed=i.dtype.size == 8)
    if held.kind.is_f32_sum and bits & 0x7F800000 == 0x7F800000:
        return encode(replace(held, value=0, invalid=True))
    if held.kind.is_f32_sum:
        return encode(replace(held, value=int(exact(bits) * 2**298), invalid=False))
    if held.kind in (Kind.F32_ARGMAX, Kind.I64_ARGMAX):
        return encode(replace(held, index=bits))
    return encode(replace(held, value=bits))
