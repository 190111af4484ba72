"""Finds docstrings that a stranger cannot read: `python scripts/docstrings.py`. `make lint` fails if there is one.

The first sentence of a docstring is a sentence with a verb, or a noun phrase that is understood without the code. The
rules below are simple, so they are strict: a sentence begins with its subject or verb, not with a preposition.
Docstrings within Triton kernels are left out, because the kernels are hashed with them.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

CLEAN = ("tiebreak", "conformance", "model", "benchmarks", "scripts")
"""The folders that are checked."""
RULES = {
    "begins with a preposition": re.compile(
        r"(Of|By|For|From|In|On|To|Towards?|With|Within|Without|Between|After|Before|Behind|Besides?|Under|Over|Per|At"
        r"|Along|Among|Through|Until|Up to|Than|As|Also|Not)\b"
    ),
    "begins with a question word": re.compile(r"(What|Which|Who|Whose|Whoever|Whatever|Where|How|Why|Those|Such|So)\b"),
    "begins with a participle": re.compile(r"(Told|Said|Seen|Made|Held|Kept|Sent|Taken|Found|Known)\b"),
    "is a clause without a main clause": re.compile(r"(If|When|While|Since|Unless|Once|Because|Like)\b[^,]*$"),
    "lacks a verb after 'whether'": re.compile(r"Whether ((of|by|for|from|in|on|with|at|as)\b|\S+( \S+)?[.,;:])"),
    "is a possessive without its noun": re.compile(r"(The )?\w+'s?[.,;:]"),
    "says 'of which' or 'so many'": re.compile(r".*(?<!each )(?<!none )(?<!one )\b[Oo]f which\b|.*\bso (many|much)\b"),
    "does not end with a period": re.compile(r".*[^.:?]$"),
}


def first_sentence(text: str) -> str:
    """The first sentence of a docstring, on one line."""
    paragraph = " ".join(text.strip().split("\n\n")[0].split())
    return re.split(r"(?<=[.?]) (?=[A-Z`])", paragraph)[0]


def fault(text: str) -> str | None:
    """The first rule that a docstring breaks; None if it breaks none."""
    sentence = first_sentence(text)
    return next((name for name, rule in RULES.items() if rule.match(sentence)), None)


def docstrings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and text of each string that stands alone: docstrings of modules, classes, functions and variables."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value
        decorators = getattr(node, "decorator_list", ())
        if not any(ast.unparse(decorator).startswith("triton.jit") for decorator in decorators):
            yield from docstrings(node)


def main(root: Path) -> int:
    """Prints each docstring that breaks a rule; returns 1 if there is one."""
    found = [
        f"{path.relative_to(root)}:{line} {name}: {first_sentence(text)}"
        for folder in CLEAN
        for path in sorted((root / folder).rglob("*.py"))
        for line, text in docstrings(ast.parse(path.read_text()))
        if (name := fault(text)) is not None
    ]
    print(*found, sep="\n", end="\n" if found else "")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(Path(__file__).resolve().parents[1]))
