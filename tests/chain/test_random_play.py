"""Thousands of random moves, legal and broken, have one fate in Python and in the contract (the rest: test_anvil)."""

from collections.abc import Callable

import pytest

from tests.chain.random_play import random_game, random_logged_game
from tests.parts import slow_except
from tiebreak.protocol.chain import EmbeddedChain


@pytest.mark.parametrize("seed", slow_except(range(4), 0))
def test_random_moves_have_one_fate(chain: EmbeddedChain, seed: int, cases: Callable[..., None]) -> None:
    duel = random_game(chain, seed, attempts=4)
    assert duel.state.is_over
    assert duel.accepted >= 1
    cases(duel.accepted + duel.refused)


@pytest.mark.parametrize("seed", slow_except(range(4), 0))
def test_random_moves_of_logged_jobs_have_one_fate(chain: EmbeddedChain, seed: int, cases: Callable[..., None]) -> None:
    duel = random_logged_game(chain, seed, attempts=4)
    assert duel.state.is_over
    assert duel.accepted >= 1
    cases(duel.accepted + duel.refused)
