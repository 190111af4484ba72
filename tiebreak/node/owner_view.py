"""The owner's view of a party: lines of its log, its balance, `status.json`, and metrics for Prometheus."""

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tiebreak.api.watching.alarms import Sample
from tiebreak.node import log
from tiebreak.node.board_source import AnyBoardSource
from tiebreak.node.journal import Journal
from tiebreak.node.parties import WithJobFiles
from tiebreak.node.tasks import Steps
from tiebreak.protocol.commitments.eip712 import Address
from tiebreak.protocol.commitments.terms import ether
from tiebreak.protocol.errors import TiebreakError
from tiebreak.protocol.numbers.float32 import to_float
from tiebreak.protocol.parties.board import Board, JobStatus, loss_of
from tiebreak.protocol.parties.machine import is_active
from tiebreak.protocol.tags import Digest

STATUS: Final = "status.json"
HOST: Final = "127.0.0.1"
"""The address at which metrics are served."""


class OwnerView:
    """Notes changes once, and keeps the status that was last shown."""

    def __init__(
        self, machine: WithJobFiles, board_source: AnyBoardSource, journal: Journal, notes: "log.Log", floor: int
    ) -> None:
        """floor: the balance below which the party cannot play games, in wei."""
        self.machine, self.board_source, self._journal = machine, board_source, journal
        self.notes, self._floor = notes, floor
        self.is_away = False
        """Whether the board source does not answer."""
        self._is_proven = True
        self._is_poor = False
        self._balance: int | None = 0
        """The account's wei at the last request for its balance."""
        self.shown: dict[str, Any] = {}
        self.training: dict[Digest, Steps] = {}
        """The newest report of the process that trains, by job."""
        self._noted: dict[Digest, str] = {}
        self._disagreed: set[str] = set()

    def _note_node(self) -> None:
        """Note the blocks whose logs the node leaves out, once, and those where nobody could tell."""
        if (light_client := self.board_source.light_client) is None:
            return
        if (hidden := light_client.hidden()) and not self.shown.get("withheld"):
            text = "its header says that it may hold logs of the board, and the node neither shows nor disproves them"
            self.notes.error("board", f"block {hidden[0]}: {text}; ask another node, or several")
        if self._is_proven and not light_client.is_proven:
            text = "the node's headers do not hash to what they say: what it leaves out goes unnoticed"
            self.notes.warn("board", text)
        self._is_proven = light_client.is_proven

    def note_changes(self) -> None:
        """Note changes of jobs and games, the board's disagreements with the rules, and what the node leaves out."""
        lines = getattr(self.machine.board, "disagreements", ())
        self._disagreed.intersection_update(lines)
        for line in lines:
            if line not in self._disagreed:
                self._disagreed.add(line)
                self.notes.error("board", line)
        stages = [("job", JobStatus(job.status).name.lower(), {"job": job.id}) for job in self.machine.jobs()]
        games = self.machine.board.games.values()
        stages += [("game", log.game(game), {"job": game.job.id, "game": game.id}) for game in games]
        for what, words, named in stages:
            if self._noted.get(named[what]) != words:
                self._noted[named[what]] = words
                self.notes.info(what, words, **{name: found.hex()[:8] for name, found in named.items()})
        self._note_node()

    def status(self) -> dict[str, Any]:
        """The status for the owner: money, stakes at risk, the time that is left, and the work that waits."""
        machine, now, board = self.machine, self.board_source.now(), self.machine.board
        jobs = {
            job.id.hex(): {
                "status": JobStatus(job.status).name.lower(), "heads": job.head_count,
                "checkpoints": job.job.checkpoints, "window_end": job.window_end,
                "open_games": len(board.open_games(job.id)), "why": loss_of(job.job, job),
            }
            for job in board.jobs.values()
        }  # fmt: skip
        found: dict[str, Any] = {"role": machine.ROLE, "jobs": jobs, "is_away": self.is_away}
        if self.board_source.light_client is not None:
            found["withheld"] = self.board_source.light_client.hidden()
        if self.machine.has_key:
            own = machine.address
            games = games_at_stake(board, own, now)
            turns = [game["seconds_left"] for game in games if game["our_turn"]]
            trained = (job for job in board.jobs.values() if is_active(job) and job.job.trainer == own)
            turns += [job.due - now for job in trained if not job.has_final_head]
            found |= {
                "address": f"0x{own.hex()}", "balance": self.balance(), "floor": self._floor,
                "credit": board.credit(own), "at_risk": at_risk(board, own),
                "seconds_left": min(turns, default=None), "unsent": len(self._journal.unheard()), "games": games,
            }  # fmt: skip
        return found

    def balance(self) -> int | None:
        """The account's wei; None without a chain. If the node does not answer, the last answer counts."""
        with suppress(TiebreakError):
            balance = self.board_source.balance(self.machine.address)
            is_poor = balance is not None and balance + self.machine.board.credit(self.machine.address) < self._floor
            if balance is not None and is_poor and not self._is_poor:
                needed = f"{ether(self._floor)} or more for the transactions of games"
                self.notes.error("balance", f"expected {needed}, got {ether(balance)}; send ether to the account")
            self._is_poor, self._balance = is_poor, balance
        return self._balance

    def show(self) -> None:
        """Write `status.json` atomically, for monitoring tools."""
        if (found := self.status()) == self.shown:
            return
        self.shown = found
        path = self._journal.folder / STATUS
        part = path.with_suffix(".part")
        part.write_text(json.dumps(found | {"now": self.board_source.now()}, indent=1) + "\n", encoding="utf-8")
        part.replace(path)


