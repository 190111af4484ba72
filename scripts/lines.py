"""Counts the lines that carry code (of stubs too) in core, lab, benchmarks, tests and the page, against budgets.

A line counts if a token other than a comment or a docstring begins in it, so comments, docstrings and blank lines cost
nothing. The core is what trains, audits, disputes, certifies and settles; the lab (`tiebreak/lab`) plays, studies and
shows it; the page (`checker/`, JavaScript and CSS) checks files in a browser. C is shown in raw lines, without budget.
`make lint` fails above a budget; only a capability of `PLANNED` may raise that of the core, by as much as it says, in
the commit that brings it.
"""

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Final

BUDGETS: Final = {"core": 48_480, "lab": 8_980, "benchmarks": 3_765, "tests": 61_100, "page": 2_050}
AREAS: Final = {
    "tiebreak/lab/": "lab",
    "tiebreak/": "core",
    "benchmarks/": "benchmarks",
    "tests/": "tests",
    "checker/": "page",
}
"""Beginning of a path -> its area; the first that fits counts."""
PLANNED: Final = {
    "reinforcement learning": 100,
}
"""The lines of code that may still be added to the core, by what they are for."""
SILENT: Final = frozenset(
    {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
)
"""Kinds of tokens that carry no code."""
COMMENT: Final = re.compile(r"\s*(//|/?\*|$)")
"""The beginning of a line of JavaScript or CSS that carries none."""


def docstrings(tree: ast.AST) -> Iterator[range]:
    """The lines of each string that stands alone as a statement."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            assert node.end_lineno is not None
            yield range(node.lineno, node.end_lineno + 1)


def code_lines(source: str) -> int:
    """The number of lines of a module in which a token begins that carries code."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    lines = {token.start[0] for token in tokens if token.type not in SILENT}
    return len(lines.difference(*docstrings(ast.parse(source))))


def count(root: Path) -> tuple[dict[str, int], int]:
    """Code lines of the Python files that git tracks, by area, and the raw lines of the product's C."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, check=True, text=True).stdout
    found, of_c = dict.fromkeys(BUDGETS, 0), 0
    for name in listed.split("\0"):
        area, path = next((area for start, area in AREAS.items() if name.startswith(start)), None), root / name
        if area is None or not path.is_file():
            continue
        if path.suffix in {".py", ".pyi"}:
            found[area] += code_lines(path.read_text(encoding="utf-8"))
        elif path.suffix in {".js", ".css"} and path.parent.name == "checker":
            found[area] += sum(not COMMENT.match(line) for line in path.read_text(encoding="utf-8").splitlines())
        elif path.suffix in {".c", ".h"} and area == "core":
            of_c += len(path.read_bytes().splitlines())
    return found, of_c


def main(root: Path) -> int:
    """Prints the table; returns 1 if an area is over its budget."""
    found, of_c = count(root)
    for area, lines in found.items():
        over = "  over the budget" if lines > BUDGETS[area] else ""
        print(f"{area:<12}{lines:>7,} of {BUDGETS[area]:>7,} lines of code{over}")
    print(f"{'C':<12}{of_c:>7,} lines")
    for what, lines in PLANNED.items():
        print(f"planned     {lines:>+7,} for {what}")
    return int(any(lines > BUDGETS[area] for area, lines in found.items()))


if __name__ == "__main__":
    sys.exit(main(Path(__file__).resolve().parents[1]))
