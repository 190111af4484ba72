"""Plays many games on several processes, which exchange lines and JSON as text.

Each process plays one game at a time and keeps what games share (its workshops, a chain with the contracts on it). If a
process dies, only its current game is lost: the game is recorded as an error, and another process takes over. A game
that exceeds the time limit is ended in the same way.
"""

import json
import signal
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any, Final

LIMIT: Final = 900.0
"""Time limit of one game in seconds, hundreds of times what a game takes."""
JOIN_SECONDS: Final = 5

Json = dict[str, Any]
"""A JSON object."""
Play = Callable[[str], Json]
"""Plays the game of a line and returns its result. Must be a module-level function, so that it can be pickled."""


def encode(found: Json) -> str:
    """One line of JSON. Equal records encode to equal bytes."""
    return json.dumps(found, separators=(",", ":"), allow_nan=False) + "\n"


def attempt(play: Play, game: int, line: str) -> Json:
    """The record of one game. An exception becomes part of the record."""
    start = time.perf_counter()
    try:
        outcome: Json = {"result": play(line)}
        encode(outcome)
    except Exception as error:
        text = " ".join(str(error).split())
        outcome = {"error": f"{type(error).__name__}: {text}", "traceback": traceback.format_exc()}
    return {"game": game, "line": line, "wall": round(time.perf_counter() - start, 3), **outcome}


def _work(pipe: Connection, play: Play) -> None:
    """The loop of a worker process: plays the games that it receives until the pipe closes."""
    while True:
        try:
            request = json.loads(pipe.recv_bytes())
            pipe.send_bytes(encode(attempt(play, request["game"], request["line"])).encode())
        except (EOFError, BrokenPipeError, ConnectionResetError):
            return


class _Worker:
    """A worker process and the game that it plays."""

    def __init__(self, play: Play, limit: float) -> None:
        # Torch's threads do not survive a fork of this process; the fork server has none.
        context = get_context("forkserver")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs, play), daemon=True)
        # Ctrl-C reaches the whole process group. Workers start with it blocked and leave it to their parent. The
        # resource tracker must run already, since starting it in between would lift the block.
        resource_tracker.ensure_running()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            self.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()
        self.alive = True
        self._limit = limit
        self._game, self._line, self._since = 0, "", 0.0

    def start(self, game: int, line: str) -> None:
        self._game, self._line, self._since = game, line, time.perf_counter()
        with suppress(BrokenPipeError, ConnectionResetError):  # a dead process, which `finish` notices
            self.pipe.send_bytes(json.dumps({"game": game, "line": line}).encode())

    @property
    def left(self) -> float:
        """Seconds left until the game exceeds its limit."""
        return self._limit - (time.perf_counter() - self._since)

    def finish(self) -> Json | None:
        """The record of the game, or None while it is being played."""
        try:
            if self.pipe.poll():
                record: Json = json.loads(self.pipe.recv_bytes())
                return record
        except (EOFError, ConnectionResetError):
            self.process.join(JOIN_SECONDS)
            return self._failed(f"the process that played it ended with code {self.process.exitcode}")
        return self._failed(f"no end after {self._limit:g} seconds") if self.left <= 0 else None

    def _failed(self, error: str) -> Json:
        wall = round(time.perf_counter() - self._since, 3)
        self.stop()
        return {"game": self._game, "line": self._line, "wall": wall, "error": error, "traceback": ""}

    def stop(self) -> None:
        """Kill the process in any state. May be called again."""
        self.alive = False
        self.process.kill()
        self.process.join()
        self.pipe.close()


def play_games(
    games: Iterable[tuple[int, str]], play: Play, *, processes: int, limit: float = LIMIT, preload: Sequence[str] = ()
) -> Iterator[Json]:
    """Plays all games and yields the record of each as it ends. Closing the generator stops the games.

    preload: modules that the fork server imports once for all processes.
    """
    get_context("forkserver").set_forkserver_preload([*preload])
    todo = iter(games)
    workers: list[_Worker] = []
    try:
        for game, line in islice(todo, processes):
            workers.append(_Worker(play, limit))
            workers[-1].start(game, line)
        while workers:
            wait([worker.pipe for worker in workers], timeout=max(0.0, min(worker.left for worker in workers)))
            for worker in tuple(workers):
                record = worker.finish()
                if record is None:
                    continue
                following = next(todo, None)
                if following is None or not worker.alive:
                    workers.remove(worker)
                    worker.stop()
                if following is not None and not worker.alive:
                    worker = _Worker(play, limit)
                    workers.append(worker)
                if following is not None:
                    worker.start(*following)
                yield record
    finally:
        for worker in workers:
            worker.stop()
