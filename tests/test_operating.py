"""Containers, systemd units and the operators' page name only commands, files and messages that exist."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from tests.source_tree import ROOT
from tests.waiting import free_port, until
from tiebreak.cli.main import all_commands

UNITS = sorted((ROOT / "examples" / "systemd").glob("*.service"))
ALARMS = [
    *(ROOT / "tiebreak/protocol/parties").glob("*.py"),
    *(ROOT / "tiebreak/engine/data").glob("*.py"),
    *(ROOT / "tiebreak/node").glob("*.py"),
    *(ROOT / "tiebreak/node/hub").glob("*.py"),
]


def test_commands_in_the_operators_page_exist(cases: Callable[[], None]) -> None:
    for command in re.findall("`tiebreak (\\w+)", (ROOT / "docs" / "operate.md").read_text()):
        assert command in {*all_commands(), "client", "trainer", "auditor", "watcher"}
        cases()


def test_services_run_what_they_are_named_after() -> None:
    services = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    assert set(services) == {"chain", "hub", "client", "trainer", "trainer-cuda", "auditor", "serve"}
    assert services["trainer-cuda"]["gpus"] == "all"
    assert [services[name]["profiles"] for name in ("trainer-cuda", "serve")] == [["gpu"], ["serve"]], "only on request"
    for name, service in services.items():
        if name != "chain":
            assert service["command"][0] == name.removesuffix("-cuda")
            assert service["cap_drop"] == ["ALL"]
            own = ["/models:ro"] if name == "serve" else []
            assert [volume.rpartition("}")[2].split(":", 1)[1] for volume in service["volumes"]] == ["/party", *own]


def interpolated(value: Any, environment: Mapping[str, str]) -> Any:
    """A part of the file with its variables filled in, as Compose does it for the whole file at each command."""
    if isinstance(value, dict):
        return {name: interpolated(inner, environment) for name, inner in value.items()}
    if isinstance(value, list):
        return [interpolated(inner, environment) for inner in value]

    def filled(found: re.Match[str]) -> str:
        name, kind, default = found.groups()
        if environment.get(name):
            return environment[name]
        assert kind == "-", f"{name} is not set: {default}"
        return default

    return re.sub(r"\$\{(\w+):([-?])([^}]*)\}", filled, value) if isinstance(value, str) else value


Started = tuple[str, list[str], dict[str, str], bool]
"""A service, the arguments of its program, the variables that it has, and whether it stays."""


def started(words: list[str], services: Mapping[str, Any]) -> list[tuple[str, list[str], bool]]:
    """The services that a command of Compose starts, with their arguments, and whether they stay."""
    match words:
        case ["docker", "compose", "build"]:
            return []
        case ["docker", "compose", "exec", service, *arguments]:
            return [(service, arguments, False)]
        case ["docker", "compose", "run", "--rm", "--no-deps", service, *arguments]:
            return [(service, arguments, False)]
        case ["docker", "compose", "run", "--rm", service, *arguments]:
            first = services[service].get("depends_on", [])
            return [*((name, services[name]["command"], True) for name in first), (service, arguments, False)]
        case ["docker", "compose", "up", "-d", *named]:
            usual = [name for name in services if "profiles" not in services[name]]
            return [(name, services[name].get("command", []), True) for name in named or usual]
    pytest.fail(f"expected a command of Compose, got {words}")


def as_its_comment_says(given: Mapping[str, str]) -> Iterator[Started]:
    """All that Compose starts, in order, if its file's own comment is followed. given: values that it leaves open."""
    text, environment = (ROOT / "compose.yaml").read_text(), dict[str, str]()
    lines = [line[4:] for line in text.partition("x-party")[0].splitlines() if line.startswith("#   ")]
    assert len(lines) >= 9
    for line in lines:
        words = shlex.split(line, comments=True)
        if words[0] == "export":
            for name, _, value in (word.partition("=") for word in words[1:]):
                environment[name] = given[name] if value.endswith("...") else value
            continue
        services = interpolated(yaml.safe_load(text)["services"], environment)
        found = started(words, services)
        if "and the same for client and auditor" in line:
            others = [[word.replace("trainer", who) for word in words] for who in ("client", "auditor")]
            found += [one for other in others for one in started(other, services)]
        for service, arguments, stays in found:
            yield service, arguments, services[service].get("environment", {}), stays


def test_long_running_services_start_only_with_a_deployed_board() -> None:
    board = "0x" + "ab" * 20
    found = list(as_its_comment_says({
        "TIEBREAK_PASSPHRASE": "x", "TIEBREAK_ANVIL": "anvil", "TIEBREAK_BOARD": board, "TIEBREAK_CLIENTS": board,
    }))  # fmt: skip
    staying = [(service, arguments, environment) for service, arguments, environment, stays in found if stays]
    assert [service for service, _, _ in staying] == ["chain", "chain", "hub", "client", "trainer", "auditor"]
    for service, arguments, environment in staying:
        if service != "chain":
            assert environment["TIEBREAK_BOARD"] == board
            assert service != "hub" or f"--board={board}" in arguments
    once = [arguments for _, arguments, _, stays in found if not stays]
    assert [arguments[0] for arguments in once] == ["hub", "trainer", "client", "auditor", "cast", "chain"]


