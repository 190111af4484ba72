"""Parties in one thread, with real folders and processes that compute; a chain and a hub that they reach over HTTP."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

from tests.tiebreak.node import hubs
from tiebreak.api.agreeing.offers import offer_on
from tiebreak.api.chain.chains import Devnet, devnet
from tiebreak.api.training.bundle import Bundle, capture_bundle
from tiebreak.node import cheating, settings
from tiebreak.node.driver import Driver
from tiebreak.node.hub.app import HubSettings
from tiebreak.node.hub.limits import HubLimits
from tiebreak.node.parties import deliver
from tiebreak.node.running import open_party
from tiebreak.node.up import OPEN_TO_ALL, free_port
from tiebreak.protocol.commitments.job import Job
from tiebreak.protocol.commitments.terms import Terms
from tiebreak.protocol.parties.board import PublicJob
from tiebreak.sim.world.small_task import small_task

TERMS = Terms(
    challenge_window=120, clock=150, replay_time=10, talk_time=30, audit_time=5, deadline=900, descent_levels=2
)
ROLES = ("client", "trainer", "auditor", "watch")


class Town:
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
            more: dict[str, Any] = {"block_seconds": 1, "step_seconds": 0, "confirmations": 0, "threads": 1}
            more |= OPEN_TO_ALL.get(role, {})
            settings.write(role, folder, hub=self.hub_url, chain=self.chain_url, board=board, **more)
        serve = partial(cheating.serve, cheat) if cheat else None
        key = None if role == "watch" else self.keys[role]
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
def town(folder: Path) -> Iterator[Town]:
    """A chain with blocks of one second, and a hub."""
    with ExitStack() as stack:
        chain = stack.enter_context(devnet(port=free_port(), accounts=6, block_seconds=1, embedded=True))
        wanted = HubSettings(
            folder=folder / "hub", domain=chain.chain.domain, key=hubs.HUB, limits=HubLimits(free_bytes=0),
        )  # fmt: skip
        made = Town(folder, chain, stack.enter_context(hubs.running(wanted)), wanted)
        try:
            yield made
        finally:
            for driver in made.drivers.values():
                driver.close()
