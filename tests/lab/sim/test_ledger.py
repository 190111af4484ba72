"""Every adversary of the catalogue plays a whole game: no promise breaks, and it ends where it must.

Beside the contracts a ledger takes and refuses what they do, and the board is followed from its logs alone.
"""

from collections.abc import Callable

import pytest

from tests.lab.sim.adversaries.playing import HALF, RELIEF, convict, party
from tests.lab.sim.beside import whole
from tests.parts import slow_except
from tiebreak.lab.sim.adversaries.base import RECOMPUTED, Catch
from tiebreak.lab.sim.games.playing import CATALOGUE, MODULES
from tiebreak.lab.sim.world.game import TERMS

FAST = (
    "one false sum", "equivocation", "silence in the talk", "two ways in one talk",
    "state entered over moves on the chain", "garbage entered", "reorganised blocks",
)  # fmt: skip
"""Games that cover convictions, reports, states that enter, forks, proofs that enter and blocks."""
STAKE, REWARD, GAME = TERMS.trainer_stake, TERMS.reward, TERMS.challenger_stake
CONVICTED = {"trainer": -STAKE, "client": 0, "auditor": HALF}
COPIED = {**CONVICTED, "auditor": HALF - RELIEF}
REPORTED_BY_ITSELF = {"trainer": -STAKE, "puppet 1": HALF - RELIEF, "client": 0, "auditor": RELIEF}
WITHOUT_GROUND = {"challenger 1": -GAME, "trainer": REWARD + GAME // 2}
ABANDONED, COPIED_BY_THE_BUILDER = {"client": STAKE}, {**COPIED, "builder": RELIEF}
PAID = {"trainer": REWARD, "client": -REWARD}
FALSE = [name for name, kind in CATALOGUE.items() if kind.work is not None and kind.caught == RECOMPUTED]
PLAYED = (
    "one bit of a loss", "stale checkpoint", "bent partial sum", "log entry far from a tie", "drift by log entries",
)  # fmt: skip
"""False runs whose games differ in their lies alone: heads, commits, partial sums, logs."""
RARE = {*FALSE, *[name for name in CATALOGUE if name not in FALSE][::3]} - {*PLAYED}
"""Adversaries whose games only `make nightly` plays: all of them take too long for each change."""
GAINS: dict[str, dict[str, int]] = {
    **dict.fromkeys(FALSE, CONVICTED),
    **dict.fromkeys(["equivocation", "records rewritten", "lazy auditor", "silent auditor"], CONVICTED),
    **dict.fromkeys(["bribes all auditors but one", "trainer with a builder", "decoy in the mempool"], CONVICTED),
    **dict.fromkeys(["mirror", "mirror that seals late", "copying auditor", "sock puppets"], COPIED),
    **dict.fromkeys(["withheld heads", "heads at the last second, past the deadline"], ABANDONED),
    **dict.fromkeys(["malformed and malleable signatures", "heads beyond the run"], PAID),
    **dict.fromkeys(["cancels after acceptance", "two jobs with one nonce", "program that diverges"], PAID),
    **dict.fromkeys(["challenge by a wrong replay", "forged proof", "stalled challenge"], WITHOUT_GROUND),
    **dict.fromkeys(["front-run proof", "withheld proof"], COPIED_BY_THE_BUILDER),
    "front-run challenge": {"builder": -GAME, "auditor": HALF},
    "front-run report": {"builder": HALF, "auditor": 0, "trainer": -STAKE},
    "self-challenge to keep the stake": {"trainer": -STAKE, "puppet 1": HALF, "client": 0, "auditor": 0},
    "self-report to keep the stake": REPORTED_BY_ITSELF,
    "never withdraws": {"client": 0, "auditor": HALF},
    "trainer that copies another": {"trainer": REWARD, "second trainer": REWARD, "client": -2 * REWARD},
    "a challenge made dear for others": {"auditor": HALF},
}
"""Gains in wei, gas apart. The promises say what honest parties may lose by the others."""


@pytest.mark.parametrize("name", slow_except(CATALOGUE, *FAST, nightly=RARE))
def test_each_adversary_ends_alike_in_contract_ledger_and_event_logs(name: str, cases: Callable[[int], None]) -> None:
    game = whole(name)
    gains = GAINS.get(name, {})
    assert {who: party(game.result, who).wei for who in gains} == gains
    cases(1 + game.comparisons)  # of a job that is never signed the contracts hear nothing


@pytest.mark.parametrize("name", FALSE)
def test_a_false_run_is_convicted_at_its_first_lie(name: str) -> None:
    convict(name, 0)


def test_every_adversary_has_a_unique_name_and_known_endings() -> None:
    rows = [one for module in MODULES for one in module.ADVERSARIES]
    assert len(rows) == len(CATALOGUE) >= 135
    assert len(FALSE) == 45
    for one in rows:
        assert one.name == one.name.strip()
        assert len(one.gain) > 10
        assert set() < one.caught <= set(Catch)
