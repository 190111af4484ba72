"""Counter-examples: game lines that once broke a promise, kept with the cause and replayed by a test.

In a file, the comment above each line says what broke:

    # The auditor lost its stake: a block held its proof and the seal of the same second.
    v1 seed=7 game=123 with=censoring-builder
"""

from dataclasses import dataclass
from pathlib import Path

from tiebreak.protocol.errors import EncodingError

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
    return [example for path in sorted(folder.glob("*.txt")) for example in load(path)]
