"""Counts lines of Python and C by folder, without tests, against a budget. `make lint` fails above the budget.

A successor has to hold the whole code base in mind, so a budget is raised only in a commit that says why.
"""

import subprocess
import sys
from pathlib import Path

BUDGETS = {
    "tiebreak/protocol/": 15_680,
    "tiebreak/engine/": 25_750,
    "tiebreak/sim/": 11_965,
    "tiebreak/node/": 9_990,
    "tiebreak/": 12_735,  # api, cli, demo: everything that is in none of the folders above
    "benchmarks/": 5_575,
}
SUFFIXES = {".py", ".c", ".h"}


def count(root: Path) -> dict[str, int]:
    """Counts the lines of the files that git tracks, each in the first folder of `BUDGETS` that contains it."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, check=True, text=True).stdout
    found = dict.fromkeys(BUDGETS, 0)
    for name in listed.split("\0"):
        folder, path = next((folder for folder in BUDGETS if name.startswith(folder)), None), root / name
        if folder is not None and path.suffix in SUFFIXES and path.is_file():
            found[folder] += len(path.read_bytes().splitlines())
    return found


def main(root: Path) -> int:
    """Prints the table; returns 1 if a folder is over its budget."""
    found = count(root)
    for folder, lines in found.items():
        over = "  over its budget" if lines > BUDGETS[folder] else ""
        print(f"{folder:<20}{lines:>7,} of {BUDGETS[folder]:>6,} lines{over}")
    return int(any(lines > BUDGETS[folder] for folder, lines in found.items()))


if __name__ == "__main__":
    sys.exit(main(Path(__file__).resolve().parents[1]))
