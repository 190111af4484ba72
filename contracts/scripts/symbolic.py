"""Runs halmos on test/symbolic: every `check_` proven, every `wrong_` refuted. `make symbolic` calls it.

A `wrong_` function states something false; that its counterexample is found shows that the proofs beside it could fail.
symbolic.json keeps what was proven: of each contract, a digest of its bytecode, of this file and of the tools. Proofs
of the same bytes come out the same, so `--changed` passes over them.
"""

import argparse
import hashlib
import json
import multiprocessing
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import halmos.sevm  # type: ignore[import-not-found,unused-ignore]
from halmos.__main__ import _main  # type: ignore[import-not-found,unused-ignore]
from z3 import BitVecSort  # type: ignore[import-not-found,unused-ignore]

HERE = Path(__file__).resolve().parent.parent
PROVEN = HERE / "symbolic.json"
SECONDS = 120
TRIES = 3
"""How often halmos is started before a signal that ends it counts as a failure."""
BRANCHING = {"ClockSymbolic": "1ms", "RoundingSymbolic": "1ms", "TalkSymbolic": "1ms", "TreesSymbolic": "2s"}
"""How long a branch may take to decide. Undecided, both ways are taken: slower, but not wrong. Only the trees'
second way runs into a loop bound."""
PASSED, REFUTED = 0, 1

_function = halmos.sevm.Function


def function(name: str, *sorts: Any) -> Any:
    """halmos 0.3.3 declares SHA-256 over as many bits as there are bytes; declare it over the bytes."""
    if name.startswith("f_sha256_"):
        return _function(name, BitVecSort(8 * int(name.removeprefix("f_sha256_"))), sorts[-1])
    return _function(name, *sorts)


def prove(prefix: str, contract: str, report: Path) -> None:
    """Write what halmos finds for the functions of a contract with a prefix.

    Garbage collection is off: it can run in any of halmos's threads, and freeing Z3's terms there while the main
    thread solves may crash Z3.
    """
    halmos.sevm.Function = function
    arguments = ["--root", str(HERE), "--forge-build-out", "out/symbolic", "--function", prefix, "--no-status"]
    arguments += ["--contract", contract, "--solver-timeout-assertion", f"{SECONDS}s", "--disable-gc"]
    arguments += ["--solver-timeout-branching", BRANCHING[contract], "--json-output", str(report)]
    _main(arguments)


def run(prefix: str, contract: str) -> dict[str, dict[str, Any]]:
    """Exit code and figures of each function of a contract with a prefix, found in a separate process: Z3 may crash."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        for _ in range(TRIES):
            process = multiprocessing.get_context("spawn").Process(target=prove, args=(prefix, contract, report))
            process.start()
            process.join()
            if (process.exitcode or 0) >= 0:
                break
            print(f"{contract}: halmos was ended by signal {-process.exitcode}", file=sys.stderr)
        if process.exitcode != 0:
            sys.exit(f"{contract}: expected halmos to end, got exit code {process.exitcode}")
        results: dict[str, list[dict[str, Any]]] = json.loads(report.read_text())["test_results"]
    return {f"{where.rsplit(':', 1)[1]}.{test['name']}": test for where, tests in results.items() for test in tests}


def declared(prefix: str) -> set[str]:
    """The functions that the sources have, so that none is passed over."""
    found = set()
    for path in (HERE / "test" / "symbolic").glob("*.t.sol"):
        for line in path.read_text().splitlines():
            if line.strip().startswith(f"function {prefix}"):
                found.add(f"{path.name.removesuffix('.t.sol')}.{line.split('function ')[1].split('(')[0]}")
    return found


def failures(prefix: str, expected: int, contract: str) -> list[str]:
    """What did not come out as it has to."""
    results = {name.split("(")[0]: test for name, test in run(prefix, contract).items()}
    names = {name for name in declared(prefix) if name.startswith(f"{contract}.")}
    wrong = [f"{name}: expected a result, got none" for name in names - set(results)]
    for name, test in results.items():
        if test["exitcode"] != expected:
            wrong.append(f"{name}: expected exit code {expected}, got {test['exitcode']}")
        if expected == PASSED and test["num_bounded_loops"]:
            wrong.append(f"{name}: expected every path, got {test['num_bounded_loops']} cut off at a loop bound")
    if not results:
        wrong.append(f"{contract}: expected functions {prefix}, got none")
    return wrong


def digest(contract: str) -> str:
    """SHA-256 (hexadecimal) of all that the answers depend on."""
    compiled = json.loads((HERE / "out" / "symbolic" / f"{contract}.t.sol" / f"{contract}.json").read_text())
    code = compiled["deployedBytecode"]["object"] + compiled["bytecode"]["object"]
    tools = [path.read_bytes() for path in (Path(__file__), HERE / "tools.txt")]
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in (code.encode(), *tools))).hexdigest()


def main() -> None:
    """Prove all contracts, or those named or changed, and write into symbolic.json what was proven."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("contracts", nargs="*", help="only these")
    parser.add_argument("--changed", action="store_true", help="only those that symbolic.json does not say are proven")
    arguments = parser.parse_args()
    everything = sorted({name.partition(".")[0] for name in declared("")})
    subprocess.run(["forge", "build", "--root", str(HERE)], check=True)
    digests = {contract: digest(contract) for contract in everything}
    chosen = arguments.contracts or everything
    proven = json.loads(PROVEN.read_text())
    if arguments.changed:
        chosen = [contract for contract in chosen if proven.get(contract) != digests[contract]]
        print(f"changed since they were proven: {', '.join(chosen) or 'none'}")
    wrong = []
    for contract in chosen:
        wrong += failures("check_", PASSED, contract) + failures("wrong_", REFUTED, contract)
    if wrong:
        sys.exit("\n".join(wrong))
    kept = {contract: digests[contract] if contract in chosen else proven.get(contract) for contract in everything}
    PROVEN.write_text(json.dumps(kept, indent=2) + "\n")


if __name__ == "__main__":
    main()
