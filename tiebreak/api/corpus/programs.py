"""The programs of the corpus, each in a folder of its name, and signed statements about them. Imports no torch.

    program.gz          the program's encoding (SPEC section 4), compressed
    state.safetensors   the initial state
    data.safetensors    the data
    expected.json       the job's terms that decide a bit, the roots, and the record of each checkpoint
    logs.gz             policy `logged`: the rounding logs of all steps, u32 length || log each, compressed

A statement says which run roots one machine computed of the programs. It is an in-toto Statement in a DSSE envelope
(`tiebreak.protocol.commitments.statement`). Its subjects are each program's `expected.json`, under the name of the
program. The predicate has

    environment   texts by name: processor, instruction set, accelerators, driver, versions (`tiebreak doctor`)
    note          what a reader should know besides, such as that the machine is emulated; may be empty
    computed      for each run the `program`, `device` and `backend`; the `root` that it reached (absent if it stopped
                  before), the `expected` one, whether they are `equal`, and the `milliseconds`; else `problem`: the
                  reason, or where the run leaves its program first, and by which operands

Numbered plan of `check`, for a file that anybody may have made: (1) it is one well-formed envelope of at most
`MAX_ENVELOPE_BYTES`, with a statement in its one spelling; (2) every signature under an address is by that address, and
there is one; (3) those whom the reader requires have signed; (4) each program that it names is one of the reader's own
corpus, by the SHA-256 of its `expected.json`, and every expected root is the one there.
"""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from hashlib import sha256
from pathlib import Path
from re import fullmatch
from typing import Any, Final, Self

from tiebreak.engine.data.arrays import open_safetensors
from tiebreak.engine.data.disk import read_file
from tiebreak.protocol.commitments import statement as intoto
from tiebreak.protocol.commitments.dsse import MAX_ENVELOPE_BYTES, Envelope, Payload
from tiebreak.protocol.commitments.eip712 import Address
from tiebreak.protocol.errors import ConfigurationError, EncodingError, SignatureError, VerificationError
from tiebreak.protocol.numbers.float32 import MAX_PRECISION, MIN_PRECISION
from tiebreak.protocol.program.isa import DType
from tiebreak.protocol.program.program import Program
from tiebreak.protocol.strict_json import JsonObject
from tiebreak.protocol.tags import Digest

_PACKAGED: Final = Path(__file__).resolve().parent / "bundled"
CORPUS: Final = _PACKAGED if _PACKAGED.is_dir() else Path(__file__).resolve().parents[3] / "corpus"
"""The corpus of this installation: the wheel's copy, or that of the checkout."""
PROGRAM, STATE, DATA = "program.gz", "state.safetensors", "data.safetensors"
EXPECTED, LOGS = "expected.json", "logs.gz"
NAME: Final = "[a-z0-9][a-z0-9-]{0,31}"
"""Names of programs."""
MAX_FILE_BYTES: Final = 1 << 26
_MAX_STEPS: Final = (1 << 32) - 1
_GZIP: Final = 16 + zlib.MAX_WBITS


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
        """Decodes an untrusted file. name: its name, for messages. Raises `EncodingError`."""
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
    """The roots that a program must reach, and the SHA-256 of the file that has them. Raises `ConfigurationError`."""
    path = corpus / name / EXPECTED
    if not fullmatch(NAME, name) or not path.is_file():
        raise ConfigurationError(f"expected one of the programs {', '.join(names(corpus))}, got {name!r}")
    data = read_file(path, MAX_FILE_BYTES)
    return ExpectedRun.decode(str(path), data), Digest(sha256(data).digest())


def read(name: str, corpus: Path = CORPUS) -> CorpusProgram:
    """A program from its folder, decoded and validated as untrusted input. Raises `VerificationError`."""
    (found, digest), folder = expected(name, corpus), corpus / name
    program = Program.decode(_decompressed(folder / PROGRAM))
    if program.root.hex() != found.program_root:
        raise EncodingError(f"{folder}: expected program {found.program_root}, got {program.root.hex()}")
    return CorpusProgram(name=name, folder=folder, program=program, expected=found, digest=digest)


def _decompressed(path: Path) -> bytes:
    decompressor = zlib.decompressobj(wbits=_GZIP)
    try:
        data = decompressor.decompress(read_file(path, MAX_FILE_BYTES), MAX_FILE_BYTES)
    except zlib.error as error:
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


