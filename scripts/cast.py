"""Records a command in a terminal as an animation: `python scripts/cast.py docs/demo.svg make demo`.

The command runs under a pseudo-terminal. What it writes, with its times, becomes a recording in asciinema's format
(version 2), which svg-term-cli (npm) draws as an SVG that needs no script. Pauses are cut to a second: the animation
shows the output as it is, and not how long it took.
"""

import codecs
import json
import os
import pty
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

COLUMNS: Final = 100
ROWS: Final = 32
LONGEST_PAUSE: Final = 1.0
FRAME: Final = 0.2
"""Seconds between two frames at least: what is written in between is one event."""
LAST: Final = 4.0
"""Seconds that the last frame stays, before the animation begins again."""
DRAW: Final = ("npx", "--yes", "svg-term-cli@2.1.1")


def written(command: list[str]) -> Iterator[tuple[float, str]]:
    """The output of the command, with the time of each part (seconds, monotonic). Exits with its code if it fails."""
    process, terminal = pty.fork()
    if process == 0:
        os.environ |= {"COLUMNS": str(COLUMNS), "LINES": str(ROWS), "TERM": "xterm-256color"}
        os.execvp(command[0], command)  # noqa: S606 (the command that the user asks for)
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    while True:
        try:
            chunk = os.read(terminal, 1 << 16)
        except OSError:  # the end, on Linux
            chunk = b""
        if not chunk:
            break
        yield time.monotonic(), decoder.decode(chunk)
    if code := os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]):
        sys.exit(code)


def recording(events: Iterator[tuple[float, str]]) -> str:
    """The recording: a header, and a line for each frame. Two columns are margin: no font has exactly the width."""
    frames, clock, last = [], 0.0, None
    for at, text in events:
        clock, last = clock + min(LONGEST_PAUSE, 0 if last is None else at - last), at
        if frames and clock - frames[-1][0] < FRAME:
            frames[-1][1] += text
        else:
            frames.append([clock, text])
    frames.append([clock + LAST, ""])
    header = {"version": 2, "width": COLUMNS + 2, "height": ROWS}
    return "".join(f"{json.dumps(line)}\n" for line in [header, *([round(t, 2), "o", text] for t, text in frames)])


def main(output: Path, command: list[str]) -> None:
    """Records the command and draws the recording."""
    with tempfile.TemporaryDirectory() as folder:
        cast = Path(folder, "recording.cast")
        cast.write_text(recording(written(command)), encoding="utf-8")
        subprocess.run(
            [*DRAW, "--in", str(cast), "--out", str(output.resolve()), "--window", "--no-cursor"], check=True
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
