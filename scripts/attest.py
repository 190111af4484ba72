"""Writes and checks the attestation of a release: SLSA provenance of its files, by the code of `tiebreak certify`.

    python -m scripts.attest write dist --key release.pem      writes dist/tiebreak.intoto.json
    python -m scripts.attest check FILE... --attestation tiebreak.intoto.json --signer 0x...

It is an in-toto statement in a DSSE envelope with two signatures, as `tiebreak certify --for slsa` makes them: one by
the key, and one by the P-256 key that follows from it, for cosign. `check` builds the statement again from what it says
and from the files, and compares every byte.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from tiebreak.api.signing.attesting import SLSA, signed_for_others
from tiebreak.api.signing.keys import load_key
from tiebreak.engine.data.disk import read_file, write_file
from tiebreak.protocol.commitments import statement
from tiebreak.protocol.commitments.dsse import MAX_ENVELOPE_BYTES, Envelope
from tiebreak.protocol.errors import TiebreakError, VerificationError
from tiebreak.protocol.strict_json import JsonObject
from tiebreak.protocol.tags import Digest

ROOT: Final = Path(__file__).resolve().parent.parent
NAME: Final = "tiebreak.intoto.json"
BUILD_TYPE: Final = "urn:tiebreak:release:1"
DEPTH: Final = 6


def document(files: dict[str, Digest], commit: str, date: str, builder: str) -> dict[str, Any]:
    """The statement: these files were built from a commit, whose date (seconds since 1970) they all bear."""
    predicate = {
        "buildDefinition": {
            "buildType": BUILD_TYPE,
            "externalParameters": {"sourceDateEpoch": date},
            "resolvedDependencies": [{"name": "tiebreak", "digest": {"gitCommit": commit}}],
        },
        "runDetails": {"builder": {"id": builder}},
    }
    return statement.document_of(files, SLSA, predicate)


def digest(path: Path) -> Digest:
    return Digest(sha256(path.read_bytes()).digest())


def write(folder: Path, key_file: Path) -> Path:
    """Attests all wheels and sdists of a folder. The passphrase of the key is in TIEBREAK_PASSPHRASE."""
    files = {path.name: digest(path) for path in sorted([*folder.glob("*.whl"), *folder.glob("*.tar.gz")])}
    if not files:
        sys.exit(f"expected wheels or sdists in {folder}, found none")
    commit, date = subprocess.run(
        ["git", "log", "-1", "--format=%H %ct"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.split()
    key = load_key(key_file, os.environ["TIEBREAK_PASSPHRASE"])
    builder = os.environ.get("GITHUB_WORKFLOW_REF", "urn:tiebreak:builder:local")
    envelope = Envelope(payload=statement.payload_of(document(files, commit, date, builder)))
    write_file(folder / NAME, signed_for_others(statement.sign(envelope, key), key).encode())
    return folder / NAME


def check(files: Sequence[Path], attestation: Path, signer: str) -> str:
    """The commit that the files were built from, by the word of a signer. Raises `VerificationError`.

    (1) The signer's signature is there, and all others hold; (2) the statement is one of a release, in its one
    spelling; (3) it names each file, with its digest.
    """
    envelope = Envelope.decode(read_file(attestation, MAX_ENVELOPE_BYTES))
    signers = [statement.hexed(address) for address in statement.signers_of(envelope, attestation.name)]
    if signer.lower() not in signers:
        raise VerificationError(f"{attestation.name}: expected a signature by {signer}, got {signers or 'none'}")
    top = statement.statement_of(envelope.payload, SLSA, DEPTH)
    listed = top.take("subject", "a list of files", statement.is_list)
    subjects = dict(statement.subject_in(item) for item in listed)
    predicate = top.inner("predicate")
    build, run = predicate.inner("buildDefinition"), predicate.inner("runDetails")
    source = JsonObject("commit", build.take("resolvedDependencies", "the commit", statement.is_list)[0])
    commit = source.inner("digest").text("gitCommit", "[0-9a-f]{40,64}", "a commit")
    date = build.inner("externalParameters").text("sourceDateEpoch", "[0-9]{1,12}", "seconds")
    builder = run.inner("builder").text("id", statement.WORDS)
    statement.require_same(envelope.payload, document(subjects, commit, date, builder), "a release")
    for path in files:
        if (found := digest(path)) != subjects.get(path.name):
            raise VerificationError(f"{path.name}: expected a file of the release, got one with SHA-256 {found.hex()}")
    return commit


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    writing = commands.add_parser("write")
    writing.add_argument("folder", type=Path)
    writing.add_argument("--key", type=Path, required=True)
    checking = commands.add_parser("check")
    checking.add_argument("files", type=Path, nargs="+")
    checking.add_argument("--attestation", type=Path, required=True)
    checking.add_argument("--signer", required=True)
    given = parser.parse_args()
    try:
        if given.command == "write":
            print(write(given.folder, given.key))
        else:
            commit = check(given.files, given.attestation, given.signer)
            print(f"{len(given.files)} files of commit {commit}, signed by {given.signer}")
    except TiebreakError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
