"""Statements about the corpus in files: signing them, and checking those of others. Imports no torch.

Numbered plan of `check`, for a file that anybody may have made: (1) it is one well-formed envelope of at most
`MAX_ENVELOPE_BYTES`, with a statement in its one spelling; (2) every signature under an address is by that address, and
there is one; (3) those whom the reader requires have signed; (4) each program that it names is one of the reader's own
corpus, by the SHA-256 of its `expected.json`, and every expected root is the one there.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tiebreak.api.corpus.programs import CORPUS, expected
from tiebreak.engine.data.disk import read_file, write_file
from tiebreak.protocol.commitments.computation import ComputedRun, CorpusStatement
from tiebreak.protocol.commitments.dsse import MAX_ENVELOPE_BYTES, Envelope
from tiebreak.protocol.commitments.eip712 import Address
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.commitments.statement import hexed, sign, signers_of
from tiebreak.protocol.errors import ConfigurationError, SignatureError, VerificationError

RESTRICTED: Final = {"avx2": ("avx2", "-mno-avx512f"), "none": ("default", "-mno-avx")}
"""Values of ATEN_CPU_CAPABILITY, and options of an x86 compiler, that leave out what an older CPU lacks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedRuns:
    """A statement, and the addresses that signed it."""

    statement: CorpusStatement
    signers: list[Address]

    @property
    def differing(self) -> list[ComputedRun]:
        """The runs that did not reach their root."""
        return [run for run in self.statement.computed if not run.equal]

    def document(self) -> dict[str, Any]:
        """The statement as JSON data, with its signers."""
        found: dict[str, Any] = self.statement.document()["predicate"]
        return {"signers": list(map(hexed, self.signers)), "equal": not self.differing, **found}

    def lines(self) -> list[str]:
        """The statement in words, for people."""
        found, made = self.statement, self.statement.computed
        lines = [f"signed by {', '.join(map(hexed, self.signers))}", *([f"note: {found.note}"] if found.note else [])]
        lines += [f"{name}: {text}" for name, text in (*found.machine.items(), *found.versions.items())]
        for where in dict.fromkeys(run.where for run in made):
            runs = [run for run in made if run.where == where]
            agreeing = sum(run.equal for run in runs)
            seconds = sum(run.milliseconds for run in runs) / 1000
            lines.append(f"{where}: {agreeing} of {len(runs)} programs reach their root, in {seconds:.1f} s")
        return lines + [sentence(run) for run in self.differing]


def sentence(run: ComputedRun) -> str:
    """A run in words: whether it reached its root, and where it left its program if that was found."""
    if run.equal:
        return f"{run.program} ({run.where}): root {run.expected.hex()[:16]}, {run.milliseconds / 1000:.1f} s"
    got = "no root" if run.root is None else f"root {run.root.hex()}"
    why = run.problem if run.difference is None else f"first in {run.difference.sentence}"
    return f"{run.program} ({run.where}): expected root {run.expected.hex()}, got {got}; {why}"


def write(path: Path, statement: CorpusStatement, key: PrivateKey) -> SignedRuns:
    """Signs a statement and writes it. Raises `StorageError`."""
    write_file(path, sign(Envelope(payload=statement.payload), key).encode())
    return SignedRuns(statement=statement, signers=[key.address])


def check(path: Path, corpus: Path = CORPUS, require: Sequence[Address] = ()) -> SignedRuns:
    """Reads and checks a statement. Raises `VerificationError` that names the file."""
    try:
        envelope = Envelope.decode(read_file(path, MAX_ENVELOPE_BYTES))  # (1)
        statement = CorpusStatement.decode(envelope.payload)
        signers = signers_of(envelope, "statement")  # (2)
        if not signers:
            raise SignatureError("statement: expected a signature under an address, got none")
        for address in require:  # (3)
            if address not in signers:
                raise SignatureError(f"statement: expected a signature by {hexed(address)}, got none")
        _check_roots(statement, corpus)  # (4)
    except VerificationError as error:
        raise type(error)(str(error) if str(path) in str(error) else f"{path}: {error}") from error
    return SignedRuns(statement=statement, signers=signers)


def _check_roots(statement: CorpusStatement, corpus: Path) -> None:
    roots = {}
    for name, stated in statement.programs.items():
        try:
            own, digest = expected(name, corpus)
        except ConfigurationError as error:
            raise VerificationError(f"statement: {error}") from error
        if digest != stated:
            raise VerificationError(
                f"statement: expected {name} of this corpus, whose expected.json has SHA-256 {digest.hex()}, got one "
                f"of {stated.hex()}; --corpus takes the corpus that was computed"
            )
        roots[name] = own.run_root
    for run in statement.computed:
        if run.expected.hex() != roots[run.program]:
            raise VerificationError(
                f"statement: expected root {roots[run.program]} for {run.program}, got {run.expected.hex()}"
            )


def restrict(instructions: str) -> str:
    """Leaves out instruction sets of an x86 CPU, for this process. Call it before torch is loaded.

    Returns what is left, in words. The C compiler is `CC` or `cc`.
    """
    capability, option = RESTRICTED[instructions]
    os.environ["ATEN_CPU_CAPABILITY"] = capability
    os.environ["CC"] = f"{os.environ.get('CC', 'cc')} {option}"
    return "none beyond SSE" if instructions == "none" else instructions
