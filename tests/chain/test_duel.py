"""The game in Python and in the contract, move by move: honest and lying parties, random and broken moves, clocks."""

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from random import Random
from typing import Any

import pytest

from protocol import player
from protocol.chain import EmbeddedChain
from protocol.game import Level, Reason
from protocol.moves import Move, Phase, Prove, Side
from tests.chain.duel import Duel
from tests.chain.support import CHALLENGER, TRAINER
from tests.chain.tiny import (
    LOSS,
    NEXT,
    RATE,
    SCALED,
    STEP,
    UPDATED,
    Lie,
    N,
    Party,
    Run,
    RunOracle,
    W,
    X,
    lie_about_state,
    lie_about_value,
)

HONEST = Run()

LIES: dict[str, tuple[Lie, Level, int]] = {
    "state of another step": (lie_about_value(3, W, 5), Level.VALUES, W),
    "state in the first step": (lie_about_value(1, W, 6), Level.VALUES, W),
    "state of the step before": (lie_about_value(4, N, 0), Level.VALUES, N),
    "poisoned data": (lie_about_value(2, X, 1102), Level.VALUES, X),
    "step number": (lie_about_value(5, STEP, 0), Level.VALUES, STEP),
    "learning rate": (lie_about_value(1, RATE, 0), Level.VALUES, RATE),
    "integer addition": (lie_about_value(1, NEXT, 0), Level.CHUNKS, NEXT),
    "product": (lie_about_value(3, SCALED, 1102), Level.CHUNKS, SCALED),
    "difference": (lie_about_value(4, UPDATED, 4), Level.CHUNKS, UPDATED),
    "loss, by one ulp": (lie_about_value(2, LOSS, 0), Level.TERMS, LOSS),
    "a weight in a checkpoint": (lie_about_state(4, "w", 8), Level.VALUES, 17),
    "a counter after the last step": (lie_about_state(5, "n", 0), Level.VALUES, 16),
}
"""What is wrong, the level at which the game ends, and the leaf of the value tree."""


def play(duel: Duel, defender: Party, challenger: Party, rng: Random | None = None) -> None:
    """Both sides play to the end; a challenger with no difference to show picks at random."""
    last: Move | None = None
    while not duel.state.is_over:
        otherwise = rng.randrange(32) if rng else 0
        state = duel.state
        turn = state.mover is Side.DEFENDER
        last = defender.defend(state) if turn else challenger.challenge(state, last, otherwise)
        assert duel.try_move(last)


@pytest.mark.parametrize("name", LIES)
def test_a_lie_loses_and_pays_the_challenger(chain: EmbeddedChain, name: str) -> None:
    lie, level, leaf = LIES[name]
    run = Run(lie=lie)
    duel = Duel(chain, run, descent_levels=1 + sorted(LIES).index(name) % 5)
    before = chain.credit(CHALLENGER.address)
    play(duel, Party(run, 3), Party(HONEST, 3))
    verdict = duel.state.verdict
    assert verdict is not None
    assert (verdict.winner, verdict.reason) == (Side.CHALLENGER, Reason.RECOMPUTED)
    assert (duel.state.level, duel.state.leaf) == (level, leaf)
    paid = duel.job.challenger_stake + duel.job.trainer_stake // 2
    assert chain.credit(CHALLENGER.address) - before == paid


@pytest.mark.parametrize("name", list(LIES)[::2])
def test_a_false_challenge_loses_its_stake(chain: EmbeddedChain, name: str) -> None:
    """The challenger is the one whose run is wrong."""
    lie, _, _ = LIES[name]
    duel = Duel(chain, HONEST, descent_levels=1 + sorted(LIES).index(name) % 5)
    before = chain.credit(TRAINER.address)
    play(duel, Party(HONEST, 3), Party(Run(lie=lie), 3))
    verdict = duel.state.verdict
    assert verdict is not None
    assert verdict.winner is Side.DEFENDER
    assert chain.credit(TRAINER.address) - before == duel.job.challenger_stake


@pytest.mark.parametrize("name", list(LIES)[1::2])
def test_the_projects_players_play_on_the_chain(chain: EmbeddedChain, name: str) -> None:
    """`protocol.player` against a lie; each side learns the other's moves from the chain alone."""
    run = Run(lie=LIES[name][0])
    duel = Duel(chain, run, descent_levels=4)
    parties: dict[Side, player.Party] = {
        Side.DEFENDER: player.Defender(RunOracle(run, duel.job)),
        Side.CHALLENGER: player.Challenger(RunOracle(HONEST, duel.job)),
    }
    while not duel.state.is_over:
        seen = chain.moves(duel.id, duel.last_block)
        assert duel.try_move(parties[duel.state.mover].move(duel.state, seen[-1] if seen else None))
    assert duel.state.verdict is not None
    assert duel.state.verdict.winner is Side.CHALLENGER


def test_a_challenge_without_any_difference_loses(chain: EmbeddedChain, cases: Callable[..., None]) -> None:
    """Random walks through an honest run, so also into padding, at several widths and head counts."""
    rng = Random(2)
    for width in (1, 2, 3, 5):
        head_count = rng.randrange(1, 4)
        duel = Duel(chain, HONEST, descent_levels=width, head_count=head_count)
        play(duel, Party(HONEST, head_count), Party(HONEST, head_count), rng)
        assert duel.state.verdict is not None
        assert duel.state.verdict.winner is Side.DEFENDER
        cases()


# ---------------------------------------------------------------- broken moves


