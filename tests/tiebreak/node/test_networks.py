"""Parties over networks that lose, delay, double and cut what they say, and over hubs that go away."""

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from tests.tiebreak.node import hubs
from tests.tiebreak.node.faults import proxy
from tests.tiebreak.node.test_up import said_twice
from tests.tiebreak.node.town import Town, town
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.game.moves import Side
from tiebreak.protocol.parties.board import JobStatus

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def the_liar_loses(there: Town, folder: Path) -> None:
    (game,) = there.drivers["auditor"].machine.board.games.values()
    assert game.job.status is JobStatus.SLASHED
    assert game.state.verdict is not None
    assert game.state.verdict.winner is Side.CHALLENGER
    assert not said_twice(folder)


def test_who_is_honest_wins_over_a_bad_network(tmp_path: Path) -> None:
    """Which lies before the hub, and before one of the two addresses of the node.

    The talk has 30 seconds; if it takes longer, the chain wants a clock of 150 between a seal and its proof.
    """
    with town(tmp_path) as there, proxy(there.hub_url, 1) as hub, proxy(there.chain_url, 2) as node:
        there.hub_url, there.chain_url = hub.url, f"{there.chain_url},{node.url}"
        there.join("client")
        there.join("trainer", cheat="rate")
        there.join("auditor")
        there.offer()
        there.live(lambda: all(any(job.is_over for job in driver.machine.jobs()) for driver in there.drivers.values()))
        the_liar_loses(there, tmp_path)
        faults = hub.faults + node.faults
        assert min(faults[fault] for fault in ("dropped", "delayed", "doubled", "reordered", "cut")) > 0, faults


@pytest.mark.parametrize("fate", ["emptied", "replaced"])
def test_a_hub_that_goes_away_in_the_middle_of_a_game(tmp_path: Path, fate: str) -> None:
    """An empty one comes back; for one with another key, parties are started again."""
    with town(tmp_path) as there, ExitStack() as stack:
        there.join("client")
        there.join("trainer", cheat="rate")
        auditor = there.join("auditor")
        job = there.offer()
        there.live(lambda: bool(auditor.machine.board.games))
        there.hub.stop()
        wanted = replace(there.hub_settings, folder=tmp_path / "other")
        if fate == "replaced":
            wanted = replace(wanted, key=PrivateKey.from_int(77))
        there.hub = stack.enter_context(hubs.running(wanted, int(there.hub_url.rsplit(":", 1)[1])))
        if fate == "replaced":
            for role in list(there.drivers):
                there.drivers.pop(role).close()
                there.join(role, **({"cheat": "rate"} if role == "trainer" else {}))
        there.end(job)
        letters, _ = there.drivers["client"].mail.page(0)  # type: ignore[attr-defined]
        senders = {letter.post.sender for letter in letters}
        assert senders == {there.keys[role].address for role in ("client", "trainer", "auditor")}
        the_liar_loses(there, tmp_path)
