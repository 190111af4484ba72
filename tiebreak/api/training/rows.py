"""Rows of conversations and texts in the forms that people keep them in. Nothing here needs torch or transformers.

messages             role and content; `tools`, `documents` and `chat_template_kwargs` go to the chat template too
conversations        ShareGPT's: from (system, human, gpt, tool ...) and value, or messages
prompt, completion   two texts or two lists of messages; the completion is learnt
instruction, output  Alpaca's: what the user asks, with `input` below it, and the answer
text                 a text; not read in a row of another form
"""

import json
from collections.abc import Iterator
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any, Final, NamedTuple

from tiebreak.engine.data.text import MAX_TEXT_BYTES, lines
from tiebreak.protocol.errors import ConfigurationError, own_file
from tiebreak.protocol.strict_json import parse_json

FORMS: Final = (("messages",), ("conversations",), ("prompt", "completion"), ("instruction", "output"))
MORE: Final = {"conversations": ("system",), "instruction": ("input", "system"), "text": ()}
"""Columns that a form may have besides those and, but for texts, the chat template's."""
TEMPLATE: Final = ("tools", "documents", "chat_template_kwargs")
ROLES: Final = ("system", "developer", "user", "assistant", "tool", "function", "ipython", "observation")
SPEAKERS: Final = {"human": "user", "gpt": "assistant"}
SUFFIXES: Final = (".jsonl", ".json", ".parquet")
PREFERRED: Final = "preferred_output"
"""The column that tells a row of preferences from one of conversations."""
MAX_FAULTS: Final = 1000


class Example(NamedTuple):
    """A row: messages, which may be learnt from the `first` on, or a text, which is learnt after `given` characters."""

    where: str
    messages: list[dict[str, Any]]
    first: int
    text: str
    given: int
    more: dict[str, Any]
    unused: set[str]


class ReadRows(NamedTuple):
    """All rows of a file or folder."""

    path: Path
    examples: list[Example]


def read(path: Path) -> ReadRows:
    """Reads a file or folder. Raises `ConfigurationError` with file and line for a row of another form."""
    found = ReadRows(path, [])
    for where, row in _rows(path):
        found.examples.append(_checked(where, row))
    return found


def faults(path: Path, method: str | None = None) -> list[str]:
    """All faults of a .jsonl file by line; none if there is a row, and each line that is not blank is one.

    No row stays in memory. method: `supervised` or `dpo`; None: rows of either. After `MAX_FAULTS` faults no further
    line is read.
    """
    found, number, count = list[str](), 0, 0
    with path.open("rb") as file:
        while (line := file.readline(MAX_TEXT_BYTES + 1)) and len(found) < MAX_FAULTS:
            number, end, is_long = number + 1, line, len(line) > MAX_TEXT_BYTES
            while is_long and not end.endswith(b"\n") and (end := file.readline(MAX_TEXT_BYTES)):
                pass
            try:
                _require(not is_long, f"line {number}", f"a row of at most {MAX_TEXT_BYTES:,} bytes", "a longer one")
                if line.strip():
                    count += 1
                    _checked(f"line {number}", _parsed(f"line {number}", line), method)
            except ConfigurationError as error:
                found.append(str(error))
    if len(found) == MAX_FAULTS:
        found.append(f"after line {number}: expected at most {MAX_FAULTS:,} faults, got no further: no more was read")
    return found or ([] if count else ["line 1: expected at least one row, got none"])


def _checked(where: str, row: Any, method: str | None = None) -> Example:
    _require(isinstance(row, dict), where, "an object", type(row).__name__)
    found = {name: value for name, value in row.items() if value is not None}
    if method is not None:
        _require((PREFERRED in found) == (method == "dpo"), where, f"a row for method {method}", ", ".join(found))
    return _example(where, found)


def digest(path: Path) -> str:
    """The SHA-256 of a file, or of the list of files in a folder, in hex."""
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.is_file())
        return sha256("".join(f"{digest(file)} {file.relative_to(path)}\n" for file in files).encode()).hexdigest()
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def _rows(path: Path) -> Iterator[tuple[str, Any]]:
    is_arrow = path.suffix == ".parquet" or any((path / n).is_file() for n in ("state.json", "dataset_dict.json"))
    if is_arrow or (path.suffix == ".json" and path.read_bytes().lstrip().startswith(b"[")):
        found = map(_without_none, _of_arrow(path)) if is_arrow else _parsed(str(path), path.read_bytes())
        yield from ((f"{path}, row {number}", row) for number, row in enumerate(found, 1))
    elif path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES)
        _require(bool(files), str(path), f"a folder of `datasets` or files {', '.join(SUFFIXES)}", "none")
        for file in files:
            yield from _rows(file)
    else:
        with own_file():
            numbered = ((f"{path}, line {number}", line) for number, line in enumerate(lines(path), 1))
            yield from ((where, _parsed(where, line.encode())) for where, line in numbered if line.strip())


