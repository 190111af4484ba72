"""Counter-examples: game lines that once broke a promise, kept with the cause and replayed by a test.

`python -m tests.sim.counterexamples.keep FILE LINE CAUSE` keeps one. In a file, the comment above each line says what
broke:

    # The auditor lost its stake: a block held its proof and the seal of the same second.
    v1 seed=7 game=123 with=censoring-builder
"""

import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from tiebreak.protocol.errors import ConfigurationError, EncodingError, TiebreakError
from tiebreak.sim.games.line import GameLine
from tiebreak.sim.games.playing import ADVERSARIES

KEPT = Path(__file__).resolve().parent


@dataclass(frozen=True, slots=True)
class CounterExample:
    """A game that once broke a promise, and why."""

    line: str
    cause: str


def load(path: Path) -> list[CounterExample]:
    """The counter-examples of a file. Raises `EncodingError` for a line without a cause."""
    found, cause = [], list[str]()
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if text.startswith("#"):
            cause.append(text.removeprefix("#").strip())
        elif text:
            if not any(cause):
                raise EncodingError(f"expected a comment with the cause above line {number} of {path}, got none")
            found.append(CounterExample(text, " ".join(cause)))
            cause = []
    return found


def load_all(folder: Path) -> list[CounterExample]:
    """The counter-examples of all `.txt` files of a folder."""
    return [example for path in sorted(folder.glob("*.txt")) for example in load(path)]


def keep(path: Path, line: str, cause: str, known: Collection[str]) -> None:
    """Append a counter-example to a file, which is created if necessary.

    Raises `ConfigurationError` for an invalid line, an empty cause, or a line that the file already has.
    """
    GameLine.parse(line, known)
    words = " ".join(cause.split())
    if not words:
        raise ConfigurationError("expected the cause in words, got none")
    if path.exists() and any(example.line == line for example in load(path)):
        raise ConfigurationError(f"expected a line that {path} does not have, got {line!r}")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(f"# {words}\n{line}\n")


def main(arguments: Sequence[str]) -> None:
    if len(arguments) != 3:
        sys.exit(f"expected FILE LINE CAUSE, got {len(arguments)} arguments")
    file, line, cause = arguments
    try:
        keep(KEPT / file, line, cause, ADVERSARIES)
    except TiebreakError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(sys.argv[1:])