def games_at_stake(board: Board, own: Address, now: int) -> list[dict[str, Any]]:
    """The games in which a party could lose a stake, the most urgent first. Times are in seconds, amounts in wei.

    `seconds_left`: until the next deadline, its own or the other side's; negative if it is past.
    """
    found: list[dict[str, Any]] = []
    for game in board.games.values():
        job = game.job.job
        if game.is_stopped or own not in (job.trainer, game.challenger):
            continue
        last = game.state.last if game.state.talks(now) else game.state.deadline
        found.append({
            "game": game.id.hex(), "job": game.job.id.hex(),
            "stake": job.trainer_stake if own == job.trainer else game.stake,
            "our_turn": game.mover() == own, "seconds_left": last - now,
        })  # fmt: skip
    return sorted(found, key=lambda game: (not game["our_turn"], game["seconds_left"]))


def at_risk(board: Board, own: Address) -> int:
    """The wei that a party has put up: stakes, bonds and deposits, and the rewards of jobs that it pays for."""
    rewards = sum(job.job.reward for job in board.jobs.values() if is_active(job) and job.job.client == own)
    return rewards + board.exposure(own)


# ---------------------------------------------------------------- metrics


class PartyMetrics(Collector):
    """Reads the status that was last shown; it asks nobody."""

    def __init__(self, view: OwnerView) -> None:
        self._view = view

    def collect(self) -> Iterator[Metric]:
        """The metrics now. None of an account for a party without a key."""
        found = self._view.shown
        due = "Until the first deadline of something that waits for this party; negative if it is past."
        withheld = "Blocks of which the node withholds logs, or the proof that there are none."
        for name, words, value in (
            ("balance_wei", "What the account can pay with.", found.get("balance")),
            ("floor_wei", "The balance below which it cannot play games.", found.get("floor")),
            ("credit_wei", "What the board owes it.", found.get("credit")),
            ("at_risk_wei", "What it has up in jobs, games and pools.", found.get("at_risk")),
            ("seconds_left", due, found.get("seconds_left")),
            ("games", "Games of this party that go on.", len(found.get("games", ()))),
            ("unsent", "Posts that the hub has not taken.", found.get("unsent", 0)),
            ("chain_away", "Whether the chain does not answer.", found.get("is_away", False)),
            ("withheld_blocks", withheld, len(found.get("withheld", ()))),
        ):
            if value is not None:
                yield GaugeMetricFamily(f"tiebreak_{name}", words, value=float(value))
        jobs = GaugeMetricFamily("tiebreak_jobs", "Jobs on the board by status.", labels=["status"])
        for status, count in sorted(Counter(job["status"] for job in found.get("jobs", {}).values()).items()):
            jobs.add_metric([status], count)
        yield jobs
        lines = CounterMetricFamily("tiebreak_log_lines", "Lines of the log.", labels=["level", "event"])
        for (level, event), count in sorted(self._view.notes.counts.items()):
            lines.add_metric([level, event], count)
        yield lines
        families: dict[str, GaugeMetricFamily] = {}
        for told in list(self._view.training.values()):
            for name, value in _training(told).items():
                words = f"Of the process that trains: {name.replace('_', ' ')}."
                family = GaugeMetricFamily(f"tiebreak_training_{name}", words, labels=["job"])
                families.setdefault(name, family).add_metric([told.job_id.hex()], value)
        yield from families.values()


def _training(told: Steps) -> dict[str, float]:
    """A trainer's newest figures: of the steps in a report, and of its newest sample (`api.watching.sampling`).

    Shares are from 0 to 1, memory in bytes.
    """
    found: dict[str, float | None] = {
        "step": told.first_step + len(told.losses) - 1,
        "loss": to_float(told.losses[-1]),
        "steps_per_second": len(told.losses) / max(told.seconds, 1e-6),
        "processor_share": told.processor,
    }
    if isinstance(sample := told.measured, Sample):
        found |= {
            "machine_share": sample.machine, "memory_bytes": sample.memory, "gpu_share": sample.gpu,
            "gpu_memory_bytes": sample.gpu_memory, "gpu_watts": sample.watts,
        }  # fmt: skip
    return {name: float(value) for name, value in found.items() if value is not None}


def serve_metrics(port: int, view: OwnerView) -> None:
    """Serve the metrics on this machine, in a thread, until the process ends."""
    shown = CollectorRegistry()
    shown.register(PartyMetrics(view))
    start_http_server(port, HOST, shown)
