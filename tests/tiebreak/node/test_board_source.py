"""Parties that follow a chain by themselves, before nodes that are away, behind, or lie, and blocks that vanish."""

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from tests.protocol.runs import CHALLENGER, CLIENT, TRAINER
from tests.protocol.town import FALSE, TALKED_FALSE, TRUTH
from tests.tiebreak.node.village import Faulty, Village, Villager, game_of, new_village_chain
from tiebreak.node.board_source import ChainSource
from tiebreak.protocol.chain import Chain, EmbeddedChain, NodeError, Reverted
from tiebreak.protocol.chain.node import NodePool
from tiebreak.protocol.chain.outbox import LOOKS
from tiebreak.protocol.game.moves import Side
from tiebreak.protocol.game.state import Reason
from tiebreak.protocol.parties import events as e
from tiebreak.protocol.parties.board import JobStatus


@pytest.fixture
def chain() -> EmbeddedChain:
    return new_village_chain()


def as_the_chain_has_it(village: Village) -> None:
    for villager in village.villagers.values():
        board = villager.board_source.board
        assert board.disagreements == []
        for job in board.jobs.values():
            theirs = village.chain.job_state(job.id)
            assert (theirs.status, theirs.head_count) == (job.status, job.head_count)
        for game in board.games.values():
            assert village.chain.game_state(game.id).sequence == game.state.moves or game.is_over
        for key in (CLIENT, TRAINER, CHALLENGER):
            assert village.chain.credit(key.address) == board.credit(key.address)


def ends_in_conviction(village: Village, *reasons: Reason) -> None:
    """Everybody sees the conviction, and so does the chain."""
    as_the_chain_has_it(village)
    for villager in village.villagers.values():
        game = game_of(villager)
        assert game.job.status is JobStatus.SLASHED
        assert game.state.verdict is not None
        assert game.state.verdict.winner is Side.CHALLENGER
        assert game.state.verdict.reason in (Reason.RECOMPUTED, *reasons)


def test_a_false_run_is_convicted(chain: EmbeddedChain) -> None:
    """In talk; slow tests below play without one."""
    village = Village(chain, TALKED_FALSE)
    village.live()
    ends_in_conviction(village)


# ---------------------------------------------------------------- nodes that fail


def unreliable(villager: Villager, rng: Random) -> Callable[[str, tuple[Any, ...]], Any]:
    """A node that is away, behind, silent about logs and receipts, or wrong about how much an account has sent."""
    node = villager.village.chain.node

    def fault(name: str, args: tuple[Any, ...]) -> Any:
        luck = rng.random()
        if luck < 0.1:
            villager.node.failed += 1
            raise NodeError("away")
        if name == "logs" and luck < 0.3:
            return list
        if name == "newest" and luck < 0.3:
            older = node.block(max(0, node.newest().number - rng.randint(1, 5)))
            return lambda: older
        if name == "count" and luck < 0.5:
            return lambda: rng.choice([0, 3, 50])
        if name == "receipt" and luck < 0.3:
            return lambda: None
        return None

    return fault


