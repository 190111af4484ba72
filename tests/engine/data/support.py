"""Array files as tests need them: written by numpy and safetensors themselves, or byte by byte."""

from pathlib import Path

import numpy as np


def npy_bytes(header: str, data: bytes = b"", version: tuple[int, int] = (1, 0)) -> bytes:
    """A .npy file with this header text, however wrong."""
    text = header.encode("latin-1") + b"\n"
    return b"\x93NUMPY" + bytes(version) + len(text).to_bytes(2 if version == (1, 0) else 4, "little") + text + data


def described(descr: object = "<f4", order: object = False, shape: object = (2,)) -> str:
    return f"{{'descr': {descr!r}, 'fortran_order': {order!r}, 'shape': {shape!r}, }}"


def saved(path: Path, array: np.ndarray) -> Path:
    np.save(path, array, allow_pickle=False)
    return path
