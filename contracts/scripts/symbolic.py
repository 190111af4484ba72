"""Runs halmos on test/symbolic: every `check_` proven, every `wrong_` refuted. `make symbolic` calls it.

A `wrong_` function states something false; that its counterexample is found shows that the proofs beside it could fail.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import halmos.sevm  # type: ignore[import-not-found,unused-ignore]
from halmos.__main__ import _main  # type: ignore[import-not-found,unused-ignore]
from z3 import BitVecSort  # type: ignore[import-not-found,unused-ignore]

HERE = Path(__file__).resolve().parent.parent
SECONDS = 120
PASSED, REFUTED = 0, 1

_function = halmos.sevm.Function


def function(name: str, *sorts: Any) -> Any:
    """halmos 0.3.3 declares SHA-256 over as many bits as there are bytes; declare it over the bytes."""
    if name.startswith("f_sha256_"):
        return _function(name, BitVecSort(8 * int(name.removeprefix("f_sha256_"))), sorts[-1])
    return _function(name, *sorts)


def run(prefix: str, contracts: str) -> dict[str, dict[str, Any]]:
    """Exit code and figures of each function with a prefix."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        arguments = ["--root", str(HERE), "--forge-build-out", "out/symbolic", "--function", prefix, "--no-status"]
        arguments += ["--match-contract", contracts, "--solver-timeout-assertion", f"{SECONDS}s"]
        arguments += ["--json-output", str(report)]
        _main(arguments)
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


def failures(prefix: str, expected: int, contracts: str) -> list[str]:
    """What did not come out as it has to."""
    results = {name.split("(")[0]: test for name, test in run(prefix, contracts).items()}
    names = {name for name in declared(prefix) if contracts in name}
    wrong = [f"{name}: expected a result, got none" for name in names - set(results)]
    for name, test in results.items():
        if test["exitcode"] != expected:
            wrong.append(f"{name}: expected exit code {expected}, got {test['exitcode']}")
        if expected == PASSED and test["num_bounded_loops"]:
            wrong.append(f"{name}: expected every path, got {test['num_bounded_loops']} cut off at a loop bound")
    if not results:
        wrong.append(f"expected functions {prefix}, got none")
    return wrong


def main() -> None:
    """All, or those of the contracts whose name has the one argument."""
    halmos.sevm.Function = function
    contracts = sys.argv[1] if len(sys.argv) > 1 else "Symbolic"
    wrong = failures("check_", PASSED, contracts) + failures("wrong_", REFUTED, contracts)
    print("\n".join(wrong))
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
