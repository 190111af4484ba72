"""Compares what Slither finds in src with the explained findings of slither.json; a new or a vanished one fails.

`make slither` calls it with the path of Slither's JSON report. A finding is named by its detector and the function or
variable that it is about, not by lines, which move. The table in docs/verification.md has to hold the same:
`--table` prints it.
"""

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

CONTRACTS = Path(__file__).resolve().parent.parent
EXPLAINED = CONTRACTS / "slither.json"
DOCUMENT = CONTRACTS.parent / "docs" / "verification.md"


def place(element: dict[str, Any]) -> str:
    """Contract.function or Contract.function.variable, without argument types."""
    parts = []
    while element.get("name"):
        if element.get("type") != "node":
            parts.append(element["name"])
        element = element.get("type_specific_fields", {}).get("parent") or {}
    return ".".join(part for part in reversed(parts) if not part.endswith(".sol"))


def found(report: dict[str, Any]) -> Counter[tuple[str, str]]:
    """How often each detector speaks of each place."""
    results = report["results"].get("detectors", [])
    return Counter((result["check"], place(result["elements"][0])) for result in results)


def explained() -> Counter[tuple[str, str]]:
    """The same of the file beside this check."""
    entries = json.loads(EXPLAINED.read_text())
    return Counter({(e["detector"], where): count for e in entries for where, count in e["where"].items()})


def table() -> str:
    """The rows of the documentation."""
    rows = ["| detector | where | why it is right as it is |", "| --- | --- | --- |"]
    for entry in json.loads(EXPLAINED.read_text()):
        places = ", ".join(f"`{w}`" + (f" ({n})" if n > 1 else "") for w, n in entry["where"].items())
        rows.append(f"| {entry['detector']} | {places} | {entry['why']} |")
    return "\n".join(rows)


def main() -> None:
    """Exit with what is new, what has vanished, and a table that is another."""
    if sys.argv[1:] == ["--table"]:
        print(table())
        return
    report = json.loads(Path(sys.argv[1]).read_text())
    if not report["success"]:
        sys.exit(f"expected Slither to succeed, got: {report['error']}")
    seen, known = found(report), explained()
    wrong = [f"not explained in slither.json: {c} at {w} ({n})" for (c, w), n in sorted((seen - known).items())]
    wrong += [f"explained but not found: {c} at {w} ({n})" for (c, w), n in sorted((known - seen).items())]
    if table() not in DOCUMENT.read_text():
        wrong.append(
            f"expected the table of slither.json in docs/{DOCUMENT.name} (scripts/slither.py --table), got another"
        )
    if wrong:
        sys.exit("\n".join(wrong))
    print(f"{seen.total()} findings, all explained")


if __name__ == "__main__":
    main()
