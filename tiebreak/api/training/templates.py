"""Applies the chat template of a tokenizer in a process of its own, which is killed if the template does not end.

A template is a program by whoever made the model's folder. transformers runs it in Jinja's sandbox, which keeps it from
files and the network, but not from computing or growing without end. So the process that runs it, which is this module
as a program, limits its processor time and memory for each conversation. It gets and answers lines of JSON.
"""

import json
import os
import re
import resource
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Self

from transformers import AutoTokenizer

from tiebreak.protocol.errors import ConfigurationError

SECONDS: Final = 60
"""The processor time for one conversation, which usually takes a thousandth of a second."""
MAX_GROWTH_BYTES: Final = 1 << 32
MAX_ANSWER_BYTES: Final = 1 << 28


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

    def apply(self, messages: list[Any]) -> tuple[list[int], list[bool]]:
        """The tokens of a conversation, and which of them are to be learnt. Raises `ConfigurationError`."""
        if self._process is None:
            command = [sys.executable, "-P", "-m", __name__, str(self._folder), str(SECONDS)]
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
            )
        asks, answers = self._process.stdin, self._process.stdout
        assert asks is not None
        assert answers is not None
        with suppress(BrokenPipeError):
            asks.write(json.dumps(messages).encode() + b"\n")
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
        return found["ids"], found["learnt"]


def loaded(kind: Any, folder: Path, **given: Any) -> Any:
    """Loads what a class of transformers finds in a folder, and runs no code of it. Raises `ConfigurationError`."""
    try:
        return kind.from_pretrained(folder, local_files_only=True, trust_remote_code=False, **given)
    except Exception as error:  # libraries raise anything for files of others
        raise ConfigurationError(
            f"{folder}: expected a model and a tokenizer that transformers loads without code from the folder, got "
            f"{type(error).__name__}: {error}"
        ) from error


def _limit(seconds: int) -> None:
    """Ends this process once it has used this much more processor time; an allocation of too much memory fails."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + seconds + 1, resource.RLIM_INFINITY))
    with suppress(OSError):  # not on Linux
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[0])
        most = pages * resource.getpagesize() + MAX_GROWTH_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))


def _serve(folder: Path, seconds: int) -> None:
    with os.fdopen(os.dup(1), "w", encoding="ascii") as answers:
        os.dup2(2, 1)  # what libraries print is no answer
        tokenizer = loaded(AutoTokenizer, folder)
        is_marked = re.search(r"\{%-?\s*generation\s*-?%\}", tokenizer.chat_template or "") is not None
        for line in sys.stdin.buffer:
            _limit(seconds)
            try:
                found = tokenizer.apply_chat_template(
                    json.loads(line), return_dict=True, return_assistant_tokens_mask=is_marked
                )
                ids = [*found["input_ids"]]
                learnt = [*map(bool, found["assistant_masks"])] if is_marked else [True] * len(ids)
                answer: dict[str, Any] = {"ids": ids, "learnt": learnt}
            except Exception as error:  # a template may raise anything
                answer = {"error": f"{type(error).__name__}: {error}"}
            answers.write(json.dumps(answer) + "\n")
            answers.flush()


if __name__ == "__main__":
    _serve(Path(sys.argv[1]), int(sys.argv[2]))
