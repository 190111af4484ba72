"""Real machines, driven over real time: a run is offered, trained, audited, and settled or disputed."""

import json
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from tests.lab.network.test_up import said_twice
from tests.tiebreak.node import hubs
from tests.waiting import free_port
from tiebreak.api.agreement.offers import offer_on
from tiebreak.api.chain.chains import Devnet, devnet
from tiebreak.api.training.bundle import Bundle, capture_bundle
from tiebreak.lab.network import cheating_trainer as cheating
from tiebreak.lab.network.local_network import HERE, OPEN_TO_ALL
from tiebreak.lab.sim.world.small_task import small_task
from tiebreak.node import settings
from tiebreak.node.driver import Driver
from tiebreak.node.hub.limits import HubLimits
from tiebreak.node.hub.service import HubSettings
from tiebreak.node.hub_client import HubClient
from tiebreak.node.owner_view import PartyMetrics, serve_metrics
from tiebreak.node.parties import deliver
from tiebreak.node.process import open_party
from tiebreak.protocol.commitments.eip712 import Address
from tiebreak.protocol.commitments.job import Job
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.commitments.terms import Terms
from tiebreak.protocol.errors import ConfigurationError, StateError
from tiebreak.protocol.game.moves import Side
from tiebreak.protocol.parties import posts
from tiebreak.protocol.parties.board import JobStatus, PublicJob

TERMS = Terms(
    challenge_window=120, clock=150, replay_time=10, talk_time=30, audit_time=5, deadline=900, descent_levels=2
)
ROLES = ("client", "trainer", "auditor", "watcher")


class LocalNetwork:
    """A chain, a hub, and the parties that have moved in."""

    def __init__(self, folder: Path, chain: Devnet, hub: hubs.Running, wanted: HubSettings) -> None:
        self.folder, self.chain, self.hub, self.hub_settings = folder, chain, hub, wanted
        self.hub_url, self.chain_url = hub.url, chain.node.url
        """Where parties that move in find both."""
        self.keys = {role: key for role, (key, _) in zip(ROLES, chain.accounts[1:], strict=False)}
        self.drivers: dict[str, Driver] = {}

    def join(self, role: str, cheat: str = "") -> Driver:
        """A party moves in, or comes back after it was closed."""
        folder = self.folder / role
        if not (folder / settings.FILE).exists():
            board = f"0x{self.chain.deployment.board.hex()}"
            more: dict[str, Any] = HERE | {"block_seconds": 1} | OPEN_TO_ALL.get(role, {})
            settings.write(role, folder, hub=self.hub_url, chain=self.chain_url, board=board, **more)
        serve = partial(cheating.serve, cheat) if cheat else None
        key = None if role == "watcher" else self.keys[role]
        driver = self.drivers[role] = open_party(settings.read(role, folder, {}), key, Event(), serve=serve)
        driver.start()
        return driver

    def offer(self, bundle: Bundle | None = None) -> Job:
        """The client's owner wants the small task done."""
        made = offer_on(
            bundle or capture_bundle(small_task()), self.folder / "offer", client=self.keys["client"],
            trainer=self.keys["trainer"].address, terms=TERMS, domain=self.chain.chain.domain,
        )  # fmt: skip
        deliver(self.folder / "offer", self.folder / "client")
        return made.job

    def job(self, job: Job, role: str = "client") -> PublicJob | None:
        """A job as a party sees it on the board."""
        return self.drivers[role].machine.board.jobs.get(job.id)

    def live(self, holds: Callable[[], bool], seconds: float = 600) -> None:
        """Let the parties live until something holds. The limit leaves time for a game that goes to the chain."""
        end = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < end, "it took too long"
            for driver in list(self.drivers.values()):
                driver.step(0.01)

    def end(self, job: Job) -> PublicJob:
        """Let the parties live until all see that a job has ended."""
        self.live(lambda: all((found := self.job(job, role)) is not None and found.is_over for role in self.drivers))
        found = self.job(job)
        assert found is not None
        return found


@contextmanager
def town(folder: Path) -> Iterator[LocalNetwork]:
    """A chain with blocks of one second, and a hub."""
    with ExitStack() as stack:
        chain = stack.enter_context(devnet(port=free_port(), accounts=6, block_seconds=1, embedded=True))
        wanted = HubSettings(
            folder=folder / "hub", domain=chain.chain.domain, key=hubs.HUB, limits=HubLimits(free_bytes=0),
        )  # fmt: skip
        made = LocalNetwork(folder, chain, stack.enter_context(hubs.running(wanted)), wanted)
        try:
            yield made
        finally:
            for driver in made.drivers.values():
                driver.close()


pytestmark = pytest.mark.slow


def bodies(there: LocalNetwork, kind: type[posts.Body]) -> list[tuple[bytes, posts.Body]]:
    verified_posts, _ = there.drivers["client"].traffic.hub_client.page(0)  # type: ignore[attr-defined]
    return [(verified.post.sender, verified.body) for verified in verified_posts if isinstance(verified.body, kind)]


