"""Rows of conversations and texts in the forms that people keep them in. Nothing here needs torch or transformers.

The sources: JSON lines, a JSON list (`.json`), Parquet, a folder of `datasets`, or a folder of such files. The forms:

    messages             role and content; `tools`, `documents` and `chat_template_kwargs` go to the chat template too
    conversations        ShareGPT's: from (system, human, gpt, tool ...) and value, or messages
    prompt, completion   two texts or two lists of messages; the completion is learnt
    instruction, output  Alpaca's: what the user asks, with `input` below it, and the answer
    text                 a text; not read in a row of another form
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any, Final

from tiebreak.engine.data.text import lines
from tiebreak.protocol.errors import ConfigurationError, own_file
from tiebreak.protocol.strict_json import parse_json

FORMS: Final = (("messages",), ("conversations",), ("prompt", "completion"), ("instruction", "output"))
READ: Final = {"conversations": ("system",), "instruction": ("input", "system")}
"""Columns that belong to a form, besides those that it must have."""
TEMPLATE: Final = ("tools", "documents", "chat_template_kwargs")
ROLES: Final = ("system", "developer", "user", "assistant", "tool", "function", "ipython", "observation")
SPEAKERS: Final = {"human": "user", "gpt": "assistant"}
SUFFIXES: Final = (".jsonl", ".json", ".parquet")
DEPTH: Final = 64
_SHOWN: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A row that was understood.

    where: file and line. messages: empty for a text. first: the index of the first message that may be learnt. text:
    only what follows the first `given` characters is learnt. more: further arguments of the chat template. unused:
    columns that have no part.
    """

    where: str
    messages: list[dict[str, Any]] = field(default_factory=list)
    first: int = 0
    text: str = ""
    given: int = 0
    more: dict[str, Any] = field(default_factory=dict)
    unused: frozenset[str] = frozenset()


def examples(path: Path) -> Iterator[Example]:
    """Yields the examples of a file or folder. Raises `ConfigurationError` with file and line for any other row."""
    for where, row in _rows(path):
        if not isinstance(row, dict):
            raise ConfigurationError(f"{where}: expected an object, got {type(row).__name__}")
        yield _example(where, {name: value for name, value in row.items() if value is not None})


def digest(path: Path) -> str:
    """The SHA-256 of a file, or of the list of files in a folder, in hex."""
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.is_file())
        return sha256("".join(f"{digest(file)} {file.relative_to(path)}\n" for file in files).encode()).hexdigest()
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def _rows(path: Path) -> Iterator[tuple[str, Any]]:
    if path.is_dir():
        if any((path / name).is_file() for name in ("state.json", "dataset_dict.json")):
            yield from _numbered(path, map(_without_none, _of_datasets(path)))
            return
        files = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES)
        _require(bool(files), str(path), f"a folder of `datasets` or files {', '.join(SUFFIXES)}", "none")
        for file in files:
            yield from _rows(file)
    elif path.suffix == ".parquet":
        from pyarrow import parquet  # noqa: PLC0415 (comes with `datasets`)

        try:
            batches = parquet.ParquetFile(path).iter_batches(1024)
            yield from _numbered(path, (_without_none(row) for batch in batches for row in batch.to_pylist()))
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"{path}: expected Parquet, got: {error}") from error
    elif path.suffix == ".json" and (text := path.read_bytes()).lstrip().startswith(b"["):
        yield from _numbered(path, _parsed(str(path), text))
    else:
        with own_file():
            for number, line in enumerate(lines(path), 1):
                if line.strip():
                    where = f"{path}, line {number}"
                    yield where, _parsed(where, line.encode())


def _numbered(path: Path, rows: Iterator[Any]) -> Iterator[tuple[str, Any]]:
    return ((f"{path}, row {number}", row) for number, row in enumerate(rows, 1))


def _parsed(where: str, text: bytes) -> Any:
    try:
        return parse_json(text, DEPTH)
    except ValueError as error:
        raise ConfigurationError(f"{where}: expected JSON, got something else: {error}") from error