@pytest.mark.slow
def test_faulty_nodes_only_delay_a_conviction(chain: EmbeddedChain) -> None:
    village, rng = Village(chain, FALSE), Random(1)
    for villager in village.villagers.values():
        villager.node.fault = unreliable(villager, rng)
        villager.clock = rng.randint(-300, 300)
    village.live()
    asked, failed = (sum(getattr(v.node, name) for v in village.villagers.values()) for name in ("asked", "failed"))
    assert failed > max(20, asked // 20)
    ends_in_conviction(village, Reason.TIMEOUT)  # of the liar, whose node fails as well


@pytest.mark.slow
def test_one_honest_node_of_several_suffices(chain: EmbeddedChain) -> None:
    """One is away, and one always says what was the newest block long ago, knows no logs, and keeps transactions."""
    village = Village(chain, FALSE)
    stale = chain.node.newest()

    def away() -> Any:
        raise NodeError("away")

    def lie(name: str, _: tuple[Any, ...]) -> Any:
        lies = {"newest": stale, "logs": [], "receipt": None, "count": 50, "broadcast": ""}
        return (lambda: lies[name]) if name in lies else None

    for villager in village.villagers.values():
        liar: Any = Faulty(chain.node, lie)
        several: Any = NodePool([away, lambda liar=liar: liar, lambda: chain.node])
        villager.board_source._node._node = several
    village.live()
    ends_in_conviction(village)


@pytest.mark.slow
@pytest.mark.parametrize("proves", [True, False], ids=["receipts shown", "receipts withheld too"])
def test_persistently_withheld_logs_are_detected_from_block_headers(chain: EmbeddedChain, proves: bool) -> None:
    """Their block's header says that it may hold some. Receipts under it show all; without them the party alarms."""
    village = Village(chain, FALSE)
    auditor, hidden = village.villagers["auditor"], list[int]()

    def withhold(name: str, args: tuple[Any, ...]) -> Any:
        if name == "logs":
            said = chain.node.logs(*args)
            if not hidden and said and auditor.board_source.board.jobs:
                hidden.append(int(said[-1]["blockNumber"]))
            return lambda: [log for log in said if int(log["blockNumber"]) not in hidden]
        if name == "logs_under" and not proves:
            if hidden and args[0].number not in hidden:
                return None
            raise NodeError("no receipts")
        return None

    auditor.node.fault = withhold
    if proves:
        hidden += range(1, 10_000)  # it shows no logs at all
        village.live()
        ends_in_conviction(village)
        assert not auditor.board_source.light_client.withheld
        return
    for _ in village.rounds():
        if auditor.board_source.light_client.withheld.get((hidden or [0])[0], 0) >= LOOKS:
            break
    assert list(auditor.board_source.light_client.withheld) == hidden
    auditor.node.fault = lambda *_: None
    village.live()
    as_the_chain_has_it(village)
    assert not auditor.board_source.light_client.withheld


@pytest.mark.slow
def test_logs_stay_unproven_without_verifiable_headers(chain: EmbeddedChain) -> None:
    """Then logs are believed, as far as they go."""
    village = Village(chain, TRUTH)

    def unproven(name: str, args: tuple[Any, ...]) -> Any:
        if name not in ("newest", "block") or (found := getattr(chain.node, name)(*args)) is None:
            return None
        return lambda: replace(found, header=None)

    watching = village.villagers["auditor"]
    watching.node.fault = unproven
    village.live()
    assert not watching.board_source.light_client.withheld
    assert watching.board_source.light_client.is_proven
    as_the_chain_has_it(village)
    watching.node.fault = unproven
    village.mine()
    watching.step()
    assert not watching.board_source.light_client.is_proven


@pytest.mark.slow
def test_a_revert_from_a_lagging_node_is_not_final(chain: EmbeddedChain) -> None:
    """A machine does not try again what the contracts refuse for good."""
    village = Village(chain, FALSE)
    auditor, asked = village.villagers["auditor"], list[str]()

    def behind(name: str, _: tuple[Any, ...]) -> Any:
        asked.append(name)
        if name == "try_out" and asked.count(name) % 2:
            raise Reverted("WrongProofLength", {})
        if name == "newest" and asked[-2:-1] == ["try_out"] and asked.count("try_out") % 2:
            older = chain.node.block(chain.node.newest().number - 2)
            return lambda: older
        return None

    auditor.node.fault = behind
    village.live()
    assert asked.count("try_out") > 20
    ends_in_conviction(village)


@pytest.mark.slow
def test_parties_recover_from_chain_reorganisations(chain: EmbeddedChain) -> None:
    """Three rounds of blocks, again and again; what was in them is sent anew."""
    village, rng, vanished = Village(chain, TALKED_FALSE, confirmations=3), Random(2), 0
    snapshots: list[tuple[Any, int]] = []
    for number in village.rounds():
        if len(snapshots) > 3 and rng.random() < 0.15:
            snapshot, before = snapshots[-4]
            chain._tester.revert_to_snapshot(snapshot)
            vanished += number - before
            snapshots.clear()
            for _ in range(number - before):
                village.mine()
            for villager in village.villagers.values():
                villager.step()
        snapshots.append((chain._tester.take_snapshot(), number))
    assert vanished >= 3
    village.finish()
    ends_in_conviction(village)


@pytest.mark.slow
def test_forwarded_transactions_are_followed_from_their_logs(chain: EmbeddedChain) -> None:
    """Every transaction looks as if another contract forwarded it, and the node keeps no traces."""
    village = Village(chain, FALSE)

    def forwarded(name: str, args: tuple[Any, ...]) -> Any:
        if name != "transaction":
            return None
        found = chain.node.transaction(*args)
        return lambda: found and {"to": "0x" + "ab" * 20, "input": b"forwarded" + bytes(found["input"])}

    for villager in village.villagers.values():
        villager.node.fault = forwarded
        villager.board_source.board.job_of = {FALSE.job.id: FALSE.job}.get
    village.live()
    ends_in_conviction(village)
    for villager in village.villagers.values():
        shown = {event.head.head.count for event in villager.events if isinstance(event, e.HeadShown)}
        assert shown >= {1}, "a head's signature is found wherever it stands"


@pytest.mark.slow
def test_a_job_is_followed_once_its_fields_are_learnt(chain: EmbeddedChain) -> None:
    village = Village(chain, TRUTH)
    village.live()
    pace = village.villagers["client"].board_source.pace
    late = Chain(Faulty(chain.node, lambda name, _: (lambda: None) if name == "transaction" else None))  # type: ignore[arg-type]
    late._deployment = chain.deployment
    board_source = ChainSource(late, pace=pace, steady=lambda: village.seconds)
    board_source.poll()
    assert board_source.board.unread == {TRUTH.job.id}
    assert board_source.board.jobs == {}
    board_source.learn(TRUTH.job)
    board_source.poll()
    assert [job.status for job in board_source.board.jobs.values()] == [JobStatus.SETTLED]
    village.mine()
    board_source.poll()
    assert board_source.board.credits == village.villagers["client"].board_source.board.credits
