"""Prints the notes of a release, which are its section of CHANGELOG.md: `python scripts/notes.py 0.2.0`."""

import re
import sys
from pathlib import Path
from typing import Final

CHANGELOG: Final = Path(__file__).resolve().parent.parent / "CHANGELOG.md"


def notes(changelog: str, version: str) -> str:
    """The text below the heading of a version, up to the next one. Raises `LookupError` if there is none."""
    found = re.search(rf"(?ms)^## \[{re.escape(version)}\][^\n]*\n(.*?)(?=^## |\Z)", changelog)
    if found is None or not found[1].strip():
        raise LookupError(f"expected a section [{version}] with text in the changelog, found none")
    return found[1].strip() + "\n"


if __name__ == "__main__":
    print(notes(CHANGELOG.read_text(encoding="utf-8"), sys.argv[1].removeprefix("v")), end="")
