"""The attestation and the notes of a release, as docs/releases.md and the workflow make and check them."""

import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from scripts import attest, notes
from tests.source_tree import ROOT
from tests.tiebreak.parties import PASSPHRASE
from tiebreak.api.signing.keys import new_key, save_key
from tiebreak.protocol.commitments.dsse import Envelope


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Runs `python -m scripts.attest ...` in a folder that has a key and the files of a release in `release/`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TIEBREAK_PASSPHRASE", PASSPHRASE)
    key = new_key()
    save_key(key, "release.pem", PASSPHRASE)
    Path("release").mkdir()
    for name in ("tiebreak-0.1.0-py3-none-any.whl", "tiebreak-0.1.0.tar.gz"):
        Path("release", name).write_bytes(name.encode())

    def run(command: str) -> None:
        words = shlex.split(command.replace("SIGNER", f"0x{key.address.hex()}"))
        assert words[:3] == ["python", "-m", "scripts.attest"]
        found = [str(path) for word in words[3:] for path in (Path().glob(word) if "*" in word else [word])]
        monkeypatch.setattr(sys, "argv", ["attest", *found])
        attest.main()

    run("python -m scripts.attest write release --key release.pem")
    return run


def documented() -> str:
    (line,) = (line.strip() for line in (ROOT / "docs/releases.md").read_text().splitlines() if "attest check" in line)
    return line


def test_documented_command_accepts_a_release(run: Callable[[str], None], capsys: pytest.CaptureFixture[str]) -> None:
    run(documented())
    assert "1 files of commit " in capsys.readouterr().out
    run(documented().replace(".whl", "0.*"))


@pytest.mark.parametrize("lie", ["file", "name", "signer", "statement", "signature"])
def test_documented_command_refuses(run: Callable[[str], None], lie: str) -> None:
    """Another file, a file that is not of the release, another signer, another spelling, another's signature."""
    command, path = documented(), Path("release", attest.NAME)
    envelope = Envelope.decode(path.read_bytes())
    match lie:
        case "file":
            Path("release/tiebreak-0.1.0-py3-none-any.whl").write_bytes(b"another")
        case "name":
            Path("release/tiebreak-0.1.1-py3-none-any.whl").write_bytes(b"tiebreak-0.1.0-py3-none-any.whl")
        case "signer":
            command = command.replace("SIGNER", f"0x{'11' * 20}")
        case "statement":
            spaced = envelope.payload.data.replace(b":", b": ", 1)
            key = attest.load_key("release.pem", PASSPHRASE)
            changed = Envelope(payload=type(envelope.payload)(kind=envelope.payload.kind, data=spaced))
            path.write_bytes(attest.statement.sign(changed, key).encode())
        case _:
            other = attest.statement.sign(Envelope(payload=envelope.payload), new_key())
            path.write_bytes(envelope.signed(envelope.signatures[0][0], other.signatures[0][1]).encode())
    with pytest.raises(SystemExit, match="expected"):
        run(command)


def test_notes_are_the_section_of_the_version() -> None:
    text = "# Changelog\n\n## [Unreleased]\n\n- a\n\n## [0.2.0] - 2026-12-01\n\n### Added\n\n- b\n\n## [0.1.0]\n- c\n"
    assert notes.notes(text, "0.2.0") == "### Added\n\n- b\n"
    assert notes.notes(text, "0.1.0") == "- c\n"
    for missing in ("0.3.0", "0.1"):
        with pytest.raises(LookupError, match="expected a section"):
            notes.notes(text, missing)
