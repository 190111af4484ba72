"""Turns text into token ids: the bytes themselves, or a tokenizer of the optional Hugging Face library `tokenizers`.

A tokenizer is used without its truncation, padding and special tokens: every token stands for text, and no part of a
text is left out.
"""

from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from tiebreak.engine.data.disk import read_file
from tiebreak.engine.data.elements import Array
from tiebreak.protocol.errors import ConfigurationError

MAX_TOKENIZER_BYTES = 1 << 28


class ByteTokens:
    """Uses a text's own UTF-8 bytes, 0 to 255, as its ids."""

    @property
    def description(self) -> dict[str, Any]:
        """The fields that describe the tokens in the manifest."""
        return {"tokens": "bytes"}

    def encode(self, texts: Sequence[str]) -> list[Array]:
        """The bytes of each text, int64 [T]."""
        return [np.frombuffer(text.encode(), np.uint8).astype("<i8") for text in texts]

    def special(self, text: str) -> Array:
        """The ids of a separator or of padding, int64. Raises `ConfigurationError` if the text is empty."""
        if not text:
            raise ConfigurationError("expected a text of at least one byte, got none")
        return self.encode([text])[0]


class TokenizerFile:
    """A tokenizer.json, as `tokenizers` and `transformers` save it. Raises `ConfigurationError` if it is not one."""

    def __init__(self, path: Path) -> None:
        content, library = read_file(path, MAX_TOKENIZER_BYTES), _library()
        try:
            self._tokenizer = library.Tokenizer.from_str(content.decode("utf-8"))
        except Exception as error:  # the library raises plain Exception
            raise ConfigurationError(f"{path}: expected a tokenizer.json, got {error}") from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._digest = sha256(content).hexdigest()

    @property
    def description(self) -> dict[str, Any]:
        """The digest of the file."""
        return {"tokens": "tokenizer", "tokenizer_sha256": self._digest}

    def encode(self, texts: Sequence[str]) -> list[Array]:
        """The ids of each text, int64 [T]."""
        found = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(one.ids, dtype="<i8") for one in found]

    def special(self, text: str) -> Array:
        """The id of one token of the vocabulary, by its name."""
        found = self._tokenizer.token_to_id(text)
        if found is None:
            raise ConfigurationError(f"expected a token of the tokenizer, such as its end of text, got {text!r}")
        return np.array([found], dtype="<i8")


Tokens = ByteTokens | TokenizerFile


def _library() -> Any:
    try:
        import tokenizers  # noqa: PLC0415 - optional
    except ImportError as error:
        raise ConfigurationError("expected the library tokenizers; install it: pip install 'tiebreak[hf]'") from error
    return tokenizers