PREDICATE_TYPE: Final = "urn:tiebreak:corpus:1"
MAX_RUNS: Final = 256
MAX_PROBLEM: Final = 1000
_WHERE: Final = "[A-Za-z0-9][A-Za-z0-9:+-]{0,31}"
_DEPTH: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputedRun:
    """A run of a program of the corpus. root: None if it stopped before its end. problem: empty if it is right."""

    program: str
    device: str
    backend: str
    root: Digest | None
    expected: Digest
    milliseconds: int
    problem: str = ""

    @property
    def equal(self) -> bool:
        """Whether the run reached the expected root."""
        return self.root == self.expected

    def __str__(self) -> str:
        where, root = f"{self.program} ({self.device}, {self.backend})", self.expected.hex()
        if self.equal:
            return f"{where}: root {root[:16]}, {self.milliseconds / 1000:.1f} s"
        return f"{where}: expected root {root}, got {self.root.hex() if self.root else 'none'}; {self.problem}"

    def document(self) -> dict[str, Any]:
        return {
            "program": self.program, "device": self.device, "backend": self.backend, "expected": self.expected.hex(),
            "equal": self.equal, "milliseconds": self.milliseconds,
            **({} if self.root is None else {"root": self.root.hex()}),
            **({"problem": self.problem} if self.problem else {}),
        }  # fmt: skip

    @classmethod
    def read(cls, item: object) -> Self:
        one = JsonObject("run", item)
        return cls(
            program=one.text("program", NAME, "the name of a program"),
            device=one.text("device", _WHERE, "the name of a device"),
            backend=one.text("backend", _WHERE, "the name of a back-end"),
            root=intoto.digest_in(one, "root") if "root" in one else None,
            expected=intoto.digest_in(one, "expected"),
            milliseconds=one.integer("milliseconds", 0, (1 << 53) - 1),
            problem=one.text("problem", f"[ -~]{{1,{MAX_PROBLEM}}}", "printable text") if "problem" in one else "",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusStatement:
    """The runs that one machine computed. programs: the SHA-256 of each program's `expected.json`, by its name."""

    programs: Mapping[str, Digest]
    environment: Mapping[str, str]
    note: str = ""
    computed: tuple[ComputedRun, ...]

    def __post_init__(self) -> None:
        if {run.program for run in self.computed} != self.programs.keys():
            raise EncodingError("statement: expected a run of each program that it names and of no other, got others")

    @property
    def differing(self) -> list[ComputedRun]:
        """The runs that did not reach their root."""
        return [run for run in self.computed if not run.equal]

    @property
    def payload(self) -> Payload:
        """The statement, as it is signed."""
        return intoto.payload_of(self.document())

    def document(self) -> dict[str, Any]:
        runs = [run.document() for run in self.computed]
        predicate = {"environment": dict(self.environment), "note": self.note, "computed": runs}
        return intoto.document_of(self.programs, PREDICATE_TYPE, predicate)

    @classmethod
    def decode(cls, payload: Payload) -> Self:
        """Reads a statement; nothing in it is verified yet. Raises `EncodingError`."""
        top = intoto.statement_of(payload, PREDICATE_TYPE, _DEPTH)
        predicate, few = top.inner("predicate"), f"1 to {MAX_RUNS} runs"
        runs = predicate.take("computed", few, lambda x: intoto.is_list(x) and len(x) <= MAX_RUNS)
        made = cls(
            programs=dict(map(intoto.subject_in, top.take("subject", "at least one program", intoto.is_list))),
            environment=intoto.texts_in(predicate.inner("environment")),
            note=predicate.text("note", intoto.WORDS, "printable text"),
            computed=tuple(map(ComputedRun.read, runs)),
        )
        intoto.require_same(payload, made.document(), "what its fields say")
        return made

    def lines(self, signers: Sequence[Address]) -> list[str]:
        """The statement as lines of text."""
        lines = [f"signed by {', '.join(map(intoto.hexed, signers))}", *([f"note: {self.note}"] if self.note else [])]
        lines += [f"{name}: {text}" for name, text in self.environment.items()]
        for where in dict.fromkeys((run.device, run.backend) for run in self.computed):
            runs = [run for run in self.computed if (run.device, run.backend) == where]
            reach = f"{sum(run.equal for run in runs)} of {len(runs)} programs reach their root"
            lines.append(f"{', '.join(where)}: {reach}, in {sum(run.milliseconds for run in runs) / 1000:.1f} s")
        return lines + list(map(str, self.differing))


def check(path: Path, corpus: Path = CORPUS, require: Sequence[Address] = ()) -> tuple[CorpusStatement, list[Address]]:
    """Reads and checks a statement; who signed it. Raises `VerificationError` that names the file."""
    try:
        envelope = Envelope.decode(read_file(path, MAX_ENVELOPE_BYTES))  # (1)
        statement, signers = CorpusStatement.decode(envelope.payload), intoto.signers_of(envelope, "statement")  # (2)
        if not signers:
            raise SignatureError("statement: expected a signature under an address, got none")
        for address in require:  # (3)
            if address not in signers:
                raise SignatureError(f"statement: expected a signature by {intoto.hexed(address)}, got none")
        for name, stated in statement.programs.items():  # (4)
            _check_program(name, stated, [run for run in statement.computed if run.program == name], corpus)
    except VerificationError as error:
        raise type(error)(str(error) if str(path) in str(error) else f"{path}: {error}") from error
    return statement, signers


def _check_program(name: str, stated: Digest, runs: Sequence[ComputedRun], corpus: Path) -> None:
    try:
        own, digest = expected(name, corpus)
    except ConfigurationError as error:
        raise VerificationError(f"statement: {error}") from error
    if digest != stated:
        raise VerificationError(
            f"statement: expected {name} of this corpus, whose expected.json has SHA-256 {digest.hex()}, got one of "
            f"{stated.hex()}; --corpus takes the corpus that was computed"
        )
    for run in runs:
        if run.expected.hex() != own.run_root:
            raise VerificationError(f"statement: expected root {own.run_root} for {name}, got {run.expected.hex()}")
