"""Applies the chat template of a tokenizer in a process of its own, which is killed if the template does not end.

A template is a program by whoever made the model's folder. transformers runs it in Jinja's sandbox, which keeps it from
files and the network, but not from computing or growing without end. So the process that runs it, which is this module
without torch, limits its processor time and memory for each conversation. It gets and answers lines of JSON.
"""

import json
import os
import re
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from transformers import AutoTokenizer

from tiebreak.api.training.settings import BITSANDBYTES, quantization
from tiebreak.engine.system import limit_process
from tiebreak.protocol.errors import ConfigurationError

SECONDS: Final = 60
"""The processor time for one conversation, which usually takes a thousandth of a second."""
MAX_GROWTH_BYTES: Final = 1 << 32
MAX_ANSWER_BYTES: Final = 1 << 28
# Tokenizers need no torch, which takes transformers most of the time to load.
_PROGRAM: Final = """
import os, sys
os.environ["TRANSFORMERS_NO_ADVISORY_WARNINGS"], sys.modules["torch"] = "1", None
from tiebreak.api.training.templates import serve
serve(sys.argv[1], int(sys.argv[2]))
"""


class Tokens(NamedTuple):
    """The tokens of an example, and which of them are to be learnt.

    missed: the answers that could not be found among them, and so are not learnt. is_marked: whether the template marks
    answers.
    """

    ids: list[int]
    learnt: list[bool]
    missed: int = 0
    is_marked: bool = True


class ChatTemplate:
    """The chat template of the tokenizer in a folder, to be used in a `with`. Its process starts at the first call."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()

    def apply(self, messages: list[Any], first: int = 0, **more: Any) -> Tokens:
        """The tokens of a conversation. Raises `ConfigurationError`.

        first: the index of the first message that may be learnt. more: for the template, such as tools.
        """
        if self._process is None:
            command = [sys.executable, "-P", "-c", _PROGRAM, str(self._folder), str(SECONDS)]
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
            )
        asks, answers = self._process.stdin, self._process.stdout
        assert asks is not None
        assert answers is not None
        with suppress(BrokenPipeError):
            asks.write(json.dumps([messages, first, more]).encode() + b"\n")
            asks.flush()
        line = answers.readline(MAX_ANSWER_BYTES)
        if not line.endswith(b"\n"):
            raise ConfigurationError(
                f"expected a template that ends within {SECONDS} s of processor time and {MAX_GROWTH_BYTES >> 30} GiB, "
                f"got one that does not; look at the chat template in {self._folder}"
            )
        found = json.loads(line)
        if "error" in found:
            raise ConfigurationError(found["error"])
        return Tokens(*found["tokens"])


def loaded(kind: Any, folder: Path, **given: Any) -> Any:
    """Loads what a class of transformers finds in a folder, and runs no code of it. Raises `ConfigurationError`."""
    if (method := quantization(folder)) not in ("", BITSANDBYTES):
        raise ConfigurationError(
            f"{folder}: expected a model that is not quantized, or in 4 bits by bitsandbytes, got one by {method}; "
            "take the model from which it was made, and save it with BitsAndBytesConfig(load_in_4bit=True)"
        )
    try:
        return kind.from_pretrained(folder, local_files_only=True, trust_remote_code=False, **given)
    except Exception as error:  # libraries raise anything for files of others
        raise ConfigurationError(
            f"{folder}: expected a model and a tokenizer that transformers loads without code from the folder, got "
            f"{type(error).__name__}: {error}"
        ) from error


def located(tokenizer: Any, text: str, spans: list[tuple[int, int]], **given: Any) -> tuple[list[int], list[bool]]:
    """The tokens of a text, and which of them lie in these spans of its characters, wholly or in part."""
    found = tokenizer(text, return_offsets_mapping=True, **given)
    learnt = [any(begin < end and start < stop for begin, stop in spans) for start, end in found["offset_mapping"]]
    return [*found["input_ids"]], learnt


def _tokens(tokenizer: Any, messages: list[Any], first: int, more: dict[str, Any]) -> Tokens:
    """Takes what the template marks, or else what each answer adds to the rendering of the messages before it."""
    template = tokenizer.get_chat_template(tools=more.get("tools"))
    is_marked = re.search(r"\{%-?\s*generation\s*-?%\}", template) is not None
    if is_marked and not first:
        found = tokenizer.apply_chat_template(messages, return_dict=True, return_assistant_tokens_mask=True, **more)
        return Tokens([*found["input_ids"]], [*map(bool, found["assistant_masks"])])
    render = partial(tokenizer.apply_chat_template, tokenize=False, **more)
    whole, spans, missed = render(messages), list[tuple[int, int]](), 0
    for n in (n for n, one in enumerate(messages) if n >= first and one["role"] == "assistant"):
        before = after = ""
        with suppress(Exception):  # a template may refuse a part
            before, after = render(messages[:n], add_generation_prompt=True), render(messages[: n + 1])
        if before and after.startswith(before) and whole.startswith(after):
            spans.append((len(before), len(after)))
        else:
            missed += 1
    return Tokens(*located(tokenizer, whole, spans, add_special_tokens=False), missed, is_marked)


def serve(folder: str, seconds: int) -> None:
    """Answers each line of stdin with the template of a folder, in at most `seconds` of processor time."""
    with os.fdopen(os.dup(1), "w", encoding="ascii") as answers:
        os.dup2(2, 1)  # what libraries print is no answer
        tokenizer = loaded(AutoTokenizer, Path(folder))
        for line in sys.stdin.buffer:
            limit_process(int(time.process_time()) + seconds + 1, MAX_GROWTH_BYTES)
            try:
                answer: dict[str, Any] = {"tokens": _tokens(tokenizer, *json.loads(line))}
            except Exception as error:  # a template may raise anything
                answer = {"error": f"{type(error).__name__}: {error}"}
            answers.write(json.dumps(answer) + "\n")
            answers.flush()
