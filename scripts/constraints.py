"""Writes the hashes of constraints.txt: those of every file that the index has of each version (`make constraints`).

To change a version, or to add a package, write `name==version` there without hashes, and run this.
"""

import os
import re
import subprocess
from pathlib import Path
from typing import Final

FILE: Final = Path(__file__).resolve().parent.parent / "constraints.txt"
HEADER: Final = """\
# Every Python package of a working tree, exactly, with the SHA-256 of each of its published files: `make setup` installs
# no other file. Change it together with pyproject.toml; `make constraints` writes the hashes.
"""
OTHER_FILES: Final = {
    "torch==2.13.0": {
        "6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b": "torch 2.13.0+cpu for CPython 3.11 on "
        "x86-64, the build for processors alone, which is not on the index; all others are"
    }
}
"""Hashes of files from elsewhere, and what they are."""


def pins(text: str) -> list[str]:
    """Each `name==version` of the file, with its marker if it has one."""
    return [line.removesuffix("\\").strip() for line in text.splitlines() if re.match(r"[A-Za-z0-9]", line)]


def main() -> None:
    wanted = pins(FILE.read_text())
    command = ["uv", "pip", "compile", "--quiet", "--universal", "--no-deps", "--generate-hashes", "--no-annotate"]
    options = ["--no-header", "--no-emit-index-url", "--no-emit-find-links", "--python-version", "3.11", "-"]
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("UV_FIND", "PIP_"))}
    done = subprocess.run(
        [*command, *options], input="\n".join(wanted), env=plain, check=True, capture_output=True, text=True
    )
    lines = []
    for line in done.stdout.splitlines():
        others = OTHER_FILES.get(line.removesuffix("\\").strip(), {})
        lines += [f"# {digest[:8]} is {what}." for digest, what in others.items()]
        lines += [line, *(f"    --hash=sha256:{digest} \\" for digest in others)]
    FILE.write_text(HEADER + "\n".join(lines) + "\n")
    print(f"{len(wanted)} packages, {done.stdout.count('--hash')} hashes")


if __name__ == "__main__":
    main()
