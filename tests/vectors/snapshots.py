"""Snapshots of games: snapshots.json."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from tests.protocol.logged import SUMS, logged_job, random_logs
from tests.protocol.runs import Liar, Run
from tests.protocol.walks import WALKS, Walk, walk
from tests.vectors.inputs import Stream
from tests.vectors.instructions import hex_of
from tiebreak.protocol.commitments.eip712 import Address, Domain
from tiebreak.protocol.commitments.job import Head, Job
from tiebreak.protocol.errors import InvalidSnapshot
from tiebreak.protocol.game.snapshot import SNAPSHOT_BYTES, Snapshot, Standing
from tiebreak.protocol.game.state import GameState
from tiebreak.protocol.packing import FieldType, Uint, camel_case
from tiebreak.protocol.tags import Digest

Json = dict[str, Any]
_OFFSETS: Final = {
    "phase": (0, 0, 10, 255),
    "level": (1, 5, 255),
    "height": (2, 65, 255),
    "fresh": (3, 2, 255),
    "element": (18, 1),
}
"""A byte's place in each field that is checked, and values that it has in no game."""


def logged_walk() -> Walk:
    job, logs = logged_job(), random_logs(1)
    return walk(Liar(job, 4, next(iter(SUMS)), logs=logs), Run(job, logs=logs))


def _played() -> Iterator[GameState]:
    """The states of two games, and of three more the one before the proof."""
    for states in (WALKS["terms"], logged_walk(), *(WALKS[name][-1:] for name in ("element", "commit", "data source"))):
        yield from (before for before, _, _ in states)


def changed(snapshot: bytes, at: int, value: bytes) -> bytes:
    return snapshot[:at] + value + snapshot[at + len(value) :]


def refusal(snapshot: bytes, job: Job, head: Head) -> InvalidSnapshot | None:
    """What a game against the head says to a snapshot that enters."""
    try:
        Snapshot.decode(snapshot).require_reachable(job, head)
    except InvalidSnapshot as error:
        return error
    return None


def _entered(start: GameState, states: Mapping[int, bytes], s: Stream) -> Json:
    """States of one job's games, by their numbers as cases, each with every field changed: what then enters."""
    job, head = start.job, start.head
    changes = []
    for number, state in states.items():
        at = 0
        for kind in Snapshot.kinds().values():
            size = min(8, kind.bits // 8) if isinstance(kind, Uint) else 8  # of a digest its beginning is changed
            top, old = 8 * size, int.from_bytes(state[at : at + size], "big")
            drawn = (0, 1, 2, 4, old + 1, old - 1, old ^ 1, s.bits(8), s.bits(8) << top - 8, (1 << top) - 1)
            value = drawn[s.below(len(drawn))] % (1 << top)
            if value != old:
                new = value.to_bytes(size, "big")
                error = refusal(changed(state, at, new), job, head)
                answer = 255 if error is None else error.offset
                changes.append(bytes([number, at, size, answer]) + new.ljust(8, b"\0"))
            at += kind.bits // 8 if isinstance(kind, Uint) else 32
    return {**trees_of(job, head), "states": list(states), "changes": hex_of(b"".join(changes))}


def trees_of(job: Job, head: Head) -> Json:
    """The numbers that say what snapshots a game takes."""
    return {
        "steps": job.steps, "checkpointInterval": job.checkpoint_interval, "descentLevels": job.descent_levels,
        "policy": int(job.is_logged), "depth": job.half_depth, "bodyCount": job.body_count,
        "stateCount": job.state_count, "count": head.count,
    }  # fmt: skip


def _drawn(s: Stream) -> Iterator[Snapshot]:
    """All fields at one end of their ranges, then at the other, then drawn: no two fields are alike."""

    def ends(kind: FieldType) -> tuple[Any, Any]:
        if not isinstance(kind, Uint):
            return bytes(32), b"\xff" * 32
        return int(kind.low), (1 << kind.bits) - 1 if kind.high is None else int(kind.high)

    def drawn(kind: FieldType) -> int | bytes:
        if not isinstance(kind, Uint):
            return s.data(32)
        low, high = ends(kind)
        return s.bits(kind.bits) if high >> kind.bits - 1 else int(low) + s.below(high - low + 1)

    kinds = Snapshot.kinds()
    for end in (0, 1):
        yield Snapshot(**{name: ends(kind)[end] for name, kind in kinds.items()})
    for _ in range(8):
        fields: dict[str, Any] = {name: drawn(kind) for name, kind in kinds.items()}
        yield Snapshot(**fields)


def _refused(encoded: bytes) -> Iterator[bytes]:
    yield from (b"", encoded[:-1], encoded + b"\0", bytes(SNAPSHOT_BYTES))
    for at, *values in _OFFSETS.values():
        yield from (encoded[:at] + bytes([value]) + encoded[at + 1 :] for value in values)


def _signed(found: Snapshot, s: Stream) -> Json:
    domain = Domain(chain_id=31337, contract=Address(s.data(20)))
    standing = Standing(game_id=Digest(s.data(32)), sequence=17, snapshot=found.id)
    place = {"chainId": domain.chain_id, "contract": hex_of(domain.contract)}
    return {**place, **standing.to_json(), "digest": hex_of(standing.digest(domain))}


def snapshots() -> Json:
    s = Stream("snapshots")
    states = list(_played())
    played = [Snapshot.of(state) for state in states]
    by_job: dict[Job, dict[int, bytes]] = {}
    for number, state in enumerate(states):
        by_job.setdefault(state.job, {})[number] = played[number].encode()
    found = [*played, *_drawn(s)]
    cases = [
        {
            # Numbers are JSON numbers below 2^53 and decimal strings above, whatever their width.
            **{camel_case(n): hex_of(v) if isinstance(v, bytes) else v if v < 1 << 53 else str(v) for n, v in fields},
            "encoded": hex_of(case.encode()),
            "id": hex_of(case.id),
        }
        for case in found
        for fields in [list(zip(case.kinds(), case.values, strict=True))]
    ]
    return {
        "count": len(cases),
        "cases": cases,
        "refused": [hex_of(data) for data in _refused(played[0].encode())],
        "signed": _signed(played[0], s),
        "entered": [_entered(start, by_job[start.job], s) for start in (WALKS["terms"][0][0], logged_walk()[0][0])],
    }
