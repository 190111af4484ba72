"""The programs of the corpus, each in a folder of its name. Imports no torch.

program.xz          the program's encoding (SPEC section 4), compressed
state.safetensors   the initial state
data.safetensors    the data
expected.json       the job's terms that decide a bit, the roots, and the record of each checkpoint
logs.xz             policy `logged`: the rounding logs of all steps, u32 length || log each, compressed
"""

import lzma
from collections.abc import Mapping
from dataclasses import dataclass, fields
from hashlib import sha256
from pathlib import Path
from re import fullmatch
from typing import Any, Final, Self

from tiebreak.engine.data.arrays import open_safetensors
from tiebreak.engine.data.disk import read_file
from tiebreak.protocol.errors import ConfigurationError, EncodingError
from tiebreak.protocol.numbers.float32 import MAX_PRECISION, MIN_PRECISION
from tiebreak.protocol.program.isa import DType
from tiebreak.protocol.program.program import Program
from tiebreak.protocol.strict_json import JsonObject
from tiebreak.protocol.tags import Digest

_PACKAGED: Final = Path(__file__).resolve().parent / "bundled"
CORPUS: Final = _PACKAGED if _PACKAGED.is_dir() else Path(__file__).resolve().parents[3] / "corpus"
"""The corpus of this installation: the wheel's copy, or that of the checkout."""
PROGRAM, STATE, DATA = "program.xz", "state.safetensors", "data.safetensors"
EXPECTED, LOGS = "expected.json", "logs.xz"
NAME: Final = "[a-z0-9][a-z0-9-]{0,31}"
"""Names of programs."""
MAX_FILE_BYTES: Final = 1 << 26
_MAX_STEPS: Final = (1 << 32) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedRun:
    """The roots that a run of a program must reach, in hex, and its terms.

    torch, transformers: the versions that captured the program. tolerances: as in a job; 0 for policy `exact`. records:
    (step, state root, bits of the loss) after step 1 and of each checkpoint.
    """

    torch: str
    transformers: str
    steps: int
    checkpoint_interval: int
    precision: int = MAX_PRECISION
    tolerances: int = 0
    program_root: str
    initial_state_root: str
    data_root: str
    run_root: str
    records: tuple[tuple[int, str, int], ...]

    @classmethod
    def decode(cls, name: str, data: bytes) -> Self:
        """Reads a file, perhaps a stranger's. name: the file's, for messages. Raises `EncodingError`."""
        top = JsonObject.parse(name, data, 3)
        found: dict[str, Any] = {of: top.text(of, "[ -~]{0,64}", "a version") for of in ("torch", "transformers")}
        found |= {of: top.integer(of, 1, _MAX_STEPS) for of in ("steps", "checkpoint_interval")}
        found["precision"] = top.integer("precision", MIN_PRECISION, MAX_PRECISION)
        found["tolerances"] = top.integer("tolerances", 0, _MAX_STEPS)
        roots = [field.name for field in fields(cls) if field.name.endswith("_root")]
        found |= {of: top.text(of, "[0-9a-f]{64}", "a root") for of in roots}
        records = top.take("records", "[step, state root, loss bits] each", _are_records)
        top.finish()
        return cls(**found, records=tuple(map(tuple, records)))


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusProgram:
    """A program with what a run of it needs. folder: its files. digest: the SHA-256 of its `expected.json`."""

    name: str
    folder: Path
    program: Program
    expected: ExpectedRun
    digest: Digest

    def state(self) -> dict[str, bytes]:
        return _tensors(self.folder / STATE, self.program.state_spec())

    def data(self) -> dict[str, bytes]:
        return _tensors(self.folder / DATA, self.program.data_spec())

    def logs(self) -> list[bytes]:
        """The encoded rounding log of each step; none under policy `exact`. Raises `EncodingError`."""
        data = _decompressed(self.folder / LOGS) if self.expected.tolerances else b""
        found, rest = list[bytes](), data
        while rest:
            end = 4 + int.from_bytes(rest[:4], "big")
            found, rest = [*found, rest[4:end]], rest[end:]
        if sum(4 + len(log) for log in found) != len(data) or (data and len(found) != self.expected.steps):
            raise EncodingError(f"{self.folder / LOGS}: expected {self.expected.steps} whole logs, got {len(found)}")
        return found


def names(corpus: Path = CORPUS) -> tuple[str, ...]:
    """The names of all programs of a corpus. Raises `ConfigurationError` if the folder has none."""
    if not (found := tuple(sorted(path.parent.name for path in corpus.glob(f"*/{EXPECTED}")))):
        raise ConfigurationError(f"{corpus}: expected the folders of programs, got none; --corpus takes the corpus")
    return found


def expected(name: str, corpus: Path = CORPUS) -> tuple[ExpectedRun, Digest]:
    """The roots that a program must reach, and the SHA-256 of the file that says so. Raises `ConfigurationError`."""
    path = corpus / name / EXPECTED
    if not fullmatch(NAME, name) or not path.is_file():
        raise ConfigurationError(f"expected one of the programs {', '.join(names(corpus))}, got {name!r}")
    data = read_file(path, MAX_FILE_BYTES)
    return ExpectedRun.decode(str(path), data), Digest(sha256(data).digest())


def read(name: str, corpus: Path = CORPUS) -> CorpusProgram:
    """A program from its folder, decoded and validated like any stranger's. Raises `VerificationError`."""
    (found, digest), folder = expected(name, corpus), corpus / name
    program = Program.decode(_decompressed(folder / PROGRAM))
    if program.root.hex() != found.program_root:
        raise EncodingError(f"{folder}: expected program {found.program_root}, got {program.root.hex()}")
    return CorpusProgram(name=name, folder=folder, program=program, expected=found, digest=digest)


def _decompressed(path: Path) -> bytes:
    decompressor = lzma.LZMADecompressor(memlimit=MAX_FILE_BYTES << 2)
    try:
        data = decompressor.decompress(read_file(path, MAX_FILE_BYTES), MAX_FILE_BYTES)
    except lzma.LZMAError as error:
        raise EncodingError(f"{path}: expected a compressed file, got something else: {error}") from error
    if not decompressor.eof or decompressor.unused_data:
        raise EncodingError(f"{path}: expected one whole file of at most {MAX_FILE_BYTES} bytes, got more or less")
    return data


def _tensors(path: Path, spec: Mapping[str, tuple[DType, tuple[int, ...]]]) -> dict[str, bytes]:
    arrays = open_safetensors(path)
    if {name: (array.committed, array.shape) for name, array in arrays.items()} != dict(spec):
        raise EncodingError(f"{path}: expected the tensors that the program names, got others")
    return {name: b"".join(map(bytes, array.blocks())) for name, array in arrays.items()}


def _are_records(value: Any) -> bool:
    one = lambda item: isinstance(item, list) and [type(part) for part in item] == [int, str, int]  # noqa: E731
    return isinstance(value, list) and all(map(one, value))