def break_something(thing: Any, rng: Random) -> Any:
    """A copy with one thing changed, somewhere: a bit, a length, a number. It may still be well-formed."""
    if isinstance(thing, bytes):
        if thing and rng.random() < 0.8:
            at = rng.randrange(len(thing))
            return thing[:at] + bytes([thing[at] ^ 1 << rng.randrange(8)]) + thing[at + 1 :]
        # Digests have their length from their type, so only other bytes can be cut or grow.
        return thing if len(thing) == 32 else thing[:-1] if rng.random() < 0.5 else thing + b"\x00"
    if isinstance(thing, int):
        return max(0, thing + rng.choice((-1, 1, 2)))
    if isinstance(thing, tuple):
        choice = rng.randrange(4)
        if not thing or choice == 0:
            return thing[:-1]
        if choice == 1 and isinstance(thing[-1], bytes):
            return (*thing, thing[-1])
        at = rng.randrange(len(thing))
        return (*thing[:at], break_something(thing[at], rng), *thing[at + 1 :])
    if is_dataclass(thing):
        names = [field.name for field in fields(thing)]
        name = rng.choice(names)
        return replace(thing, **{name: break_something(getattr(thing, name), rng)})  # type: ignore[type-var]
    return thing


def broken(move: Move, rng: Random) -> Move:
    """A changed move that can be made at all."""
    while True:
        try:
            found: Move = break_something(move, rng)
        except ValueError:
            continue
        except Exception as error:
            # The types refuse what no message can carry.
            if type(error).__name__ != "EncodingError":
                raise
            continue
        if found != move:
            return found


@pytest.mark.parametrize("seed", range(6))
def test_broken_moves_have_one_fate(chain: EmbeddedChain, seed: int, cases: Callable[..., None]) -> None:
    """A lying or honest defender against random and broken moves: the same refusals, states and verdicts."""
    rng = Random(seed)
    lies = [None, *LIES.values()]
    chosen = lies[rng.randrange(len(lies))]
    run = HONEST if chosen is None else Run(lie=chosen[0])
    duel = Duel(chain, run, descent_levels=rng.randrange(1, 6))
    defender, challenger = Party(run, 3), Party(HONEST, 3)
    last: Move | None = None
    seen: list[Move] = []
    while not duel.state.is_over:
        state = duel.state
        turn = state.mover is Side.DEFENDER
        move = defender.defend(state) if turn else challenger.challenge(state, last, rng.randrange(32))
        # A defender's broken link ends the game, so it breaks rarely; a challenger's broken move is mostly refused.
        attempts = [broken(move, rng) for _ in range(3)] if not turn or rng.random() < 0.04 else []
        attempts += rng.sample(seen, min(len(seen), 2))
        for attempt in attempts:
            cases()
            if duel.try_move(attempt):
                last = attempt
                break
        else:
            assert duel.try_move(move)
            last = move
        seen.append(move)
    assert duel.state.verdict is not None


@pytest.mark.parametrize("name", LIES)
def test_broken_proofs_have_one_fate(chain: EmbeddedChain, name: str, cases: Callable[..., None]) -> None:
    """The last move carries the most: many broken ones against each kind of leaf, then the right one."""
    lie, _, _ = LIES[name]
    rng = Random(name)
    run = Run(lie=lie)
    duel = Duel(chain, run, descent_levels=5)
    defender, challenger = Party(run, 3), Party(HONEST, 3)
    last: Move | None = None
    while duel.state.phase is not Phase.PROVE:
        state = duel.state
        last = defender.defend(state) if state.mover is Side.DEFENDER else challenger.challenge(state, last)
        assert duel.try_move(last)
    proof = challenger.challenge(duel.state, last)
    assert isinstance(proof, Prove)
    for _ in range(12):
        cases()
        if duel.try_move(broken(proof, rng)):
            return
    assert duel.try_move(proof)


# ---------------------------------------------------------------- clocks


@pytest.mark.parametrize("moves", [0, 1, 4])
def test_both_clocks_run_the_same(chain: EmbeddedChain, moves: int) -> None:
    """After some moves of some seconds each: t-1 and t are in time, t+1 is not, for either side."""
    duel = Duel(chain, HONEST, descent_levels=2)
    party = Party(HONEST, 3)
    last: Move | None = None
    for _ in range(moves):
        chain.advance(37)
        state = duel.state
        last = party.defend(state) if state.mover is Side.DEFENDER else party.challenge(state, last)
        assert duel.try_move(last)
    state = duel.state
    defends = state.mover is Side.DEFENDER
    rest = state.defender_rest if defends else state.challenger_rest
    move = party.defend(state) if defends else party.challenge(state, last)
    for moment in (state.last + rest - 1, state.last + rest):
        chain.travel_to(moment)
        assert not duel.try_timeout()
    chain.travel_to(state.last + rest + 1)
    assert not duel.try_move(move)
    assert duel.try_timeout()
    assert duel.state.verdict is not None
    assert duel.state.verdict.winner is state.mover.other


def test_the_last_second_is_in_time(chain: EmbeddedChain) -> None:
    duel = Duel(chain, HONEST, descent_levels=1)
    party = Party(HONEST, 3)
    chain.travel_to(duel.state.last + duel.state.defender_rest)
    assert duel.try_move(party.defend(duel.state))
    assert duel.state.defender_rest == 0


# ---------------------------------------------------------------- gas


def test_a_step_of_the_walk_stays_under_its_gas_bar(chain: EmbeddedChain, cases: Callable[..., None]) -> None:
    """65,000 gas a move of the binary game: the low end of the best published dispute game."""
    run = Run(lie=LIES["loss, by one ulp"][0])
    duel = Duel(chain, run, descent_levels=1)
    play(duel, Party(run, 3), Party(HONEST, 3))
    for phase in (Phase.DESCEND, Phase.SELECT):
        assert len(duel.gas[phase]) > 10
        assert max(duel.gas[phase]) <= 65_000
        cases(len(duel.gas[phase]))
