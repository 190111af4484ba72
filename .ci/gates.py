"""Runs the gates: those that compute beside those that wait, each with a log of its own, until the first failure.

A gate starts when the gates that it needs have passed and enough cores are free; the list gives the order. The first
failure ends all others and shows the end of its log. At the end come the seconds of each gate: on the clock, and of
processors.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
LOGS: Final = ROOT / "ci-logs"
CORES: Final = 2.0
SHOWN: Final = 150
"""Lines of the log of a gate that failed; of one that passed, a tenth."""


@dataclass(frozen=True, kw_only=True)
class Gate:
    """A command in the root of the tree, and how many cores it keeps busy."""

    name: str
    command: str
    cores: float = 1.0
    after: tuple[str, ...] = ("setup",)


@dataclass(kw_only=True)
class Running:
    """A gate under way: its process, the file of its output, and when it began (seconds, monotonic)."""

    gate: Gate
    process: subprocess.Popen[bytes]
    log: Path
    start: float = field(default_factory=time.monotonic)


def debian() -> str:
    """A command that installs what the gates need of Debian's packages and is not there."""
    postgres = any(Path("/usr/lib/postgresql").glob("*/bin/initdb")) or shutil.which("initdb")
    wanted = {"spin": shutil.which("spin"), "chromium": shutil.which("chromium"), "postgresql": postgres}
    missing = [package for package, there in wanted.items() if not there]
    if not missing:
        return "true"
    as_root = "" if os.geteuid() == 0 else "sudo "
    install = f"{as_root}env DEBIAN_FRONTEND=noninteractive apt-get install"
    return f"{as_root}apt-get update -qq && {install} -qq -y {' '.join(missing)} > /dev/null"


HUBS: Final = "tests/tiebreak/node/test_hub.py tests/tiebreak/node/test_hub_database.py"
POSTGRES: Final = f"TIEBREAK_NEED_POSTGRES=1 .venv/bin/python -m pytest -q -n0 -k postgres {HUBS}"
# Byte code, which pip leaves out, is written once: workers that start together would each compile all of torch.
COMPILE: Final = "PYTHONDONTWRITEBYTECODE= .venv/bin/python -m pytest --collect-only -qq tests/tiebreak | tail -n 40"
EVERYTHING_ELSE: Final = "everything else"
GATES: Final = (
    Gate(name="setup", command="make setup", after=()),
    Gate(name="debian", command=debian(), cores=0.5, after=()),
    Gate(name="npm", command="make -C contracts setup", cores=0.5, after=()),
    Gate(name="compile", command=COMPILE),
    Gate(name="lint", command="make lint"),
    Gate(name="workflows", command="make workflows", cores=0.5, after=("npm",)),
    Gate(name="vectors", command="make vectors"),
    Gate(name="test", command="make test", after=("compile",)),
    Gate(name="test-all", command="make test-all", cores=0.5, after=("compile", "debian")),
    Gate(name="contracts", command="FOUNDRY_PROFILE=ci make contracts", after=("setup", "npm")),
    Gate(name="core", command=".ci/core", after=("test",)),
    Gate(name="slither", command="make -C contracts slither", after=("contracts",)),
    Gate(name="symbolic", command="make -C contracts symbolic CHANGED=--changed", after=("slither",)),
    Gate(name="anvil", command="make anvil", cores=0.5, after=("setup", "npm")),
    Gate(name="models", command="make model-quick", after=("debian",)),
    Gate(name="types", command="make types"),
    Gate(name="docs", command="make docs"),
    Gate(name="reproducible", command="make dist"),
    Gate(name="newest", command="make newest"),
    Gate(name="wasm", command="make wasm CHECK=--check", after=("setup", "debian", "npm")),
    Gate(name="postgres", command=POSTGRES, cores=0.5, after=("setup", "debian")),
    Gate(name="demo", command="make demo"),
    Gate(name="tree", command="git diff --exit-code --stat", after=(EVERYTHING_ELSE,)),
)


def chosen(names: list[str]) -> list[Gate]:
    """The named gates and what they need, or all."""
    gates = {gate.name: gate for gate in GATES}
    unknown = [name for name in names if name not in gates]
    if unknown:
        sys.exit(f"expected gates among {', '.join(gates)}, got {', '.join(unknown)}")
    wanted = set(names or gates)
    for gate in reversed(GATES):
        if gate.name in wanted:
            wanted |= set(gate.after) - {EVERYTHING_ELSE}
    return [gate for gate in GATES if gate.name in wanted]


def start(gate: Gate) -> Running:
    """Starts a gate in a session of its own, so that everything it starts can be ended."""
    log = LOGS / f"{gate.name}.log"
    print(f"=== {gate.name}: {gate.command}", flush=True)
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["/usr/bin/env", "bash", "-euo", "pipefail", "-c", gate.command],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return Running(gate=gate, process=process, log=log)


def end(running: list[Running]) -> None:
    """Ends gates with all that they started."""
    for signal_number in (signal.SIGTERM, signal.SIGKILL):
        for one in running:
            try:
                os.killpg(one.process.pid, signal_number)
            except ProcessLookupError:
                continue
        if signal_number == signal.SIGTERM:
            time.sleep(2)


def tail(log: Path, lines: int) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


def ready(gate: Gate, passed: set[str], waiting: list[Gate], running: list[Running]) -> bool:
    """Whether a gate can start now. One that needs more cores than there are starts alone."""
    if EVERYTHING_ELSE in gate.after:
        return waiting == [gate] and not running
    free = CORES - sum(one.gate.cores for one in running)
    return passed.issuperset(gate.after) and (gate.cores <= free or not running)


def run(waiting: list[Gate], running: list[Running]) -> list[str]:
    """Runs gates until all have passed; a line for each. Exits at the first that fails."""
    passed: set[str] = set()
    lines = []
    while waiting or running:
        while (gate := next((gate for gate in waiting if ready(gate, passed, waiting, running)), None)) is not None:
            waiting.remove(gate)
            running.append(start(gate))
        time.sleep(0.2)
        for one in list(running):
            pid, status, used = os.wait4(one.process.pid, os.WNOHANG)
            if pid == 0:
                continue
            one.process.returncode = os.waitstatus_to_exitcode(status)
            seconds, processor = time.monotonic() - one.start, used.ru_utime + used.ru_stime
            if one.process.returncode != 0:
                print(tail(one.log, SHOWN))
                sys.exit(f"=== {one.gate.name}: FAILED with {one.process.returncode} after {seconds:.0f} s")
            running.remove(one)
            passed.add(one.gate.name)
            print(tail(one.log, SHOWN // 10))
            print(f"=== {one.gate.name}: passed in {seconds:.0f} s", flush=True)
            lines.append(f"{one.gate.name:<12}{seconds:>7.0f} s{processor:>7.0f} s of processors")
    return lines


def main() -> None:
    begin = time.monotonic()
    gates = chosen(sys.argv[1:])
    shutil.rmtree(LOGS, ignore_errors=True)
    LOGS.mkdir()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # where it is ignored, tests that interrupt would fail
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    running: list[Running] = []
    try:
        lines = run(gates, running)
    finally:
        end(running)
    print("\n" + "\n".join(lines))
    print(f"All gates passed in {time.monotonic() - begin:.0f} s. Their logs: {LOGS.name}/")


if __name__ == "__main__":
    main()
