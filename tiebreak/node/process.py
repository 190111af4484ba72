"""Makes a party from its settings, and runs it until SIGTERM or Ctrl-C."""

import os
import secrets
import signal
from collections.abc import Callable
from contextlib import ExitStack
from socket import socket
from threading import Event as Flag
from typing import Any, Final

from tiebreak.api.agreement.sealing import opened_by
from tiebreak.engine import system
from tiebreak.node import owner_view, parties
from tiebreak.node.board_source import AnyBoardSource, ChainSource, HubSource
from tiebreak.node.driver import Driver
from tiebreak.node.hub_client import SECONDS, HubClient
from tiebreak.node.journal import Journal
from tiebreak.node.log import Log
from tiebreak.node.settings import ANY, Settings
from tiebreak.node.tasks import WorkerSettings
from tiebreak.node.workers import WorkerPool, warm_up
from tiebreak.protocol.chain import Chain
from tiebreak.protocol.chain.gas import DEAREST
from tiebreak.protocol.commitments import eip712, seats
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.game.messages import MAX_MESSAGE_BYTES
from tiebreak.protocol.parties.terms import Means, Pace

Serve = Callable[[socket, WorkerSettings], None] | None
DATA_SPIKE: Final = 10
"""The factor by which a rollup's fee for data may rise while a game lasts, without the floor falling short of it."""
SECRET: Final = "secret of seals"  # noqa: S105  # the name of one


def run(
    settings: Settings, key: PrivateKey | None, *, as_json: bool = False, verbose: bool = False, serve: Serve = None
) -> None:
    """Run the party until SIGTERM or Ctrl-C."""
    os.umask(0o077)
    stop = Flag()
    with system.on_signals(lambda *_: stop.set(), signal.SIGTERM, signal.SIGINT):
        driver = open_party(settings, key, stop, as_json=as_json, verbose=verbose, serve=serve)
        try:
            if settings.metrics_port:
                owner_view.serve_metrics(settings.metrics_port, driver.view)
            driver.run()
        finally:
            driver.close()


def open_party(
    settings: Settings, key: PrivateKey | None, stop: Flag, *, as_json: bool = False, verbose: bool = False,
    serve: Serve = None,
) -> Driver:  # fmt: skip
    """The party of a folder, as its journal has it. `serve`: of its workers (`WorkerSettings`).

    Raises `ConfigurationError` if the folder belongs to another board or key, `StateError` if it is in use.
    """
    role, notes = settings.role, Log(settings.role, as_json=as_json, verbose=verbose)
    own = "" if key is None else f"0x{key.address.hex()}"
    notes.info("start", f"with the hub {settings.hub} and the chain {settings.chain or '(none)'}", address=own)
    belongs = {"role": role, "address": own, "board": settings.board.lower()}
    require_limits(settings)
    with ExitStack() as stack:
        journal = Journal(settings.folder, belongs)
        stack.callback(journal.close)
        job_files = parties.JobFiles(settings.folder)
        pace = Pace(
            block_seconds=settings.block_seconds, step_seconds=settings.step_seconds, slowdown=settings.slowdown,
            step_wei=settings.step_wei,
        )  # fmt: skip
        board_source = _board_source(settings, key, journal, pace, lambda: driver)
        journal.require("chain", str(board_source.domain.chain_id))
        hub_key = settings.address("hub_key") if settings.hub_key else None
        hub_client = HubClient(settings.hub, board_source.domain, hub=hub_key, stop=stop, patience=SECONDS)
        floor = floor_of(settings, board_source.data_fee(MAX_MESSAGE_BYTES))
        more: dict[str, Any] = {
            "board": board_source.board, "domain": board_source.domain, "pace": pace, "key": key,
            "journal": journal.records(), "job_files": job_files,
            "means": means_of(settings, floor, lambda: driver.view.balance()),  # noqa: PLW0108  # it is made below
        }  # fmt: skip
        machine: parties.WithJobFiles
        if role == "trainer":
            machine = parties.TrainerNode(policy=policy(settings), processes=max(1, settings.processes), **more)
        elif role == "client":
            machine = parties.ClientNode(**more)
        else:
            kind = parties.AuditorNode if role == "auditor" else parties.WatcherNode
            machine = kind(jobs=settings.digests("jobs"), clients=policy(settings).clients, **more)
        computing = WorkerSettings(
            folder=settings.folder, domain=board_source.domain, hub=settings.hub, processes=max(1, settings.processes),
            machine=settings.machine, serve=serve, most_bytes=settings.most_bytes, trial_seconds=settings.trial_seconds,
            secret=journal.fact_once(SECRET, lambda: secrets.token_bytes(seats.SALT_BYTES)),
        )  # fmt: skip
        driver = Driver(
            machine, board_source=board_source, hub_client=hub_client, journal=journal, job_files=job_files,
            workers=WorkerPool(computing, None if key is None else opened_by(key)), notes=notes, floor=floor, stop=stop,
        )  # fmt: skip
        hub_client.note = driver.traffic.note
        if isinstance(board_source, ChainSource):
            board_source.know(machine)
        warm_up()
        stack.pop_all()
    return driver


def _board_source(
    settings: Settings, key: PrivateKey | None, journal: Journal, pace: Pace, driver: Callable[[], Driver]
) -> AnyBoardSource:
    """A chain, or without one the ledger of the posts that the hub has signed for."""
    if settings.chain:
        chain = Chain.connect(settings.chain)
        chain.attach(settings.address("board"))
        return ChainSource(
            chain, key, journal, pace=pace, first_block=settings.first_block, confirmations=settings.confirmations
        )
    account = None if key is None else key.address
    return HubSource(eip712.OFF_CHAIN, account, lambda job, body, tag: driver().post(job, body, tag=tag), pace=pace)


def floor_of(settings: Settings, data_fee: int) -> int:
    """The wei without which an account is too poor to play games. data_fee: what a message's data cost now, in wei."""
    return DEAREST * settings.spike_gwei * 10**9 + DATA_SPIKE * data_fee


def means_of(settings: Settings, floor: int, balance: Callable[[], int | None]) -> Means:
    """The amounts that a party may put up, from its settings."""
    limits = {name: settings.limit(name) for name in ("most_bond", "most_stake", "most_exposed")}
    return Means(floor=floor, balance=balance, **limits)


def require_limits(settings: Settings) -> None:
    """Raises `ConfigurationError` unless a trainer names its clients, it and an auditor what they may put up.

    On a chain all name the board, before their folder belongs to one for good.
    """
    if settings.chain:
        settings.address("board")
    has_stake = settings.most_stake == ANY or settings.limit("most_stake") > 0
    if settings.role == "auditor" and not has_stake:
        raise ConfigurationError(
            f"{settings.path}: expected most_stake, got none; write what this auditor may put up for a job, such as "
            'most_stake = "0.5", or "any", or set TIEBREAK_MOST_STAKE'
        )
    if settings.role == "trainer" and not (has_stake and settings.clients):
        raise ConfigurationError(
            f"{settings.path}: expected clients and most_stake, got none; write whose offers this trainer takes and "
            'what it may stake on a job, such as clients = ["0x..."] and most_stake = "0.5", or ["any"] and "any", or '
            "set TIEBREAK_CLIENTS and TIEBREAK_MOST_STAKE"
        )


def policy(settings: Settings) -> parties.AcceptancePolicy:
    """A trainer's policy, from its settings."""
    clients = () if settings.clients == (ANY,) else settings.addresses("clients")
    return parties.AcceptancePolicy(
        clients=clients, most_steps=settings.most_steps, least_reward=settings.wei("least_reward")
    )
