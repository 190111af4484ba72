"""Statements about the corpus: the run roots that one machine computed of its programs, signed. Imports no torch.

An in-toto Statement in a DSSE envelope (`tiebreak.protocol.commitments.statement`). Its subjects are each program's
`expected.json`, under the name of the program. The predicate has

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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from tiebreak.api.corpus.programs import CORPUS, NAME, expected
from tiebreak.engine.data.disk import read_file
from tiebreak.protocol.commitments import statement as intoto
from tiebreak.protocol.commitments.dsse import MAX_ENVELOPE_BYTES, Envelope, Payload
from tiebreak.protocol.commitments.eip712 import Address
from tiebreak.protocol.errors import ConfigurationError, EncodingError, SignatureError, VerificationError
from tiebreak.protocol.strict_json import JsonObject
from tiebreak.protocol.tags import Digest

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
        """The statement in words, for people."""
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