def _parsed(where: str, text: bytes) -> Any:
    try:
        found = parse_json(text, depth=64)
        if b"\\u" in text:
            json.dumps(found, ensure_ascii=False).encode()  # half of a pair of surrogates is no text for a tokenizer
        return found
    except ValueError as error:
        raise ConfigurationError(f"{where}: expected JSON, got something else: {error}") from error


def _of_arrow(path: Path) -> Iterator[Any]:
    from datasets import Dataset, load_from_disk  # noqa: PLC0415  # an extra, and slow
    from pyarrow import parquet  # noqa: PLC0415

    try:
        if not path.is_dir():
            for batch in parquet.ParquetFile(path).iter_batches(1024):
                yield from batch.to_pylist()
            return
        found = load_from_disk(str(path))
    except (OSError, ValueError, KeyError, TypeError) as error:  # of damaged files
        raise ConfigurationError(f"{path}: expected Parquet, or a folder of `datasets`, got: {error}") from error
    rows = found if isinstance(found, Dataset) else found.get("train")
    _require(rows is not None, str(path), "a split named train, or the folder of a split", found)
    yield from rows


def _without_none(value: Any) -> Any:
    """Drops the fields that Arrow adds to an object because other rows have them."""
    if isinstance(value, dict):
        return {name: _without_none(one) for name, one in value.items() if one is not None}
    return [_without_none(one) for one in value] if isinstance(value, list) else value


def _require(condition: bool, where: str, expected: str, got: object) -> None:
    if not condition:
        raise ConfigurationError(f"{where}: expected {expected}, got {str(got)[:200]}")


def _example(where: str, row: dict[str, Any]) -> Example:
    forms = [form for form in FORMS if all(name in row for name in form)] or [("text",)]
    wanted = "one of messages, conversations, prompt with completion, instruction with output, or text"
    _require(len(forms) == 1 and forms[0][0] in row, where, wanted, ", ".join(sorted(row)) or "no column")
    form, values = forms[0], [row[name] for name in forms[0]]
    read = {*form, *MORE.get(form[0], ()), *(TEMPLATE if form != ("text",) else ())}
    unused = row.keys() - read
    if form == ("text",) or isinstance(row.get("prompt", 0) if form[0] == "prompt" else 0, str):
        for name in form:
            _require(isinstance(row[name], str), f"{where}, {name}", "text", row[name])
        return Example(where, [], 0, "".join(values), len("".join(values[:-1])), {}, unused)
    more = {name: row[name] for name in TEMPLATE[:2] if name in row}
    for name, value in more.items():
        more[name] = (
            _parsed(f"{where}, {name}", value.encode("utf-8", "surrogatepass")) if isinstance(value, str) else value
        )
        _require(isinstance(more[name], list), f"{where}, {name}", "a list", value)
    kwargs = row.get("chat_template_kwargs", {})
    _require(isinstance(kwargs, dict), f"{where}, chat_template_kwargs", "an object", kwargs)
    messages = _messages(where, form, values, row)
    return Example(where, messages, len(values[0]) if form[0] == "prompt" else 0, "", 0, more | kwargs, unused)


def _messages(where: str, form: tuple[str, ...], values: list[Any], row: dict[str, Any]) -> list[dict[str, Any]]:
    if form[0] == "instruction":
        _require(not row.get("history"), where, "no earlier turns in `history` (use messages)", row.get("history"))
        asked = [row[name] for name in ("instruction", "input") if row.get(name)]
        _require(all(isinstance(one, str) for one in [*asked, row["output"]]), where, "texts", row)
        values = [[{"role": "user", "content": "\n\n".join(asked)}, {"role": "assistant", "content": row["output"]}]]
    _require(all(isinstance(v, list) and v for v in values), f"{where}, {form[0]}", "a list of messages", values)
    first = [{"role": "system", "content": row["system"]}] if form[0] in MORE and row.get("system") else []
    return [_message(f"{where}, message {number}", one) for number, one in enumerate(sum(values, first), 1)]


def _message(where: str, one: Any) -> dict[str, Any]:
    """Checks a message. One of ShareGPT's becomes one with role and content."""
    if isinstance(one, dict) and {"from", "value"} <= one.keys():
        one = {"role": SPEAKERS.get(str(one["from"]), one["from"]), "content": one["value"]}
    _require(isinstance(one, dict) and "role" in one, where, "an object with role and content", one)
    _require(one["role"] in ROLES, where, f"a role of {', '.join(ROLES)}", repr(one["role"]))
    content, calls = one.get("content"), one["role"] == "assistant" and one.get("tool_calls")
    said = isinstance(content, str) or bool(content and isinstance(content, list)) or bool(content is None and calls)
    _require(said, where, "content: text, a list of parts, or an assistant's tool_calls", content)
    _require(one.get("weight", 1) == 1, where, "no weight but 1 (what is not to be learnt goes into `prompt`)", one)
    return dict(one)
