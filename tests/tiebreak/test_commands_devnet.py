"""`tiebreak devnet` and `tiebreak deploy`: a chain of one's own, and the contracts on it from a key file."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.source_tree import ROOT
from tests.tiebreak.parties import PASSPHRASE
from tiebreak.api.keys import load_key, new_key, save_key
from tiebreak.cli.key import PASSPHRASE_VARIABLE
from tiebreak.cli.main import run, tiebreak
from tiebreak.protocol.chain.devnet import free_port

COMMAND = "import sys; from tiebreak.cli.main import run, tiebreak; sys.exit(run(tiebreak, sys.argv[1:]))"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("devnet")


@pytest.fixture(scope="module")
def devnet(folder: Path) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """The command as a process of its own; it must say what it runs, and end by SIGTERM."""
    port = free_port()
    arguments = ["devnet", "--embedded", "--json", "--port", str(port), "--accounts", "2", "--keys", str(folder)]
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, *arguments],
        cwd=ROOT,
        env={**os.environ, PASSPHRASE_VARIABLE: PASSPHRASE},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    lines = ""
    for line in process.stdout:
        lines += line
        if line == "}\n":
            break
    try:
        yield process, json.loads(lines)
        assert process.poll() is None, "it runs until it is told to stop"
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


@pytest.mark.slow
def test_a_devnet_and_a_deployment_on_it(
    devnet: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(PASSPHRASE_VARIABLE, PASSPHRASE)
    _, found = devnet
    assert found["node"] == "embedded"
    assert set(found["contracts"]) == {"Transcendentals", "Referee", "Games", "Board"}
    assert len(found["accounts"]) == 2
    key = folder / "account-1.pem"
    assert "0x" + load_key(key, PASSPHRASE).address.hex() == found["accounts"][1]["address"]

    output = folder / "deployment.json"
    base = ["deploy", "--rpc", found["rpc"]]
    assert run(tiebreak, [*base, "--key", str(key), "--chain-id", "1", "-o", str(output)]) == 1
    assert "expected chain id 1, got" in capsys.readouterr().err
    assert run(tiebreak, [*base, "--key", str(key), "-o", str(output)]) == 0
    printed = capsys.readouterr().out
    assert json.loads(output.read_text())["chainId"] == found["chainId"]
    assert json.loads(output.read_text())["contracts"]["Board"]["address"] in printed
    assert run(tiebreak, [*base, "--check", str(output)]) == 0
    assert capsys.readouterr().out.count("this version's code") == 4

    assert run(tiebreak, [*base, "--key", str(key), "-o", str(output)]) == 1
    assert "already exists" in capsys.readouterr().err
    assert run(tiebreak, base) == 1
    assert "expected --key FILE" in capsys.readouterr().err
    poor = folder / "poor.pem"
    save_key(new_key(), poor, PASSPHRASE)
    assert run(tiebreak, [*base, "--key", str(poor), "-o", str(folder / "other.json")]) == 1
    assert "InsufficientFunds" in capsys.readouterr().err
    wrong = json.loads(output.read_text())
    wrong["contracts"]["Board"]["address"] = found["accounts"][0]["address"]
    (folder / "wrong.json").write_text(json.dumps(wrong))
    assert run(tiebreak, [*base, "--check", str(folder / "wrong.json")]) == 1
    assert "ContractMismatch" in capsys.readouterr().err
    port = found["rpc"].rpartition(":")[2]
    assert run(tiebreak, ["devnet", "--embedded", "--port", port]) == 1
    assert "choose another --port" in capsys.readouterr().err


def test_endpoints_that_are_none(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(tiebreak, ["deploy", "--rpc", str(tmp_path / "no.ipc")]) == 1
    assert "expected an http(s) URL or the path of a node's IPC socket" in capsys.readouterr().err
    assert run(tiebreak, ["deploy", "--rpc", "http://127.0.0.1:9"]) == 1
    assert "is it running" in capsys.readouterr().err
