"""Documents of other formats as templates: JSON that has, in place of values, the names of a certificate's fields.

The folder `templates` has them. A text `$job.id` stands for that field of the certificate's predicate, of any type;
`${job.id}`, in a longer text or alone, for its text (`${job.steps:,}`: as Python formats it). `$about.NAME` is an
answer of a person (`about`). An entry of a list `{"$each": LIST, "$of": PART}` stands for as many parts as LIST has
entries: `$value` is the entry, `$number` its place, `$key` its name if LIST is an object. What is empty then is left
out.
"""

import re
from collections.abc import Iterator, Mapping
from importlib.resources import files
from typing import Any, Final

_EMPTY: Final[tuple[Any, ...]] = ("", [], {})


def template(name: str) -> str:
    """The text of a file of the folder."""
    return files(__package__).joinpath("templates", name).read_text(encoding="utf-8")


def fill(part: Any, values: Mapping[str, Any]) -> Any:
    """A template, or a part of it, with values. Nothing in a value is a name."""
    if isinstance(part, dict):
        made = {name: fill(one, values) for name, one in part.items()}
        return {name: one for name, one in made.items() if one not in _EMPTY}
    if isinstance(part, list):
        return [one for entry in part for one in _entries(entry, values) if one not in _EMPTY]
    if not isinstance(part, str):
        return part
    if found := re.fullmatch(r"\$([\w.]+)", part):
        return _value(found[1], values)
    return re.sub(r"\$\{([\w.]+):?(,?)\}", lambda found: format(_value(found[1], values), found[2]), part)


def _entries(entry: Any, values: Mapping[str, Any]) -> Iterator[Any]:
    if not (isinstance(entry, dict) and "$each" in entry):
        yield fill(entry, values)
        return
    found = fill(entry["$each"], values)
    pairs = found.items() if isinstance(found, dict) else enumerate(found)
    for number, (key, value) in enumerate(pairs):
        yield fill(entry["$of"], {**values, "key": key, "value": value, "number": number})


def _value(path: str, values: Mapping[str, Any]) -> Any:
    """The value of a field, empty if it is one of an object that the certificate does not have."""
    found: Any = values
    for name in path.split("."):
        found = found[name] if found else ""
    return found
