"""Importing datasets: arrays, texts and Hugging Face's datasets become .npy files of f32 and i64, in little memory.

    tiebreak data import text book.txt --tokenizer tokenizer.json -o corpus

    Task(data=load_arrays("corpus"), batch=Batch(size=8, examples=Windows(name="tokens", length=65, stride=64)), ...)

Every task that reads them maps the files and computes with what it needs of them; nothing is imported twice.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tiebreak.api.datasets.folder import load_arrays

__all__ = ["load_arrays"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'tiebreak.api.datasets' has no attribute {name!r}")
    return getattr(import_module("tiebreak.api.datasets.folder"), name)
