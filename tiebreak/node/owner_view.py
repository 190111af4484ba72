"""The owner's view of a party: lines of its log, its balance, and `status.json` for those who look from outside."""

import json
from contextlib import suppress
from typing import Any, Final

from tiebreak.node import log
from tiebreak.node.board_source import AnyBoardSource
from tiebreak.node.journal import Journal
from tiebreak.node.parties import WithJobFiles
from tiebreak.node.tasks import Steps
from tiebreak.protocol.commitments.eip712 import Address
from tiebreak.protocol.commitments.terms import ether
from tiebreak.protocol.errors import TiebreakError
from tiebreak.protocol.parties import events as e
from tiebreak.protocol.parties.board import Board, JobStatus, loss_of
from tiebreak.protocol.parties.machine import is_active
from tiebreak.protocol.tags import Digest

STATUS: Final = "status.json"


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
        """The wei that the account could pay with when it was last asked for."""
        self.shown: dict[str, Any] = {}
        self.training: dict[Digest, Steps] = {}
        """The newest report of the process that trains, by job."""
        self._noted: dict[Digest, str] = {}
        self._disagreed: set[str] = set()

    def note_event(self, event: e.Event) -> None:
        """Note what became of a transaction."""
        match event:
            case e.Mined(place=place):
                self.notes.info("mined", log.place(place))
            case e.Refused(place=place, error=error):
                self.notes.info("refused", f"{log.place(place)}: {error or 'the balance does not cover it'}")

    def _note_node(self) -> None:
        """Note the blocks whose logs the node leaves out, once, and those where nobody could tell."""
        light_client = self.board_source.light_client
        if light_client is None:
            return
        hidden = light_client.hidden()
        if hidden and not self.shown.get("withheld"):
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
        """Write `status.json` for those who look from outside, whole or not at all."""
        found = self.status()
        if found == self.shown:
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