COMMAND = "import sys; from tiebreak.cli.main import run, tiebreak; sys.exit(run(tiebreak, sys.argv[1:]))"


class Containers:
    """Processes in place of containers: each service has a folder, the hub and the chain have ports of their own.

    In place of anvil, which sets balances, stands our own chain, whose keys with money are put into the folders.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.processes = folder, dict[str, subprocess.Popen[str]]()
        self.hub, self.chain = free_port(), free_port()
        self.passphrase = {"TIEBREAK_PASSPHRASE": "of this test"}

    def start(self, service: str, arguments: list[str], environment: Mapping[str, str]) -> subprocess.Popen[str]:
        here = {
            "/party": str(self.folder / service), "http://chain:8545": f"http://127.0.0.1:{self.chain}",
            "http://hub:8787": f"http://127.0.0.1:{self.hub}", "0.0.0.0": "127.0.0.1",
        }  # fmt: skip

        def moved(text: str) -> str:
            for name, place in here.items():
                text = text.replace(name, place)
            return text

        variables = {name: moved(value) for name, value in environment.items()}
        return subprocess.Popen(
            [sys.executable, "-c", COMMAND, *map(moved, arguments)], cwd=ROOT, env={**os.environ, **variables},
            stdout=subprocess.PIPE, stderr=(self.folder / f"{service}.log").open("a"), text=True,
        )  # fmt: skip

    def stay(self, service: str, arguments: list[str], environment: Mapping[str, str]) -> None:
        if service == "hub":
            arguments = [*arguments, f"--port={self.hub}"]
        if service == "chain" and service not in self.processes:
            more = ["--port", str(self.chain), "--keys", str(self.folder), "--block-time", "2", "--json"]
            self.processes[service] = self.start(service, ["devnet", "--embedded", *more], self.passphrase)
            until((self.folder / "account-3.pem").exists, 60)
        elif service != "chain":
            assert service not in self.processes, "Compose would make it anew"
            self.processes[service] = self.start(service, arguments, environment)

    def once(self, service: str, arguments: list[str], environment: Mapping[str, str]) -> str:
        done = self.start(service, arguments, environment)
        printed, _ = done.communicate(timeout=120)
        assert done.returncode == 0, (self.folder / f"{service}.log").read_text()
        return printed

    def answer(self, path: str) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.hub}{path}", timeout=10) as found:
            return json.load(found)

    def end(self) -> None:
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            process.wait(60)


@pytest.mark.slow
def test_network_starts_with_the_commands_in_compose_yaml(tmp_path: Path) -> None:
    """Its very commands, in order; the hub and the parties then stay, and belong to the board that was deployed."""
    here, given = Containers(tmp_path), {"TIEBREAK_ANVIL": "anvil", "TIEBREAK_CLIENTS": "0x" + "ab" * 20}
    given |= here.passphrase
    try:
        for service, arguments, environment, stays in as_its_comment_says(given):
            if stays:
                here.stay(service, arguments, environment)
            elif arguments[0] != "cast":
                (tmp_path / service).mkdir(exist_ok=True)
                printed = here.once(service, arguments, environment)
                if arguments[1:2] == ["init"]:
                    number = ["client", "trainer", "auditor"].index(service) + 1
                    given[f"{service} key"] = f"account-{number}.pem"
                elif arguments[:2] == ["chain", "deploy"]:
                    (given["TIEBREAK_BOARD"],) = re.findall(r"^Board +(0x[0-9a-f]{40})", printed, re.MULTILINE)
            else:  # the chain is there: what would set the balances
                for who in ("client", "trainer", "auditor"):
                    shutil.copy(tmp_path / given[f"{who} key"], tmp_path / who / "key.pem")
        until(lambda: all((tmp_path / who / "status.json").exists() for who in ("client", "trainer", "auditor")), 120)
        assert here.answer("/key")["contract"] == given["TIEBREAK_BOARD"]
        assert here.answer("/healthz")["status"] == "ok"
        assert [name for name, process in here.processes.items() if process.poll() is not None] == []
    finally:
        here.end()


def walk_of_the_page(rpc: int, hub: int) -> str:
    """The lines of "From nothing to a network" as a script, with the ports and what the chain prints filled in."""
    section = (ROOT / "docs" / "operate.md").read_text().split("## From nothing to a network")[1]
    lines = section.split("```bash\n")[1].split("```")[0].replace("8545", str(rpc)).replace("8787", str(hub))
    assert lines.count("tiebreak devnet --embedded") == lines.count("TIEBREAK_BOARD=0x... CHAIN_ID=...") == 1
    lines = re.sub(
        r"(tiebreak devnet .*?) &", r"\1 > devnet.log &\nuntil grep -q ^Board devnet.log; do sleep 0.2; done", lines
    )
    board, number = (f"$(grep '^{name} ' devnet.log | grep -oE '[0-9a-fx]+$')" for name in ("Board", "chain id"))
    lines = lines.replace("0x... CHAIN_ID=...", f"{board} CHAIN_ID={number}")
    lines = re.sub(r"tiebreak (trainer|auditor|client) run (\w+) &", r"tiebreak \1 run \2 2> \1.log &", lines)
    return f'set -eu\ntiebreak() {{ {shlex.quote(sys.executable)} -c {shlex.quote(COMMAND)} "$@"; }}\n{lines}'


def test_operators_page_walkthrough_is_a_valid_shell_script() -> None:
    script = walk_of_the_page(1, 2)
    subprocess.run(["bash", "-n", "-c", script], check=True)
    for command in ("tiebreak hub --init", "tiebreak trainer run", "tiebreak capture task.py", "tiebreak agree job"):
        assert script.count(command) == 1 or "$who init" in script
    assert "..." not in re.sub("#.*", "", script)


@pytest.mark.nightly
def test_operators_page_walkthrough_settles_or_costs_nothing(tmp_path: Path) -> None:
    """Its very commands. However loaded the machine is, an honest trainer earns the reward, or it signs nothing."""
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    (tmp_path / "task.py").write_text(example)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    script = walk_of_the_page(free_port(), free_port()) + "\nwait\n"
    started = time.monotonic()
    shell = subprocess.Popen(
        ["bash", "-c", script], cwd=tmp_path, env=environment, stdin=subprocess.DEVNULL, start_new_session=True
    )

    def told() -> str:
        return (tmp_path / "trainer.log").read_text() if (tmp_path / "trainer.log").exists() else ""

    def status() -> dict[str, Any]:
        path = tmp_path / "trainer" / "status.json"
        return json.loads(path.read_text()) if path.exists() else {"jobs": {}}

    def is_over() -> bool:
        assert shell.poll() is None, "the script ended"
        return "not signed: " in told() or any(
            job["status"] not in ("offered", "active") for job in status()["jobs"].values()
        )

    try:
        until(is_over, 1500)
        found = status()
        if found["jobs"] and "not signed: " not in told():
            assert [(job["status"], job["why"]) for job in found["jobs"].values()] == [("settled", "")]
            sys.stderr.write(f"settled {(time.monotonic() - started) / 60:.1f} minutes after the first line\n")
        else:
            assert re.search(
                r"not signed: expected a .* of at least .*: here a start takes .* s and a step .* s", told()
            )
            assert found["at_risk"] == 0
            assert found["balance"] == 10_000 * 10**18
    finally:
        os.killpg(shell.pid, signal.SIGTERM)
        shell.wait(60)


@pytest.mark.parametrize("file", ["Dockerfile", "Dockerfile.cuda"])
def test_containers_carry_what_the_package_needs(file: str) -> None:
    copied = re.findall(r"^COPY (?!--)(.*)$", (ROOT / file).read_text(), flags=re.MULTILINE)
    sources = [source for line in copied for source in line.split()[:-1]]
    assert len(sources) >= 8
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    for source in sources:
        assert (ROOT / source).exists(), source
        assert source in allowed, f"{source} is kept out of the context"


def test_units_run_what_they_are_named_after(cases: Callable[[], None]) -> None:
    assert len(UNITS) == 4
    for unit in UNITS:
        text = unit.read_text()
        (command,) = re.findall(r"^ExecStart=/usr/local/tiebreak/bin/tiebreak (\w+) ", text, flags=re.MULTILINE)
        assert unit.stem == f"tiebreak-{command}"
        assert "Restart=always" in text
        assert "TIEBREAK_PASSPHRASE=" not in re.sub("#.*", "", text), "a unit is readable by all"
        cases()


def test_alarms_in_the_operators_page_exist_in_the_source(cases: Callable[[], None]) -> None:
    """Each quoted text stands in the source, as the part of a message that is always the same."""
    table = (ROOT / "docs" / "operate.md").read_text().split("## Alarms")[1].split("Metrics worth")[0]
    sources = "".join(path.read_text() for path in ALARMS)
    rows = [row.split("|")[1] for row in table.splitlines() if row.startswith("| ")]
    quoted = [text for row in rows for text in re.findall("`([^`]+)`", row)]
    assert len(quoted) >= 12
    for text in quoted:
        assert text in sources, text
        cases()
