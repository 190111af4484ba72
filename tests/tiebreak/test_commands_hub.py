"""`tiebreak hub`: made by --init, run as a process, ended by a signal."""

import json
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.source_tree import ROOT
from tiebreak.cli.key import PASSPHRASE_VARIABLE
from tiebreak.cli.main import run, tiebreak
from tiebreak.node.hub.limits import Limits
from tiebreak.node.hub.serving import read_configuration, template
from tiebreak.node.mail import Mail
from tiebreak.protocol.chain.devnet import free_port
from tiebreak.protocol.commitments.eip712 import OFF_CHAIN
from tiebreak.protocol.errors import ConfigurationError

COMMAND = "import sys; from tiebreak.cli.main import run, tiebreak; sys.exit(run(tiebreak, sys.argv[1:]))"


@pytest.fixture(autouse=True)
def passphrase(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PASSPHRASE_VARIABLE, "a passphrase")


def test_a_hub_is_made_runs_and_ends(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "hub"
    assert run(tiebreak, ["hub", "--folder", str(folder), "--init"]) == 0
    address = capsys.readouterr().out[:42]
    assert run(tiebreak, ["hub", "--folder", str(folder), "--init"]) == 1
    port = free_port()
    arguments = [sys.executable, "-c", COMMAND, "hub", "--folder", str(folder), "--port", str(port)]
    process = subprocess.Popen(arguments, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        assert process.stderr.readline() == f"hub {address} at http://127.0.0.1:{port}\n"
        assert Mail(f"http://127.0.0.1:{port}", OFF_CHAIN).hub.hex() == address[2:]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=10) as answer:
            assert json.load(answer) == {"status": "ok", "place": 0}
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=10) as answer:
            assert b"<html" in answer.read()
        second = [*arguments[:-1], str(free_port())]
        found = subprocess.run(second, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
        assert found.returncode == 1
        assert "another hub works in" in found.stderr
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) in (0, -signal.SIGTERM)
    finally:
        process.kill()


def test_the_configuration_is_read_strictly(tmp_path: Path) -> None:
    path = tmp_path / "hub.toml"
    path.write_text(template())
    assert read_configuration(path)["port"] == 8787
    path.write_text(template().replace("# free_bytes", "free_bytes"))
    assert read_configuration(path)["limits"] == {"free_bytes": Limits().free_bytes}
    for text in ("port = '1'", "ports = 1", "[limits]\nbytes = 1", "[limits]\nfree_bytes = -1", "port"):
        path.write_text(text)
        with pytest.raises(ConfigurationError, match=r"hub\.toml"):
            read_configuration(path)
    assert run(tiebreak, ["hub", "--folder", str(tmp_path), "--contract", "0x12"]) == 1
