"""Random moves, legal and broken, have one fate in Python and in the contract."""

from collections.abc import Callable

import pytest

from tests.chain.duel import Duel
from tests.chain.random_play import random_game, random_logged_game
from tests.parts import slow_except
from tiebreak.protocol.chain import EmbeddedChain

GAMES = [(play, seed) for play in (random_game, random_logged_game) for seed in range(4)]


@pytest.mark.parametrize(("play", "seed"), slow_except(GAMES, GAMES[0], GAMES[4], several=True))
def test_random_moves_have_one_fate(
    chain: EmbeddedChain, play: Callable[..., Duel], seed: int, cases: Callable[[int], None]
) -> None:
    duel = play(chain, seed, attempts=4)
    assert duel.state.is_over
    assert duel.accepted >= 1
    cases(duel.accepted + duel.refused)
