"""Downloads what a fine-tuning service shows of a job. The service may be hostile: it cannot write elsewhere, or drip.

No redirection is followed, so the key goes to the service's own address alone.
"""

import http.client
import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlsplit

from tiebreak.api.certification import job_receipts as receipts
from tiebreak.engine.data.disk import Folder, write_whole
from tiebreak.engine.run.directory import STATES
from tiebreak.node.hub_connection import HubConnection
from tiebreak.protocol.commitments.blobs import PIECE_BYTES
from tiebreak.protocol.errors import CannotCheck, ConfigurationError, TiebreakError
from tiebreak.protocol.strict_json import JsonObject

SECONDS: Final = 60.0
"""The time for the head of an answer, and for each mebibyte of its body."""
MAX_ANSWER_BYTES: Final = 1 << 24
MAX_BYTES: Final = 1 << 36
"""The most that is downloaded for a job."""
MAX_FILES: Final = 256
MAX_WAITS: Final = 100
"""The number of times that the service may say that it is asked too often."""
MAX_WAIT_SECONDS: Final = 10.0
PAGE_BYTES: Final = 1 << 14
"""Each page of events counts for that many bytes more, so that there is an end of pages."""
NAME: Final = r"(?a:metrics\.csv|(?:adapter|evaluation|run)(?:/(?!\.)[\w.-]{1,100}){1,2})"


class ServiceClient:
    """Reads from one service, with one key."""

    def __init__(self, url: str, key: str) -> None:
        self._parts, self._left, self._waits = urlsplit(url), MAX_BYTES, MAX_WAITS
        if self._parts.scheme not in ("http", "https") or not self._parts.hostname or not key.isascii():
            raise ConfigurationError(f"expected the http(s) URL of a service, and an ASCII key, got {url}")
        self._headers = {"Authorization": f"Bearer {key}"}

    def download(self, job: str, folder: Path, *, states: bool) -> list[str]:
        """Writes the files of a job's receipt into a new folder, and returns what could not be had.

        states: also those of the run. Raises a `TiebreakError` if the job itself cannot be had.
        """
        start, missed = f"/v1/fine_tuning/jobs/{_quoted(job)}", list[str]()
        found = self._json(start)
        ids = JsonObject(job, found).take("result_files", "a list of ids", lambda found: isinstance(found, list))
        with Folder.make(folder) as files:
            files.write(receipts.JOB, json.dumps(found).encode())
        for task in (
            partial(self._events, start, folder),
            *(partial(self._file, str(i), folder, states=states) for i in ids[:MAX_FILES]),
        ):
            try:
                task()
            except TiebreakError as error:
                missed.append(str(error))
        return missed

    def _events(self, start: str, folder: Path) -> None:
        after, more, left = "", True, receipts.MAX_BYTES
        with Folder(folder) as files, files.replacing(receipts.EVENTS) as file:
            while more and left > 0:
                page = JsonObject("events", self._json(f"{start}/events?limit=100{after}"))
                events = page.take("data", "a list", lambda found: isinstance(found, list))
                lines = b"".join(json.dumps(event).encode() + b"\n" for event in events)
                left -= PAGE_BYTES + len(lines)
                write_whole(file, memoryview(lines))
                more = bool(events) and bool(page.take("has_more", "a bool", lambda _: True))
                after = f"&after={_quoted(JsonObject('event', events[-1]).text('id'))}" if more else ""

    def _file(self, file_id: str, folder: Path, *, states: bool) -> None:
        """Downloads a file, unless it is a state and these are not wanted."""
        start = f"/v1/files/{_quoted(file_id)}"
        about = JsonObject(file_id, self._json(start))
        name, size = about.text("filename", NAME, "the name of a result file"), about.integer("bytes", 0, MAX_BYTES)
        path = folder / name
        if states or not name.startswith(f"{receipts.RUN}/{STATES}/"):
            with Folder.make(path.parent) as files, files.replacing(path.name) as file:
                for piece in self._pieces(f"{start}/content", size):
                    write_whole(file, memoryview(piece))
                if files.holds(path.name) or file.tell() != size:
                    raise CannotCheck(
                        f"{name}: expected one such file of {size:,} bytes, got {file.tell():,} or several"
                    )

    def _json(self, path: str) -> dict[str, Any]:
        return receipts.parsed(path, b"".join(self._pieces(path, MAX_ANSWER_BYTES)))

    def _pieces(self, path: str, most: int) -> Iterator[bytes]:
        """The body of an answer. Raises `CannotCheck` if there is none, or if it has more than `most` bytes."""
        try:
            with ExitStack() as opened:
                while True:
                    connection = opened.enter_context(closing(HubConnection(self._parts, SECONDS)))
                    answer = connection.answer("GET", path, headers=self._headers)
                    if answer.status != http.client.TOO_MANY_REQUESTS or not self._waits:
                        break
                    self._waits -= 1
                    time.sleep(min(float(answer.headers.get("retry-after", 1)), MAX_WAIT_SECONDS))
                if answer.status != http.client.OK:
                    raise CannotCheck(f"{path}: expected status 200 of the service, got {answer.status}")
                while piece := answer.read(PIECE_BYTES):
                    connection.renew()
                    most, self._left = most - len(piece), self._left - len(piece)
                    if min(most, self._left) < 0:
                        raise CannotCheck(f"{path}: expected no more bytes, got more")
                    yield piece
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise CannotCheck(f"{path}: expected an answer of the service, got: {error}") from error


def _quoted(text: str) -> str:
    return quote(text, safe="", errors="replace")
