"""Games of policy `logged` in both machines: who follows the committed log never loses, who does not does."""

from functools import partial
from itertools import product

import pytest

from tests.chain.duel import Duel, parties, play
from tests.chain.support import moves_in
from tests.chain.test_random_play import logged_duel_job
from tests.parts import slow_except
from tests.protocol.logged import CHEATS, STEP, Misled, bits_of, exact_sum, find, random_logs
from tests.protocol.runs import Run, program
from tiebreak.protocol.chain import EmbeddedChain
from tiebreak.protocol.commitments.log_tree import NO_WORD
from tiebreak.protocol.game.moves import OpenChunk, OpenSteps, OpenValues, Side
from tiebreak.protocol.game.rules import Level, Reason
from tiebreak.protocol.game.sides import Oracle

LOGS, OTHER_LOGS = random_logs(1), random_logs(2)
PRODUCTS, PLAIN, SCATTER, MAP = 13, 14, 20, 24
"""Sums of 15, 4 and 9 terms: the second is judged at once. The third has three chunks, as the map has."""


PLACES = [(step, element) for step in (4, 3, 1) for element in (290, 140, 8, 5, 0)]
"""Steps and elements to lie about, where the sum is finite and not zero."""


def duel_about(chain: EmbeddedChain, defended: Oracle, nonce: int = 0) -> Duel:
    return Duel(chain, defended, head_count=defended.job.checkpoints, nonce=nonce)


def judged(duel: Duel) -> tuple[Side, Reason]:
    assert duel.state.verdict is not None
    return duel.state.verdict.winner, duel.state.verdict.reason


# ---------------------------------------------------------------- values

LEAVES_AND_INTERVALS = list(product((PRODUCTS, PLAIN, SCATTER, MAP), (1, 2, 5)))
EACH = {(PRODUCTS, 1), (PLAIN, 5), (SCATTER, 2), (MAP, 2)}
OTHERS = set(LEAVES_AND_INTERVALS) - EACH


@pytest.mark.parametrize(
    ("leaf", "interval"), slow_except(LEAVES_AND_INTERVALS, (SCATTER, 2), nightly=OTHERS, several=True)
)
def test_a_lie_in_a_logged_run_is_convicted(chain: EmbeddedChain, leaf: int, interval: int) -> None:
    """Segments of one step, of two (the last of one) and of five."""
    job = logged_duel_job(levels=5, interval=interval)
    honest = Run(job, logs=LOGS)
    step, element = next(place for place in PLACES if place[1] < program().body[leaf].numel
                         and (leaf == MAP or exact_sum(honest, place[0], leaf, place[1])))  # fmt: skip
    bits = bits_of(honest, step, leaf, element) + STEP
    liar = Misled(job, LOGS, step, leaf, element, bits, bent=leaf in (PRODUCTS, SCATTER))
    duel = duel_about(chain, liar)
    play(duel, parties(liar, honest))
    assert judged(duel) == (Side.CHALLENGER, Reason.RECOMPUTED)
    assert (duel.state.step, duel.state.leaf, duel.state.element) == (step, leaf, element)
    assert duel.state.level is (Level.TERMS if leaf in (PRODUCTS, SCATTER) else Level.CHUNKS)


DUEL_JOB = partial(logged_duel_job, levels=5)


LEAVES_AND_CHEATS = list(product((PRODUCTS, PLAIN, SCATTER), CHEATS))
EACH_WITH_ONE = set(zip((PRODUCTS, PLAIN, SCATTER), CHEATS, strict=True))


@pytest.mark.parametrize(
    ("leaf", "what"),
    slow_except(
        LEAVES_AND_CHEATS, (PLAIN, "off without an entry"), nightly={*LEAVES_AND_CHEATS} - EACH_WITH_ONE, several=True
    ),
)
def test_party_that_ignores_the_rounding_log_loses(chain: EmbeddedChain, leaf: int, what: str) -> None:
    """The partial sums are true. A long sum's last one does not give the claimed bits: there is nothing to show."""
    place = find(leaf, what, DUEL_JOB)
    liar, honest, code = place.misled(place.wrong), place.run, place.code
    # Who audits by such arithmetic and challenges the true run loses.
    duel = duel_about(chain, honest)
    play(duel, parties(honest, liar))
    assert judged(duel)[0] is Side.DEFENDER
    # Who trains by it does too.
    duel = duel_about(chain, liar, nonce=1)
    play(duel, parties(liar, honest))
    reason = Reason.RECOMPUTED if leaf == PLAIN else Reason.CONCEDED
    assert judged(duel) == (Side.CHALLENGER, reason)
    assert (duel.state.leaf, duel.state.direction) == (leaf, code)


# ---------------------------------------------------------------- logs


def test_opened_logs_appear_in_events_and_calldata(chain: EmbeddedChain) -> None:
    """The lie is in a chunk of the scattered sums that stands between two others."""
    job = logged_duel_job(levels=3)
    liar = Misled(job, LOGS, 4, SCATTER, 140, bits_of(Run(job, logs=LOGS), 4, SCATTER, 140) + STEP, bent=True)
    duel, players = duel_about(chain, liar), parties(liar, Run(job, logs=LOGS))
    while not duel.state.is_over:
        seen = moves_in(chain, duel.id, duel.last_block)
        duel.wait()
        assert duel.try_move(players[duel.state.mover].move(duel.state, seen[-1] if seen else None))
    moves = moves_in(chain, duel.id, duel.started.block)
    opened = [m for m in moves if isinstance(m, OpenSteps | OpenValues | OpenChunk)]
    expected = [duel.state.log_root, duel.state.step_log, duel.state.word]
    assert [m.log_root if isinstance(m, OpenSteps) else m.step_log if isinstance(m, OpenValues) else m.word
            for m in opened] == expected  # fmt: skip
    events = chain.events(duel.id, duel.started.block)
    assert [event.values["log"] for event in events if event.name == "LogOpened"] == expected
    assert duel.state.word != NO_WORD