def test_an_honest_run_settles_though_every_party_restarts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All parties are closed in the middle; at first each finds another board's hub, and does not fall silent.

    And everyone who may open the folder, or lives in it, is told apart.
    """
    found_key, refused = HubClient._ask_key, Counter[int]()

    def ask_key(hub_client: HubClient) -> Address:
        refused[id(hub_client)] += 1
        if refused[id(hub_client)] == 1:
            raise ConfigurationError("expected a hub for chain 1, got one for chain 2")
        return found_key(hub_client)

    monkeypatch.setattr(HubClient, "_ask_key", ask_key)
    with town(tmp_path) as there:
        for role in ("client", "trainer", "auditor"):
            there.join(role)
        job = there.offer()
        there.live(lambda: (found := there.job(job)) is not None and found.head_count >= 1)
        for role in list(there.drivers):
            there.drivers.pop(role).close()
            there.join(role)
        found = there.end(job)
        assert found.status is JobStatus.SETTLED
        assert not there.drivers["auditor"].machine.board.games
        heads = [body.head for _, body in bodies(there, posts.HeadBody)]
        assert len({head.head.count for head in heads}) == len(heads) == 4
        told = [
            step
            for _, body in bodies(there, posts.StepsBody)
            for step in range(body.first_step, body.first_step + len(body.losses))
        ]
        untold = set(range(1, job.steps + 1)) - set(told)
        assert len(told) == len(set(told)) == job.steps - len(untold)
        # What a trainer had computed but not yet posted when it was closed, it does not tell later.
        assert len(untold) <= job.checkpoint_interval
        agreed = {body.count: body.agrees for _, body in bodies(there, posts.ReplayedBody)}
        assert agreed == {1: 1, 2: 1, 3: 1, 4: 1}
        status = json.loads((tmp_path / "trainer" / "status.json").read_text())
        assert status["jobs"][job.id.hex()]["status"] == "settled"
        assert status["at_risk"] == 0

        there.drivers.pop("trainer").close()
        with pytest.raises(StateError, match="in use"):
            there.join("auditor")
        file = tmp_path / "trainer" / "party.toml"
        before = file.read_text()
        file.write_text(before.replace("0xcf7e", "0xcf7f"))
        with pytest.raises(ConfigurationError, match="expected the folder of board"):
            there.join("trainer")
        file.write_text(before)
        there.join("trainer")


def test_a_cheat_is_slashed_and_a_watcher_only_alarms(tmp_path: Path) -> None:
    """Two replays on different settings come before the stake; the watcher sends nothing, for it could not sign."""
    with town(tmp_path) as there:
        there.join("client")
        trainer = there.join("trainer", cheat="rate")
        auditor, watcher = there.join("auditor"), there.join("watcher")
        port = free_port()
        serve_metrics(port, auditor.view)
        job = there.offer()
        there.live(lambda: bool(auditor.machine.board.games))
        replays = [place for place in auditor.machine.records if place[0] == "replayed" and place[2] == 3]
        assert {place[-1] for place in replays} == {0, 1}
        there.live(lambda: auditor.view.shown.get("at_risk", 0) > 0 or there.job(job).is_over)  # type: ignore[union-attr]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            metrics = answer.read().decode()
        assert "tiebreak_balance_wei" in metrics
        assert "tiebreak_at_risk_wei" in metrics
        shown = {metric.name: metric.samples[0] for metric in PartyMetrics(trainer.view).collect() if metric.samples}
        assert shown["tiebreak_training_step"].labels == {"job": job.id.hex()}
        for name in ("loss", "steps_per_second", "processor_share", "memory_bytes"):
            assert shown[f"tiebreak_training_{name}"].value > 0
        found = there.end(job)
        assert found.status is JobStatus.SLASHED
        (game,) = auditor.machine.board.games.values()
        assert game.state.verdict is not None
        assert game.state.verdict.winner is Side.CHALLENGER
        there.live(lambda: ("ERROR", "alarm") in watcher.notes.counts)
        assert not watcher.machine.has_key
        assert not watcher.journal.unheard()
        assert not watcher.journal.notes()
        senders = {sender for sender, _ in bodies(there, posts.Body)}
        assert senders == {there.keys[role].address for role in ("client", "trainer", "auditor")}
        assert ("ERROR", "alarm") not in auditor.notes.counts  # what it handles itself is no error


# ---------------------------------------------------------------- hubs that go away


@pytest.mark.parametrize("fate", ["emptied", "replaced"])
def test_a_cheat_is_convicted_though_the_hub_is_lost_during_the_dispute(tmp_path: Path, fate: str) -> None:
    """An empty one comes back; for one with another key, parties are started again. One of two nodes is never there."""
    with town(tmp_path) as there, ExitStack() as stack:
        there.chain_url += ",http://127.0.0.1:9"
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
                there.join(role, "rate" if role == "trainer" else "")
        there.end(job)
        verified_posts, _ = there.drivers["client"].traffic.hub_client.page(0)  # type: ignore[attr-defined]
        senders = {verified.post.sender for verified in verified_posts}
        assert senders == {there.keys[role].address for role in ("client", "trainer", "auditor")}
        (game,) = there.drivers["auditor"].machine.board.games.values()
        assert game.job.status is JobStatus.SLASHED
        assert game.state.verdict is not None
        assert game.state.verdict.winner is Side.CHALLENGER
        assert not said_twice(tmp_path)
