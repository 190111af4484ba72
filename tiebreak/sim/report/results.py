"""Results files: read once, checked whole before anything is drawn, and every number taken with its place.

A results file is other people's bytes. What it must hold is said by a pydantic model of the simulation's own (strict:
no text for a number, no infinities); what it holds besides is not looked at.
"""

import hashlib
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from tiebreak.protocol.errors import ConfigurationError, EncodingError
from tiebreak.sim.report import tracing
from tiebreak.sim.report.tracing import Number, pointer

MAX_BYTES: Final = 64 << 20
"""Of a results file: some hundred times what the commands write."""
Key = str | int
_OBJECT: Final = TypeAdapter(dict[str, Any])


class Shape(BaseModel):
    """What an object of a results file must hold. Unknown fields are left alone."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True, allow_inf_nan=False, hide_input_in_errors=True)


class Results:
    """A results file that is what it should be."""

    def __init__(self, name: str, data: bytes, shape: type[Shape]) -> None:
        """`name`: of the file, for messages and places. Raises `EncodingError` if the bytes do not have the shape."""
        self.name = name
        self.sha256 = hashlib.sha256(data).hexdigest()
        try:
            # One parser for both, which has a limit of its own for depth: Python's can be raised until it crashes.
            self._found: Any = _OBJECT.validate_json(data)
            shape.model_validate_json(data)
        except ValidationError as error:
            raise EncodingError(_told(name, error)) from error

    @classmethod
    def read(cls, path: Path, shape: type[Shape]) -> "Results":
        """From a file. Raises `ConfigurationError` if there is none, `EncodingError` if it is not what it should be."""
        if not path.is_file():
            raise ConfigurationError(f"expected a results file at {path}, got no such file")
        if (size := path.stat().st_size) > MAX_BYTES:
            raise EncodingError(f"expected at most {MAX_BYTES:,} bytes in {path.name}, got {size:,}")
        return cls(path.name, path.read_bytes(), shape)

    def place(self, *path: Key) -> str:
        """How a place in this file is written."""
        return f"{quote(self.name)}#{pointer(path)}"

    def raw(self, *path: Key) -> Any:
        """What stands at a place."""
        found = self._found
        for key in path:
            found = found[key]
        return found

    def number(self, *path: Key) -> Number:
        """The number at a place."""
        found = self.raw(*path)
        assert isinstance(found, int | float), "the shape says that a number is here"
        return Number(int(found) if isinstance(found, bool) else found, self.place(*path))

    def optional(self, *path: Key) -> Number | None:
        """The number at a place, or None where there is null or nothing."""
        found = self.raw(*path[:-1])
        there = found is not None and (path[-1] in found if isinstance(found, dict) else True)
        return self.number(*path) if there and found[path[-1]] is not None else None

    def count(self, *path: Key) -> Number:
        """How many entries a list or an object has."""
        return Number(len(self.raw(*path)), f"count({self.place(*path)})")

    def total(self, *path: Key, each: Key) -> Number:
        """Of a list: what stands under one name in each entry, added. Truth counts one."""
        entries = [self.number(*path, i, each) for i in self.indices(*path)]
        place = f"{self.place(*path)}/*{pointer([each])}"
        return Number(tracing.total(entries).value, f"total({place})")

    def text(self, *path: Key) -> str:
        """The text at a place."""
        found = self.raw(*path)
        assert isinstance(found, str), "the shape says that text is here"
        return found

    def keys(self, *path: Key) -> list[str]:
        """Names of an object's entries, in the file's order."""
        return list(self.raw(*path))

    def indices(self, *path: Key) -> range:
        """Of a list."""
        return range(len(self.raw(*path)))


def _told(name: str, error: ValidationError) -> str:
    """The first of what is wrong, in one line."""
    first = error.errors(include_url=False, include_context=False)[0]
    rest = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    return f"expected another content of {name} at #{pointer(first['loc'])}: {first['msg']}{rest}"
