"""The programs of the corpus, each in a folder of its name. Imports no torch.

    program.xz          the program's encoding (SPEC section 4), compressed
    state.safetensors   the initial state
    data.safetensors    the data
    expected.json       the job's terms that decide a bit, the roots, and the record of each checkpoint
    logs.xz             policy `logged`: the rounding logs of all steps, u32 length || log each, compressed

A wheel has a copy of these folders beside this module. `sealed/` in the checkout has what machines stated.
"""

import json
import lzma
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from hashlib import sha256
from pathlib import Path
from re import fullmatch
from typing import Any, Final, Self

from tiebreak.engine.data.arrays import open_safetensors
from tiebreak.engine.data.disk import read_file
from tiebreak.protocol.commitments.computation import NAME
from tiebreak.protocol.commitments.records import data_tree, identify, state_tree
from tiebreak.protocol.errors import ConfigurationError, EncodingError
from tiebreak.protocol.numbers.float32 import MAX_PRECISION, MIN_PRECISION
from tiebreak.protocol.program.isa import DType
from tiebreak.protocol.program.program import Program
from tiebreak.protocol.strict_json import JsonObject
from tiebreak.protocol.tags import Digest

_PACKAGED: Final = Path(__file__).resolve().parent / "bundled"
CORPUS: Final = _PACKAGED if _PACKAGED.is_dir() else Path(__file__).resolve().parents[3] / "corpus"
"""The corpus of this installation: the wheel's copy, or that of the checkout."""
PROGRAM: Final = "program.xz"
STATE: Final = "state.safetensors"
DATA: Final = "data.safetensors"
EXPECTED: Final = "expected.json"
LOGS: Final = "logs.xz"
MAX_FILE_BYTES: Final = 1 << 26
MAX_EXPECTED_BYTES: Final = 1 << 20
_MAX_STEPS: Final = (1 << 32) - 1
_ROOT: Final = "[0-9a-f]{64}"

Record = tuple[int, str, int]
"""(step, state root in hex, bits of the loss)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedRun:
    """The roots that a run of a program must reach, and its terms. Digests in hex.

    torch, transformers: the versions that captured the program. tolerances: as in a job; 0 for policy `exact`. records:
    after step 1 and of each checkpoint.
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
    records: tuple[Record, ...]

    def encode(self) -> bytes:
        """The file: readable, one line for each record."""
        document = asdict(self)
        records = ",\n  ".join(json.dumps(record) for record in document.pop("records"))
        text = json.dumps(document, indent=1).removesuffix("\n}")
        return f'{text},\n "records": [\n  {records}\n ]\n}}\n'.encode()

    @classmethod
    def decode(cls, name: str, data: bytes) -> Self:
        """Reads a file, perhaps a stranger's. name: the file's, for messages. Raises `EncodingError`."""
        top = JsonObject.parse(name, data, 3)
        versions: dict[str, Any] = {of: top.text(of, "[ -~]{0,64}", "a version") for of in ("torch", "transformers")}
        numbers: dict[str, Any] = {of: top.integer(of, 1, _MAX_STEPS) for of in ("steps", "checkpoint_interval")}
        numbers["precision"] = top.integer("precision", MIN_PRECISION, MAX_PRECISION)
        numbers["tolerances"] = top.integer("tolerances", 0, _MAX_STEPS)
        roots: dict[str, Any] = {
            f.name: top.text(f.name, _ROOT, "a root") for f in fields(cls) if f.name.endswith("_root")
        }
        records = tuple(map(tuple, top.take("records", "[step, state root, loss bits] each", _are_records)))
        top.finish()
        return cls(**versions, **numbers, **roots, records=records)


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusProgram:
    """A program with what a run of it needs. folder: its files."""

    name: str
    folder: Path
    program: Program
    expected: ExpectedRun
    digest: Digest
    """The SHA-256 of its `expected.json`."""

    def state(self) -> dict[str, bytes]:
        """The initial state by name."""
        return _tensors(self.folder / STATE, self.program.state_spec())

    def data(self) -> dict[str, bytes]:
        """The data by name."""
        return _tensors(self.folder / DATA, self.program.data_spec())

    def state_root(self, state: Mapping[str, bytes]) -> Digest:
        """The root of a state of the program."""
        spec = self.program.state_spec()
        return state_tree({name: identify(*spec[name], state[name]) for name in spec}).root

    def data_root(self, data: Mapping[str, bytes]) -> Digest:
        """The root of data of the program."""
        spec = self.program.data_spec()
        return data_tree({name: identify(*spec[name], data[name]) for name in spec}).root

    def logs(self) -> list[bytes]:
        """The encoded rounding log of each step; none under policy `exact`. Raises `EncodingError`."""
        if not self.expected.tolerances:
            return []
        data, found = _decompressed(self.folder / LOGS), list[bytes]()
        while data:
            length = int.from_bytes(data[:4], "big")
            if len(data) < 4 + length:
                raise EncodingError(f"{self.folder / LOGS}: expected {length} bytes of a log, got {len(data) - 4}")
            found.append(data[4 : 4 + length])
            data = data[4 + length :]
        if len(found) != self.expected.steps:
            raise EncodingError(f"{self.folder / LOGS}: expected {self.expected.steps} logs, got {len(found)}")
        return found


def names(corpus: Path = CORPUS) -> tuple[str, ...]:
    """The names of all programs of a corpus. Raises `ConfigurationError` if the folder has none."""
    found = tuple(sorted(path.parent.name for path in corpus.glob(f"*/{EXPECTED}")))
    if not found:
        raise ConfigurationError(f"{corpus}: expected the folders of programs, got none; --corpus takes the corpus")
    return found


def expected(name: str, corpus: Path = CORPUS) -> tuple[ExpectedRun, Digest]:
    """The roots that a program must reach, and the SHA-256 of the file that says so. Raises `ConfigurationError`."""
    path = corpus / name / EXPECTED
    if not fullmatch(NAME, name) or not path.is_file():
        raise ConfigurationError(f"expected one of the programs {', '.join(names(corpus))}, got {name!r}")
    data = read_file(path, MAX_EXPECTED_BYTES)
    return ExpectedRun.decode(str(path), data), Digest(sha256(data).digest())


def read(name: str, corpus: Path = CORPUS) -> CorpusProgram:
    """A program from its folder, decoded and validated like any stranger's. Raises `VerificationError`."""
    found, digest = expected(name, corpus)
    program = Program.decode(_decompressed(corpus / name / PROGRAM))
    if program.root.hex() != found.program_root:
        raise EncodingError(f"{corpus / name}: expected program {found.program_root}, got {program.root.hex()}")
    return CorpusProgram(name=name, folder=corpus / name, program=program, expected=found, digest=digest)


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
    def is_record(item: Any) -> bool:
        return isinstance(item, list) and [type(part) for part in item] == [int, str, int]

    return isinstance(value, list) and all(map(is_record, value))
