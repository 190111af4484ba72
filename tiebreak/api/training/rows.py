"""Rows of conversations and texts in the forms that people keep them in. Nothing here needs torch or transformers.

messages             role and content; `tools`, `documents` and `chat_template_kwargs` go to the chat template too
conversations        ShareGPT's: from (system, human, gpt, tool ...) and value, or messages
prompt, completion   two texts or two lists of messages; the completion is learnt
instruction, output  Alpaca's: what the user asks, with `input` below it, and the answer
prompt, chosen, rejected  as prompt and completion, with a better and a worse one; or OpenAI's `input` (an object with
                     messages), `preferred_output`, `non_preferred_output`
text                 a text; not read in a row of another form
"""

import json
from collections.abc import Iterator
from hashlib import file_digest, sha256
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple

from tiebreak.engine.data.text import MAX_TEXT_BYTES, lines
from tiebreak.protocol.errors import ConfigurationError, own_file
from tiebreak.protocol.strict_json import parse_json

FORMS: Final = (("messages",), ("conversations",), ("prompt", "completion"), ("instruction", "output"))
PAIRS: Final = (("input", "preferred_output", "non_preferred_output"), ("prompt", "chosen", "rejected"))
"""Forms of preferences."""
MORE: Final = {"conversations": ("system",), "instruction": ("input", "system"), "text": ()}
"""Columns that a form may have besides those and, but for texts, the chat template's."""
TEMPLATE: Final = ("tools", "documents", "chat_template_kwargs")
ROLES: Final = ("system", "developer", "user", "assistant", "tool", "function", "ipython", "observation")
SPEAKERS: Final = {"human": "user", "gpt": "assistant"}
SUFFIXES: Final = (".jsonl", ".json", ".parquet")
ALIKE: Final = "preferences in all rows or in none"
MAX_FAULTS: Final = 100


class Example(NamedTuple):
    """A row: messages, which may be learnt from the `first` on, or a text, which is learnt after `given` characters.

    rejected: the same with the worse completion, if the row is a preference.
    """

    where: str
    messages: list[dict[str, Any]]
    first: int
    text: str
    given: int
    more: dict[str, Any]
    unused: set[str]
    rejected: "Example | None" = None


class ReadRows(NamedTuple):
    """All rows of a file or folder."""

    path: Path
    examples: list[Example]

    @property
    def is_preference(self) -> bool:
        """Whether the rows say which of two completions is better."""
        return bool(self.examples) and self.examples[0].rejected is not None


def read(path: Path) -> ReadRows:
    """Reads a file or folder. Raises `ConfigurationError` with file and line for a row of another form."""
    found = ReadRows(path, [])
    for where, row in rows_of(path):
        found.examples.append(_read(where, row))
        _require((found.examples[-1].rejected is not None) == found.is_preference, where, ALIKE, ", ".join(row))
    return found


def is_preference(path: Path) -> bool:
    """Tells whether the first row of a file or folder says which of two completions is better."""
    return any(_read(where, row).rejected is not None for where, row in islice(rows_of(path), 1))


def faults(path: Path) -> list[str]:
    """All faults of a .jsonl file by line; none if there is a row, and each line that is not blank is one.

    No row stays in memory. After `MAX_FAULTS` faults no further line is read.
    """
    found, number, kinds = list[str](), 0, list[bool]()
    with path.open("rb") as file:
        while (line := file.readline(MAX_TEXT_BYTES + 1)) and len(found) < MAX_FAULTS:
            number, where, end, is_long = number + 1, f"line {number + 1}", line, len(line) > MAX_TEXT_BYTES
            while is_long and not end.endswith(b"\n") and (end := file.readline(MAX_TEXT_BYTES)):
                pass
            try:
                _require(not is_long, where, f"a row of at most {MAX_TEXT_BYTES:,} bytes", "a longer one")
                if line.strip():
                    row = _parsed(where, line)
                    kinds = [*kinds[:1], _read(where, row).rejected is not None]
                    _require(len({*kinds}) == 1, where, ALIKE, ", ".join(row))
            except ConfigurationError as error:
                found.append(str(error))
    if len(found) == MAX_FAULTS:
        found.append(f"after line {number}: expected at most {MAX_FAULTS} faults, got no further: no more was read")
    return found or ([] if kinds else ["line 1: expected at least one row, got none"])


def digest(path: Path) -> str:
    """The SHA-256 of a file, or of the list of files in a folder, in hex."""
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.is_file())
        return sha256("".join(f"{digest(file)} {file.relative_to(path)}\n" for file in files).encode()).hexdigest()
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def rows_of(path: Path) -> Iterator[tuple[str, Any]]:
    """Yields the rows of a file or folder as they are, each with its place for messages."""
    is_arrow = path.suffix == ".parquet" or any((path / n).is_file() for n in ("state.json", "dataset_dict.json"))
    if is_arrow or (path.suffix == ".json" and path.read_bytes().lstrip().startswith(b"[")):
        found = map(_without_none, _of_arrow(path)) if is_arrow else _parsed(str(path), path.read_bytes())
        yield from ((f"{path}, row {number}", row) for number, row in enumerate(found, 1))
    elif path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES)
        _require(bool(files), str(path), f"a folder of `datasets` or files {', '.join(SUFFIXES)}", "none")
        for file in files:
            yield from rows_of(file)
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


def _read(where: str, row: Any) -> Example:
    _require(isinstance(row, dict), where, "an object", type(row).__name__)
    return _example(where, {name: value for name, value in row.items() if value is not None})


def _example(where: str, row: dict[str, Any]) -> Example:
    for pair in (pair for pair in PAIRS if all(name in row for name in pair)):
        prompt, *sides, more = *(row[name] for name in pair), {n: v for n, v in row.items() if n not in pair}
        if pair is PAIRS[0]:
            is_right = isinstance(prompt, dict) and "messages" in prompt
            _require(is_right, f"{where}, input", "an object with messages", prompt)
            prompt, more = prompt["messages"], more | {n: v for n, v in prompt.items() if n != "messages"}
        chosen, rejected = (_example(where, {**more, "prompt": prompt, "completion": side}) for side in sides)
        return chosen._replace(rejected=rejected)
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
