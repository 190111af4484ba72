"""`tiebreak devnet`, `chain deploy` and `hub`: a chain and a hub of one's own, as processes that end by a signal."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

from tests.source_tree import ROOT
from tests.tiebreak.parties import PASSPHRASE, Commands
from tests.waiting import free_port
from tiebreak.api.signing.keys import load_key, new_key, save_key
from tiebreak.cli.key import PASSPHRASE_VARIABLE
from tiebreak.cli.main import run, tiebreak
from tiebreak.node.hub import process
from tiebreak.node.hub.limits import HubLimits
from tiebreak.node.hub.process import read_configuration, template
from tiebreak.node.hub_client import HubClient
from tiebreak.protocol.commitments.eip712 import OFF_CHAIN
from tiebreak.protocol.errors import ConfigurationError

COMMAND = "import sys; from tiebreak.cli.main import run, tiebreak; sys.exit(run(tiebreak, sys.argv[1:]))"


@pytest.fixture(autouse=True)
def _passphrase(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PASSPHRASE_VARIABLE, PASSPHRASE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("devnet")


@pytest.fixture(scope="module")
def devnet(folder: Path) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """The command as a process of its own; it must say what it runs, and end by SIGTERM."""
    port = free_port()
    arguments = ["devnet", "--embedded", "--json", "--port", str(port), "--accounts", "2", "--keys", str(folder)]
    command, environment = [sys.executable, "-c", COMMAND, *arguments], os.environ | {PASSPHRASE_VARIABLE: PASSPHRASE}
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process, json.loads("".join(takewhile(lambda line: line != "}\n", process.stdout)) + "}")
        assert process.poll() is None, "it runs until it is told to stop"
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


@pytest.mark.slow
def test_contracts_are_deployed_and_checked_on_an_embedded_devnet(devnet: Any, folder: Path, command: Commands) -> None:
    _, found = devnet
    assert found["node"] == "embedded"
    assert set(found["contracts"]) == {"Transcendentals", "Referee", "Games", "Board"}
    assert len(found["accounts"]) == 2
    key, output = folder / "account-1.pem", folder / "deployment.json"
    assert "0x" + load_key(key, PASSPHRASE).address.hex() == found["accounts"][1]["address"]

    def deploy(*more: object, code: int = 0) -> str:
        return command("chain", "deploy", "--rpc", found["rpc"], *more, code=code)

    assert "expected chain id 1, got" in deploy("--key", key, "--chain-id", 1, "-o", output, code=1)
    printed, warned = command.printed("chain", "deploy", "--rpc", found["rpc"], "--key", key, "-o", output)
    made = json.loads(output.read_text())
    assert made["chainId"] == found["chainId"]
    assert made["contracts"]["Board"]["address"] in printed
    assert "warning: prevrandao was the same" in warned, "the embedded chain has none"
    assert deploy("--check", output).count("this version's code") == 4
    assert "already exists" in deploy("--key", key, "-o", output, code=1)
    assert "expected --key FILE" in deploy(code=1)
    poor = folder / "poor.pem"
    save_key(new_key(), poor, PASSPHRASE)
    assert "InsufficientFunds" in deploy("--key", poor, "-o", folder / "other.json", code=1)
    made["contracts"]["Board"]["address"] = found["accounts"][0]["address"]
    (folder / "wrong.json").write_text(json.dumps(made))
    assert "ContractMismatch" in deploy("--check", folder / "wrong.json", code=1)
    port = found["rpc"].rpartition(":")[2]
    assert "choose another --port" in command("devnet", "--embedded", "--port", port, code=1)


# ---------------------------------------------------------------- a hub


@pytest.mark.slow
def test_a_hub_is_initialised_served_and_stopped_by_a_signal(tmp_path: Path, command: Commands) -> None:
    folder = tmp_path / "hub"
    address = command("hub", "--folder", folder, "--init")[:42]
    command("hub", "--folder", folder, "--init", code=1)
    port = free_port()
    arguments = [sys.executable, "-c", COMMAND, "hub", "--folder", str(folder), "--port", str(port)]
    process = subprocess.Popen(arguments, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        assert process.stderr.readline() == f"hub {address} at http://127.0.0.1:{port}\n"
        assert HubClient(f"http://127.0.0.1:{port}", OFF_CHAIN).hub.hex() == address[2:]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=10) as answer:
            assert json.load(answer) == {"status": "ok", "place": 0}
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=10) as answer:
            assert b"<html" in answer.read()
        assert "another hub works in" in command("hub", "--folder", folder, "--port", free_port(), code=1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) in (0, -signal.SIGTERM)
    finally:
        process.kill()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--chain-id", "31337"], "expected a chain's id and its board, or neither, got chain 31337 and board 0x00"),
        (["--chain-id", "31337", "--board", "0x" + "00" * 20], "expected a chain's id and its board, or neither"),
        (["--board", "0x" + "11" * 20], "got chain 0 and board 0x11"),
        (["--chain-id", "31337", "--board", ""], "expected a chain id and the address of a board"),
    ],
)
def test_a_hub_with_an_incomplete_domain_is_refused_before_writing(
    tmp_path: Path, command: Commands, monkeypatch: pytest.MonkeyPatch, given: list[str], said: str
) -> None:
    monkeypatch.setattr(process, "serve", lambda *_, **__: pytest.fail("it would serve"))
    command("hub", "--folder", tmp_path, "--init")
    assert said in command("hub", "--folder", tmp_path, *given, code=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hub.pem", "hub.toml"]


def test_the_hub_configuration_file_is_read_strictly(tmp_path: Path) -> None:
    path = tmp_path / "hub.toml"
    path.write_text(template())
    assert read_configuration(path)["port"] == 8787
    path.write_text(template().replace("# free_bytes", "free_bytes"))
    assert read_configuration(path)["limits"] == {"free_bytes": HubLimits().free_bytes}
    for text in ("port = '1'", "ports = 1", "[limits]\nbytes = 1", "[limits]\nfree_bytes = -1", "port"):
        path.write_text(text)
        with pytest.raises(ConfigurationError, match=r"hub\.toml"):
            read_configuration(path)
    assert run(tiebreak, ["hub", "--folder", str(tmp_path), "--board", "0x12"]) == 1
