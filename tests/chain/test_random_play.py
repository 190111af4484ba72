"""Random moves, legal and broken, have one fate in Python and in the contract."""

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from random import Random
from typing import Any

import pytest

from tests.chain.duel import NONCES, Duel, new_job, parties
from tests.chain.support import CLIENT, TRAINER
from tests.chain.tiny import EVERY, LATE, STEPS, WRITTEN, Liar, Run, late_logs, ordinary_element
from tests.parts import slow_except
from tests.protocol import runs as logged_runs
from tests.protocol.logged import SUMS, logged_job, random_logs
from tiebreak.protocol.chain import Chain, EmbeddedChain
from tiebreak.protocol.commitments.job import Job
from tiebreak.protocol.errors import EncodingError
from tiebreak.protocol.game.moves import Move, Side
from tiebreak.protocol.game.sides import Challenger, Oracle, Party


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
        if choice == 1:
            return (*thing, thing[-1])
        at = rng.randrange(len(thing))
        return (*thing[:at], break_something(thing[at], rng), *thing[at + 1 :])
    if is_dataclass(thing) and fields(thing):
        name = rng.choice([field.name for field in fields(thing)])
        return replace(thing, **{name: break_something(getattr(thing, name), rng)})  # type: ignore[type-var]
    return thing


def broken(move: Move, rng: Random) -> Move | None:
    """A changed move that can be made at all; None if none was found."""
    for _ in range(50):
        try:
            found: Move = break_something(move, rng)
        except EncodingError:
            continue  # the types refuse what no message can carry
        if found != move:
            return found
    return None


class RandomWalker(Challenger):
    """Where nothing differs it goes anywhere, also into padding."""

    rng: Random

    def pick(self, state: Any, nodes: Any) -> int:
        """Mostly the first difference, sometimes any."""
        return self.rng.randrange(len(nodes)) if self.rng.random() < 0.15 else super().pick(state, nodes)


def random_game(chain: Chain, seed: int, attempts: int) -> Duel:
    """A game of random runs and widths; before each move some broken ones and some from earlier are tried."""
    rng = Random(seed)
    job = new_job(EVERY, levels=rng.randrange(1, 6))
    honest = Run(EVERY, job)
    leaf, step = rng.randrange(len(EVERY.program.body)), rng.randrange(1, STEPS + 1)
    lies = rng.random() < 0.8 and ordinary_element(honest, step, leaf) is not None
    run = Liar(EVERY, job, step, leaf) if lies else honest
    return _random_duel(chain, run, honest, rng, attempts)


def random_logged_game(chain: Chain, seed: int, attempts: int) -> Duel:
    """The same of policy `logged`, with a random log; mostly about a sum of it."""
    rng = Random(seed)
    logs, job = random_logs(seed), logged_duel_job(levels=rng.randrange(1, 6), interval=rng.randrange(1, 4))
    honest = logged_runs.Run(job, logs=logs)
    leaf = rng.choice([*SUMS, *SUMS, *range(len(honest.program.body))])
    element = rng.randrange(honest.program.body[leaf].numel)
    lies, step = rng.random() < 0.8, rng.randrange(1, STEPS + 1)
    run = logged_runs.Liar(job, step, leaf, element, bend_from=rng.randrange(2), logs=logs) if lies else honest
    return _random_duel(chain, run, honest, rng, attempts)


def random_late_game(chain: Chain, seed: int, attempts: int) -> Duel:
    """The same with late data, mostly about them."""
    rng = Random(seed)
    logs, job = late_logs(seed), late_job(levels=rng.randrange(1, 6), interval=rng.randrange(1, 4))
    honest = logged_runs.Run(job, logs=logs, setting=LATE)
    leaf, step = rng.choice([WRITTEN, WRITTEN, *range(len(LATE.program.body))]), rng.randrange(1, STEPS + 1)
    run = logged_runs.Liar(job, step, leaf, logs=logs, setting=LATE) if rng.random() < 0.8 else honest
    return _random_duel(chain, run, honest, rng, attempts)


def late_job(**options: int) -> Job:
    """Nothing but late data is logged."""
    return over(LATE, **options)


def over(setting: logged_runs.Setting, **options: int) -> Job:
    """A job of policy `logged` without tolerances."""
    return _duel_job(logged_runs.make_job(setting=setting, tolerances=0, **options))


def logged_duel_job(**options: int) -> Job:
    return _duel_job(logged_job(**options))


def _duel_job(job: Job) -> Job:
    times = {"clock": 5000, "challenge_window": 20_000, "replay_time": 0}
    return replace(job, client=CLIENT.address, trainer=TRAINER.address, nonce=next(NONCES), **times)  # type: ignore[arg-type]


def _random_duel(chain: Chain, run: Oracle, honest: Oracle, rng: Random, attempts: int) -> Duel:
    duel = Duel(chain, run, head_count=run.job.checkpoints)
    players = parties(run, honest)
    walker = RandomWalker(honest, b"\x5e" * 32)
    walker.rng = rng
    players[Side.CHALLENGER] = walker
    last: Move | None = None
    seen: list[Move] = []
    while not duel.state.is_over:
        last = _turn(duel, players[duel.state.mover], last, seen, rng, attempts)
        seen.append(last)
    return duel


def _turn(duel: Duel, player: Party, last: Move | None, seen: list[Move], rng: Random, attempts: int) -> Move:
    """One accepted move, the player's or a broken one that was legal."""
    duel.wait()
    move = player.move(duel.state, last)
    # A defender's broken link ends the game, so it breaks rarely; a challenger's broken move is mostly refused.
    count = attempts if duel.state.mover is Side.CHALLENGER else int(rng.random() < 0.05)
    tried = [broken(move, rng) for _ in range(count)] + rng.sample(seen, min(len(seen), attempts // 2))
    for attempt in tried:
        if attempt is not None and duel.try_move(attempt):
            return attempt
    assert duel.try_move(move), duel.contract_refusal
    return move


GAMES = [(play, seed) for play in (random_game, random_logged_game, random_late_game) for seed in range(3)]


@pytest.mark.parametrize(("play", "seed"), slow_except(GAMES, GAMES[6], nightly=GAMES[2::3] + GAMES[1:2], several=True))
def test_contract_and_python_agree_on_random_moves(
    chain: EmbeddedChain, play: Callable[..., Duel], seed: int, cases: Callable[[int], None]
) -> None:
    duel = play(chain, seed, attempts=4)
    assert duel.state.is_over
    assert duel.accepted >= 1
    cases(duel.accepted + duel.refused)
