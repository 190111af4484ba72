"""Late data (SPEC section 5.2): programs, a run, what is no log of it, and proofs of a source in a game: late.json."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import Any, Final

from conformance.run import ReferenceRun, lines
from tests.protocol.instructions import committed, const, gathered, mapped, reduced, source, whole
from tests.protocol.logged import entries, plain
from tests.protocol.runs import Liar, Logs, Run, Setting, make_job
from tests.protocol.walks import walk
from tests.vectors.inputs import Stream
from tests.vectors.instructions import hex_of
from tests.vectors.snapshots import trees_of
from tiebreak.protocol.commitments.log_tree import LogTree
from tiebreak.protocol.errors import IllegalMove, VerificationError
from tiebreak.protocol.game import rules
from tiebreak.protocol.game.moves import Prove, TensorWitness
from tiebreak.protocol.game.snapshot import Snapshot
from tiebreak.protocol.game.state import GameState
from tiebreak.protocol.numbers.float32 import INF, NAN_BITS, SIGN
from tiebreak.protocol.program.isa import Access, DType, Instruction, MapFunction, SourceConst, SourceKind
from tiebreak.protocol.program.program import Program
from tiebreak.protocol.program.reference import pack
from tiebreak.protocol.program.rounding import Direction, StepLog, SumKind, pack_tolerances

Json = dict[str, Any]
F32, I64, BOOL = DType.F32, DType.I64, DType.BOOL
LENGTH: Final = 130
"""Elements of the longest tensor: two chunks, the second not full."""
STEPS, INTERVAL, PRECISION = 3, 2, 16
TOLERANCES: Final = pack_tolerances({SumKind.PLAIN: 2})
WRITTEN, KEEP, IDS, LOSS = 1, 3, 4, 8
LATE, DATA, STATE = SourceKind.LATE, SourceKind.DATA, SourceKind.STATE


@cache
def program() -> Program:
    """Late data of each dtype, not in slot order; one has the name of a state entry, one two chunks."""
    shape, one = (LENGTH,), (1,)
    body = (
        source(STATE, "w", F32, LENGTH),
        source(LATE, "w", F32, LENGTH, slot=2),
        source(DATA, "rate", F32),
        source(LATE, "keep", BOOL, LENGTH, slot=1),
        source(LATE, "ids", I64, 3),
        mapped(MapFunction.WHERE, F32, shape, whole(3, shape), whole(1, shape), whole(0, shape)),
        mapped(MapFunction.MUL, F32, shape, whole(5, shape), Access(2, 0, (0,))),
        gathered(F32, (3,), Access(6, 0, (0,)), Access(4, 0, one), stride=1, bound=LENGTH),
        reduced(F32, (), (3,), Access(7, 0, one)),
    )
    found = Program(body, (committed("w", F32, shape, 6),))
    found.validate()
    return found


def _floats(s: Stream) -> bytes:
    return pack(F32, [s.f32(120, 130) for _ in range(LENGTH)])


def setting() -> Setting:
    s = Stream("state of late data")
    return Setting("late", program(), {"w": _floats(s)}, {"rate": pack(F32, [0x3F7F1234])})


def drawn(step: int) -> dict[str, bytes]:
    """Late data of a step, without infinities and NaN."""
    s = Stream(f"late data of step {step}")
    kept, ids = bytes(s.bits(1) for _ in range(LENGTH)), pack(I64, [2 + s.below(126) for _ in range(3)])
    return {"ids": ids, "keep": kept, "w": _floats(s)}


@cache
def logs() -> tuple[StepLog, ...]:
    """Of each step: late data with special numbers at their ends, among them a NaN of other bits.

    The last step has no entry and an index out of bounds.
    """
    found = []
    for step in range(STEPS):
        late, special = drawn(step), pack(F32, (0xFF800001, NAN_BITS, INF, SIGN)[step : step + 2])
        late["w"] = special + late["w"][16:] + special
        if step == STEPS - 1:
            late["ids"] = pack(I64, [LENGTH, -1, 64])
        sums = {} if step == STEPS - 1 else {LOSS: entries({0: (Direction.UP, Direction.DOWN)[step]})}
        found.append(StepLog(sums, late))
    return tuple(found)


def _program(*body: Instruction) -> Program:
    return Program((*body, const(0)), (committed("w", F32, (), len(body)),))


def _programs() -> Iterator[tuple[str, Program]]:
    """Every rule on sources of late data: kept, and broken."""
    first, second = source(LATE, "a", F32, 2), source(LATE, "b", BOOL, slot=1)
    yield "late data alone", _program(first)
    yield "slots in another order than sources", _program(second, first)
    yield "slots of data and of late data", _program(source(DATA, "b", I64), source(LATE, "a", I64))
    yield "a name of the state", _program(source(STATE, "w", F32), source(LATE, "w", I64, 3))
    yield "a slot twice", _program(first, first)
    yield "two names in a slot", _program(first, replace(second, params=replace(first.params, name="b")))  # type: ignore[type-var]
    yield "no slot 0", _program(second)
    yield "slots with a gap", _program(first, source(LATE, "b", BOOL, slot=2))
    yield "a slot beyond all", _program(first, source(LATE, "b", BOOL, slot=(1 << 32) - 1))
    yield "names descending", _program(source(LATE, "b", F32), source(LATE, "a", F32, slot=1))
    yield "a name in two slots", _program(first, source(LATE, "a", BOOL, slot=1))
    yield "a name of data", _program(source(DATA, "a", F32, 2), first)
    yield "a later name of data", _program(source(DATA, "b", F32), first, second)
    yield "an operand", _program(first, replace(second, shape=(2,), dtype=F32, operands=(whole(0, (2,)),)))
    yield "reduction dims", _program(replace(first, reduction=(2,)))
    yield "a constant's parameters", _program(replace(first, params=SourceConst(bits=0)))
    yield "no parameters", _program(replace(first, params=None))
    yield "a function beyond", _program(replace(first, function=5))


def _root(encoded: bytes) -> str | None:
    try:
        return hex_of(Program.decode(encoded).root)
    except VerificationError:
        return None


def _refused() -> Iterator[tuple[str, bytes]]:
    good = plain(TOLERANCES, logs())
    first, *others = logs()

    def changed(**late: bytes) -> bytes:
        return plain(TOLERANCES, [replace(first, late=dict(first.late) | late), *others])

    yield "a byte short", good[:-1]
    yield "a byte more", good + b"\0"
    yield "no late data", plain(TOLERANCES, [StepLog(log.entries) for log in logs()])
    yield "a bool of 2", changed(keep=bytes(LENGTH - 1) + b"\2")
    yield "a bool of 255", changed(keep=b"\xff" + bytes(LENGTH - 1))


def _ends() -> Iterator[tuple[GameState, Prove]]:
    """Proofs about heads that have other late data than their logs, and of right heads at the same places."""
    held = Logs(dict(enumerate(logs(), 1)), program())
    job = make_job(setting=setting(), steps=STEPS, interval=INTERVAL, precision=PRECISION, tolerances=TOLERANCES)
    for value in (WRITTEN, IDS):
        liar, honest = Liar(job, 2, value, logs=held, setting=setting()), Run(job, logs=held, setting=setting())
        state, proof, _ = walk(liar, honest)[-1]
        assert isinstance(proof, Prove)
        yield from ((state, proof), (replace(state, node=honest.log_tree(2).late[value]), proof))


def _proofs() -> Iterator[tuple[GameState, Json]]:
    first, second, _ = (LogTree(program(), log) for log in logs())
    for state, proof in _ends():
        right, path = second.late[state.leaf], tuple(second.above(state.leaf))
        witnesses = {
            "right": (right, path),
            "the defender's own": (state.node, path),
            "of another source": (second.late[KEEP], tuple(second.above(KEEP))),
            "of another step": (first.late[state.leaf], tuple(first.above(state.leaf))),
            "siblings in another order": (right, path[::-1]),
            "a sibling short": (right, path[:-1]),
            "a sibling more": (right, (*path, path[0])),
        }
        for name, (tensor_id, siblings) in witnesses.items():
            move = replace(proof, witness=TensorWitness(tensor_id=tensor_id, siblings=siblings))
            verdict = None
            with suppress(IllegalMove):
                verdict = rules.apply(state, move, state.earliest).verdict
            winner = None if verdict is None else verdict.winner.name.lower()
            place = {"name": name, "snapshot": hex_of(Snapshot.of(state).encode())}
            shown = {"tensorId": hex_of(tensor_id), "siblings": hex_of(b"".join(siblings)), "winner": winner}
            yield state, place | shown


def late() -> Json:
    """Programs, a run of three steps, what is no log of it, and proofs."""
    run = ReferenceRun(
        program=program(), state=setting().start, data=setting().data, precision=PRECISION, tolerances=TOLERANCES,
        logs=logs(),
    )  # fmt: skip
    trees = [LogTree(program(), log) for log in logs()]
    proofs = list(_proofs())
    state, _ = proofs[0]
    return {
        "programs": [
            {"name": name, "program": hex_of(found.encode()), "root": _root(found.encode())}
            for name, found in _programs()
        ],
        "program": hex_of(program().encode()),
        "precision": PRECISION,
        "checkpointInterval": INTERVAL,
        "state": {name: hex_of(data) for name, data in run.state.items()},
        "data": {name: hex_of(data) for name, data in run.data.items()},
        "logs": hex_of(plain(TOLERANCES, logs())),
        "lines": (printed := list(lines(run, STEPS, INTERVAL))),
        "runRoot": "0x" + printed[-1].removeprefix("run "),
        "stepLogs": [hex_of(tree.root) for tree in trees],
        "openings": [
            {"step": step, "value": value, "tensorId": hex_of(found), "siblings": hex_of(b"".join(tree.above(value)))}
            for step, tree in enumerate(trees, 1)
            for value, found in tree.late.items()
        ],
        "refused": [{"name": name, "logs": hex_of(data)} for name, data in _refused()],
        "game": trees_of(state.job, state.head) | {"proofs": [proof for _, proof in proofs]},
    }
