"""Reads what no run shows of a model, and other formats ask for, so that a person has to declare it.

The answers are in a TOML file, by the names of `FIELDS`: a copy of `templates/about.toml`, which asks the questions.
Files that are made with them carry them along, as JSON (`carried`), so that a reader can make the file again.
"""

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from re import ASCII, fullmatch
from typing import Any, Final, Self

from tiebreak.api.provenance.filling import template
from tiebreak.engine.data.disk import read_file
from tiebreak.protocol.errors import ConfigurationError, EncodingError, own_file
from tiebreak.protocol.strict_json import JsonObject

MAX_BYTES: Final = 1 << 16
MAX_TEXT: Final = 2_000
MAX_LIST: Final = 100
HUB_ID: Final = r"[A-Za-z0-9_][\w.-]{0,95}(?:/[\w.-]{1,96})?"
"""The id of a model or a dataset on Hugging Face's Hub."""
_DEPTH: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class AboutField:
    """A question to a person. many: whether the answer is a list. pattern: of the text, or of each in the list."""

    question: str
    many: bool = False
    pattern: str = ".+"


_ID: Final = r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}"
_PATTERNS: Final = {"base_model": HUB_ID, "datasets": HUB_ID, "license": _ID, "language": _ID, "pipeline_tag": _ID}
FIELDS: Final = {
    name: AboutField(question="".join(asked), many=isinstance(asked, list), pattern=_PATTERNS.get(name, ".+"))
    for name, asked in tomllib.loads(template("about.toml")).items()
}
"""The questions to a person, by the names in the TOML file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """A person's answers about a model: text, or a list of texts, by the names of `FIELDS`."""

    answers: Mapping[str, str | list[str]] = field(default_factory=dict)

    @property
    def missing(self) -> list[str]:
        """The fields that nobody has answered."""
        return [name for name in FIELDS if name not in self.answers]

    def text(self, name: str, default: str = "") -> str:
        """The answer to a question that has one."""
        return str(self.answers.get(name, default))

    def many(self, name: str) -> list[str]:
        """The answers to a question that has a list of them."""
        found = self.answers.get(name, [])
        return found if isinstance(found, list) else [found]

    def carried(self) -> str:
        """The text that a file carries: JSON in ASCII."""
        return json.dumps({"answers": dict(self.answers)}, sort_keys=True, separators=(",", ":"))

    @classmethod
    def read_carried(cls, text: str) -> Self:
        """Reads what a file carries, which may be a stranger's. Raises `EncodingError`."""
        top = JsonObject.parse("about", text.encode("utf-8", "surrogatepass"), _DEPTH)
        found = top.inner("answers")
        top.finish()
        return cls(answers=_checked({name: found.take(name, "an answer", lambda _: True) for name in found.names()}))

    @classmethod
    def read(cls, path: Path) -> Self:
        """Reads a person's TOML file. Raises `ConfigurationError` that says which fields there are."""
        try:
            with own_file():
                return cls(answers=_checked(tomllib.loads(read_file(path, MAX_BYTES).decode("utf-8"))))
        except (ValueError, RecursionError) as error:  # of bytes, TOML, or a number too long to be shown
            raise ConfigurationError(f"{path}: expected TOML, got something else: {error}") from error
        except ConfigurationError as error:
            raise ConfigurationError(str(error) if str(path) in str(error) else f"{path}: {error}") from error


def _checked(found: Mapping[str, Any]) -> dict[str, str | list[str]]:
    for name, value in found.items():
        if name not in FIELDS:
            raise EncodingError(f"about: expected fields among {', '.join(FIELDS)}, got {name[:80]!r}")
        known = FIELDS[name]
        items: list[Any] = value if isinstance(value, list) else [value]
        fits = all(_is_line(one) and one != known.question and fullmatch(known.pattern, one, ASCII) for one in items)
        if not 0 < len(items) <= MAX_LIST or not fits or known.many != isinstance(value, list):
            kind = "a list of up to 100 texts" if known.many else "text"
            raise EncodingError(
                f"about, {name}: expected {kind} ({known.question}), printable, of one line and not the question, got "
                f"{str(value)[:80]!r}"
            )
    return dict(found)


def _is_line(value: object) -> bool:
    """Whether a value is one line of text that any terminal may show."""
    return isinstance(value, str) and value.isprintable() and bool(value.strip()) and len(value) <= MAX_TEXT
