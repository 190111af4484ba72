"""Kernels that a wheel brings compiled, for a few sets of instructions, so that no compiler is needed.

`setup.py` compiles them beside their sources if `TIEBREAK_KERNELS` names a machine; a checkout has none. The name of a
library holds the digest of the source and of the options that it was made of, so one of other sources is never found.
`setup.py` runs this file alone, so it imports the standard library only.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

FLAGS: Final = (
    "-std=c11", "-O3", "-fPIC", "-shared", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-fwrapv",
)  # fmt: skip
"""`-fno-trapping-math` lets comparisons vectorise; exception flags are never read. `-fwrapv` makes signed integers
wrap, as exact.h keeps their lowest bits; in ISO C that is undefined, and a compiler may take it for impossible."""


@dataclass(frozen=True)
class InstructionSet:
    """A level of instructions: the compiler's options for it, and the features of a processor that has it.

    Features have the names of Linux's /proc/cpuinfo.
    """

    name: str
    options: tuple[str, ...]
    features: frozenset[str]


_V3: Final = frozenset(
    {
        "abm", "avx", "avx2", "bmi1", "bmi2", "cx16", "f16c", "fma", "lahf_lm", "movbe", "pni", "popcnt", "sha_ni",
        "sse4_1", "sse4_2", "ssse3",
    }
)  # fmt: skip
_V4: Final = _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512ifma", "avx512vl"}
LEVELS: Final = {
    "x86_64": (
        InstructionSet("v4", ("-march=x86-64-v4", "-mavx512ifma", "-msha"), _V4),
        InstructionSet("v3", ("-march=x86-64-v3", "-msha"), _V3),
    ),
    "aarch64": (
        InstructionSet("v8", ("-march=armv8-a+crypto",), frozenset({"aes", "asimd", "pmull", "sha1", "sha2"})),
    ),
}
"""The levels of each machine, as `platform.machine` names it; the best come first.

Each adds the instructions for SHA-256, and the best one products of integers of 52 bits, by which kernels gain much: a
processor with AVX2 or AVX-512 and without them compiles for itself, as all others do."""


def contents(source: Path) -> tuple[bytes, ...]:
    """The files that a kernel is compiled from: its source and the headers beside it."""
    return source.read_bytes(), *(path.read_bytes() for path in sorted(source.parent.glob("*.h")))


def folder(source: Path) -> Path:
    """The folder of the libraries of a source, which exists if there are any."""
    return source.parent / "built"


def library(source: Path, level: InstructionSet) -> Path:
    """The library of a source for a level, if there is one."""
    parts = (*contents(source), repr((FLAGS, level.options)).encode())
    digest = hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()[:32]
    return folder(source) / f"{source.stem}-{digest}-{level.name}.so"


def find(source: Path, machine: str, features: frozenset[str]) -> tuple[InstructionSet, Path] | None:
    """The library of a source for the best level that a processor has; None if there is none."""
    fitting = [level for level in LEVELS.get(machine, ()) if level.features <= features]
    return next(((level, path) for level in fitting if (path := library(source, level)).is_file()), None)
