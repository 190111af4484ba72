"""A party's log: one line an event, on standard error, for people or as JSON. ERROR means that a person must act."""

import json
import sys
import time
from threading import Lock
from typing import Any, Final, TextIO

from tiebreak.protocol.errors import printable
from tiebreak.protocol.parties import events as e
from tiebreak.protocol.parties.board import PublicGame

_COLOURS: Final = {"WARNING": "\x1b[33m", "ERROR": "\x1b[31;1m", "DEBUG": "\x1b[2m"}


class Log:
    """Writes lines. Threads may share it."""

    def __init__(self, who: str, *, as_json: bool = False, verbose: bool = False, stream: TextIO | None = None) -> None:
        self._who, self._as_json, self._verbose = who, as_json, verbose
        self._stream = sys.stderr if stream is None else stream
        self._lock = Lock()
        self.counts: dict[tuple[str, str], int] = {}
        """Lines by level and event, for metrics."""

    def debug(self, event: str, text: str, **more: Any) -> None:
        """Log an event that only those who ask for it care about."""
        if self._verbose:
            self._write("DEBUG", event, text, more)

    def info(self, event: str, text: str, **more: Any) -> None:
        self._write("INFO", event, text, more)

    def warn(self, event: str, text: str, **more: Any) -> None:
        self._write("WARNING", event, text, more)

    def error(self, event: str, text: str, **more: Any) -> None:
        """Log an event that a person has to do something about."""
        self._write("ERROR", event, text, more)

    def _write(self, level: str, event: str, text: str, more: dict[str, Any]) -> None:
        text = printable(" ".join(text.split()))  # one line, even if a stranger's text has more
        with self._lock:
            self.counts[level, event] = self.counts.get((level, event), 0) + 1
            if self._as_json:
                document = {"time": round(time.time(), 3), "level": level, "who": self._who, "event": event}
                line = json.dumps({**document, "text": text, **more})
            else:
                named = "".join(f"  {name} {value}" for name, value in more.items())
                line = f"{time.strftime('%H:%M:%S')} {self._who:<8}{level:<8}{event:<9}{text}{named}"
                if self._stream.isatty() and level in _COLOURS:
                    line = f"{_COLOURS[level]}{line}\x1b[0m"
            self._stream.write(line + "\n")
            self._stream.flush()


def subject(of: Any) -> dict[str, str]:
    """The job and the game that a piece of work or a transaction is about, as far as it names them."""
    head = getattr(of, "head", None)
    found = {"job": getattr(of, "job_id", None) or (head.head.job_id if head is not None else None)}
    found["game"] = getattr(of, "game_id", None)
    return {name: value.hex()[:8] for name, value in found.items() if value is not None}


def place(named: e.Place) -> str:
    """A name of a transaction, in short."""
    return " ".join(item.hex()[:8] if isinstance(item, bytes) else str(item) for item in named)


def transaction(action: e.Transact) -> str:
    kind = type(action.transaction).__name__
    count = getattr(getattr(getattr(action.transaction, "head", None), "head", None), "count", None)
    move = getattr(action.transaction, "move", None)
    about = f" {count}" if count is not None else f" {type(move).__name__}" if move is not None else ""
    return f"{kind}{about}"


def statement(said: e.Statement) -> str:
    match said:
        case e.SignJob(signature=b""):
            return "declines the job"
        case e.ShowHead(head=head):
            return f"ShowHead {head.head.count}"
    return type(said).__name__


def work(done: e.Work) -> str:
    match done:
        case e.Train(count=count):
            return f"trained to checkpoint {count}"
        case e.Replay(head=head, attempt=attempt):
            return f"replayed to checkpoint {head.head.count}" + (f", attempt {attempt + 1}" if attempt else "")
        case e.Gather(sequence=sequence):
            return f"found move {sequence}"
    return type(done).__name__.lower()


def game(found: PublicGame) -> str:
    if found.void:
        return "void: the job was slashed for another reason"
    if (verdict := found.state.verdict) is None:
        return "open"
    return f"{verdict.winner.name.lower()} wins: {verdict.reason.name.lower().replace('_', ' ')}"
