"""The moves that are planned are those that are played: kinds, bytes of messages, calldata, in order."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sim.yard import STEPS, Yard, any_cheat, sums_of
from tiebreak.protocol.chain.calls import move_call
from tiebreak.protocol.game.moves import OpenValues, Prove, Select
from tiebreak.protocol.game.rules import GameState, walk_moves
from tiebreak.protocol.program.isa import DType, Instruction, Opcode, SourceKind
from tiebreak.protocol.program.program import Program
from tiebreak.protocol.trees import depth_of
from tiebreak.sim.games.duel import Match
from tiebreak.sim.games.scenario import fight
from tiebreak.sim.scale.model import replayed_steps
from tiebreak.sim.scale.subjects import transformer_subject
from tiebreak.sim.scale.walks import Place, calldata_of, kind_of, moves_of, place_of, proof_kind, shape_of, wire_bytes


def assert_as_played(match: Match, program: Program) -> Place:
    """Every move of the plan is the move that was made, but for digests and data."""
    values = next(p.move for p in match.moves if isinstance(p.move, OpenValues))
    place = place_of(match.final, program, values.loss_bits)
    planned = moves_of(place)
    assert [p.move.KIND for p in planned] == [p.move.KIND for p in match.moves]
    assert [shape_of(p.move) for p in planned] == [shape_of(p.move) for p in match.moves]
    assert wire_bytes(planned) == [p.bytes for p in match.moves]
    for made, plan in zip(match.moves, planned, strict=True):
        assert len(calldata_of(plan, place)) == len(move_call(made.before, made.move).data)
        assert plan.kind == kind(made.before, made.move, match.final, program)
    return place


def kind(before: GameState, move: object, final: GameState, program: Program) -> str:
    if isinstance(move, Prove):
        return proof_kind(program.instruction_at(final.leaf))
    last = isinstance(move, Select) and before.height == before.levels
    return kind_of(move, before.level, first=before.height == before.depth, last=last)  # type: ignore[arg-type]


@pytest.mark.parametrize(("levels", "interval"), [(1, 3), (2, 1), (3, 8), (5, 3)])
def test_a_sum_walked_down_is_planned_exactly(yard: Yard, levels: int, interval: int) -> None:
    leaf = sums_of(yard.program, 12)[0]
    duel = yard.duel(any_cheat(yard.program, leaf, step=5, rng=random.Random(levels)), interval=interval, levels=levels)
    assert duel is not None
    place = assert_as_played(duel.match, yard.program)
    assert place.has_terms
    played = walk_moves(
        levels,
        run=depth_of(place.checkpoints),
        steps=depth_of(place.segment),
        values=place.half_depth + 1,
        chunks=place.chunk_depth,
        terms=place.term_depth,
    )
    assert len(duel.match.moves) == played


@pytest.mark.parametrize("step", [1, 5])
def test_every_kind_of_leaf_is_planned_exactly(yard: Yard, step: int) -> None:
    """Maps, reductions, sources and commits; what reads where the data say has as many openings as the data say."""
    rng, seen = random.Random(step), set()
    half = 1 << yard.program.half_depth
    data_dependent = (Opcode.GATHER, Opcode.SCATTER_SUM, Opcode.WINDOW)
    leaves = [*range(len(yard.program.body)), *range(half, half + len(yard.program.commits))]
    rng.shuffle(leaves)
    for leaf in leaves:
        instruction = yard.program.instruction_at(leaf)
        name = (instruction.opcode, instruction.function)
        if instruction.opcode in data_dependent or name in seen or _reads_only_data_dependent(instruction):
            continue
        duel = yard.duel(any_cheat(yard.program, leaf, step=step, rng=rng))
        if duel is None or not isinstance(duel.match.moves[-1].move, Prove):
            continue
        assert_as_played(duel.match, yard.program)
        seen.add(name)
        if len(seen) == 5:
            return
    raise AssertionError(f"expected leaves of five kinds, got {seen}")


def _reads_only_data_dependent(instruction: Instruction) -> bool:
    return instruction.opcode == Opcode.SOURCE and instruction.function == SourceKind.CONST


@given(
    levels=st.integers(1, 5),
    steps=st.integers(1, 10**7),
    interval=st.integers(1, 10**4),
    parameters=st.integers(10**6, 10**12),
)
@settings(max_examples=60, deadline=None)
def test_the_plan_of_any_size_has_as_many_moves_as_the_rules_say(
    levels: int, steps: int, interval: int, parameters: int
) -> None:
    interval = min(interval, steps)
    subject = transformer_subject(parameters, sequence=64, batch=2, steps=steps, interval=interval)
    place = subject.place(levels=levels, steps=steps, interval=interval)
    planned = moves_of(place)
    assert len(planned) == walk_moves(
        levels,
        run=depth_of(place.checkpoints),
        steps=depth_of(place.segment),
        values=place.half_depth + 1,
        chunks=place.chunk_depth,
        terms=place.term_depth,
    )
    assert max(wire_bytes(planned)) < 1 << 17
    assert place.target.dtype == DType.F32


@pytest.mark.parametrize(("offset", "interval"), [(5, 8), (2, 3)])
def test_steps_executed_again_are_counted(yard: Yard, offset: int, interval: int) -> None:
    leaf = sums_of(yard.program, 12)[0]
    step = offset if interval == STEPS else interval + offset
    arena, job = yard.arena(interval), yard.job(interval, 2)
    cheat = any_cheat(yard.program, leaf, step=step, rng=random.Random(1))
    fought = fight(arena, cheat, job, yard.fresh("steps").name)
    opened = len({o.value for o in yard.program.body[leaf].operands} | {leaf})
    expected = replayed_steps(gap=0, segment=interval, offset=offset, opened=opened)
    assert fought.replayed_steps == expected