def _of_datasets(path: Path) -> Any:
    from datasets import DatasetDict, load_from_disk  # noqa: PLC0415 (an extra, and slow)

    found = load_from_disk(str(path))
    if isinstance(found, DatasetDict):
        _require("train" in found, str(path), "a split named train (or the folder of one split)", ", ".join(found))
        return found["train"]
    return found


def _without_none(value: Any) -> Any:
    """Without the fields that Arrow adds to an object because other rows have them."""
    if isinstance(value, dict):
        return {name: _without_none(one) for name, one in value.items() if one is not None}
    return [_without_none(one) for one in value] if isinstance(value, list) else value


def _require(condition: bool, where: str, expected: str, got: object) -> None:
    if not condition:
        raise ConfigurationError(f"{where}: expected {expected}, got {str(got)[:_SHOWN]}")


def _example(where: str, row: dict[str, Any]) -> Example:
    forms = [form for form in FORMS if all(name in row for name in form)]
    wanted = "one of messages, conversations, prompt with completion, instruction with output, or text"
    _require(len(forms) == 1 or ("text" in row and not forms), where, wanted, ", ".join(sorted(row)) or "no column")
    form = forms[0] if forms else ("text",)
    read = {*form, *READ.get(form[0], ()), *(TEMPLATE if forms else ())}
    more = {name: row[name] for name in ("tools", "documents") if name in read & row.keys()}
    for name, value in more.items():
        more[name] = _parsed(f"{where}, {name}", value.encode()) if isinstance(value, str) else value
        _require(isinstance(more[name], list), f"{where}, {name}", "a list", value)
    kwargs = row.get("chat_template_kwargs", {}) if forms else {}
    _require(isinstance(kwargs, dict), f"{where}, chat_template_kwargs", "an object", kwargs)
    unused = frozenset(row.keys() - read)
    values = [row[name] for name in form]
    if form == ("text",) or (form[0] == "prompt" and isinstance(values[0], str)):
        for name, value in zip(form, values, strict=True):
            _require(isinstance(value, str), f"{where}, {name}", "text", value)
        return Example(where=where, text="".join(values), given=len("".join(values[:-1])), unused=unused)
    first = len(values[0]) if form[0] == "prompt" and isinstance(values[0], list) else 0
    messages = _messages(where, form[0], values, row)
    return Example(where=where, messages=messages, first=first, more=more | kwargs, unused=unused)


def _messages(where: str, form: str, values: list[Any], row: dict[str, Any]) -> list[dict[str, Any]]:
    if form == "instruction":
        asked = [row[name] for name in ("instruction", "input") if row.get(name)]
        _require(not row.get("history"), where, "no earlier turns in `history` (use messages)", row.get("history"))
        _require(all(isinstance(one, str) for one in [*asked, row["output"]]), where, "texts", row)
        found = [{"role": "user", "content": "\n\n".join(asked)}, {"role": "assistant", "content": row["output"]}]
    else:
        _require(all(isinstance(v, list) and v for v in values), f"{where}, {form}", "a list of messages", values[0])
        found = [_message(where, number, one) for number, one in enumerate((m for v in values for m in v), 1)]
    if form in READ and row.get("system"):
        _require(isinstance(row["system"], str), f"{where}, system", "text", row["system"])
        found = [{"role": "system", "content": row["system"]}, *found]
    return found


def _message(where: str, number: int, one: Any) -> dict[str, Any]:
    """Checks a message. One of ShareGPT's becomes one with role and content."""
    here = f"{where}, message {number}"
    if isinstance(one, dict) and {"from", "value"} <= one.keys():
        speaker = str(one["from"])
        one = {"role": SPEAKERS.get(speaker, speaker), "content": one["value"]}
    _require(isinstance(one, dict) and "role" in one, here, "an object with role and content", one)
    _require(one["role"] in ROLES, here, f"a role of {', '.join(ROLES)}", repr(one["role"]))
    content = one.get("content")
    said = isinstance(content, str) or (isinstance(content, list) and content != [])
    called = content is None and one["role"] == "assistant" and one.get("tool_calls")
    _require(bool(said or called), here, "content: text, a list of parts, or an assistant's tool_calls", content)
    _require(one.get("weight", 1) == 1, here, "no weight but 1 (what is not to be learnt goes into `prompt`)", one)
    return {str(name): value for name, value in one.items()}
