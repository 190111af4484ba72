"""Writes the hashes of constraints.txt, .github/tools.txt and recheck/compiler.txt (`make constraints`): of all files.

To change a version, or to add a package, write `name==version` there without hashes, and run this. Where pip installs
a part, it takes no constraints with hashes: `python scripts/constraints.py --pins` prints the versions alone;
`--torch` prints the requirement of torch's builds for processors alone.
"""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
FILE: Final = ROOT / "constraints.txt"
TOOLS: Final = ROOT / ".github" / "tools.txt"
HEADER: Final = """\
# Every Python package of a working tree, exactly, with the SHA-256 of each file that may be installed: `make setup`
# takes no other. Change it together with pyproject.toml; `make constraints` writes the hashes. Those of torch are the
# index's, which needs CUDA's libraries on Linux; scripts/constraints.py has those of its builds for processors alone.
"""
TOOLS_HEADER: Final = """\
# What checks workflows and Dockerfiles and writes the bill of materials, with all that it needs, in an environment of
# its own. `make constraints` writes the hashes.
"""
COMPILER: Final = ROOT / "recheck" / "compiler.txt"
COMPILER_HEADER: Final = """\
# What compiles recheck to WebAssembly (`make wasm`), in an environment of its own: Zig with Clang and wasi-libc.
# `make constraints` writes the hashes.
"""
TORCH_PIN: Final = "torch==2.13.0"
TORCH: Final = {
    "6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b": "2.13.0+cpu-cp311-manylinux_2_28_x86_64",
    "84453b69508ec79902f899c5ed9495acb9e2bbe9fda5f1d5d6f19e3c3842e1a7": "2.13.0+cpu-cp311-manylinux_2_28_aarch64",
    "10717d8b3b67c45a4788bf7ffc0bab1ea1e5ebbedd24466be6100102d141fac1": "2.13.0+cpu-cp311-win_amd64",
    "4ca4a9394b0c771238a4f73590fdbbc4debad85ed0fa63d026ae1b085da7d6e2": "2.13.0+cpu-cp312-manylinux_2_28_x86_64",
    "6f307c2c32d764ffc6ff6893b801fad6d4752f3e67966cb8abf1843427c02604": "2.13.0+cpu-cp312-manylinux_2_28_aarch64",
    "a8b450c1e58e5800e5b4691dac412f8d2d65a1dc3298166f91596603a3531e6f": "2.13.0+cpu-cp312-win_amd64",
    "3fbf9c9d1f3c10c2d59d04aca426dee9ccc6ceb32d255c61e93acc3b4f75fae6": "2.13.0+cpu-cp313-manylinux_2_28_x86_64",
    "0b8f7d0423027ae8b90c7977c627f3379f325363a08224dffad9b4b2d684a83d": "2.13.0+cpu-cp313-manylinux_2_28_aarch64",
    "a17ff48608634db245e17e8bb00a9558554a49aeb1e4f5fe6cd039af2a10515b": "2.13.0+cpu-cp313-win_amd64",
}
"""torch's builds for processors alone, which are on an index of PyTorch's own. They are no part of the file: of two
files of one version pip prefers the one whose hash an index states, which is never one in a folder."""


def pins(text: str) -> list[str]:
    """Each `name==version` of the file, with its marker if it has one."""
    return [line.removesuffix("\\").strip() for line in text.splitlines() if re.match(r"[A-Za-z0-9]", line)]


def hashes(wanted: list[str]) -> str:
    """The same lines, in order of their names, each with the hashes of its files on the index."""
    command = ["uv", "pip", "compile", "--quiet", "--universal", "--no-deps", "--generate-hashes", "--no-annotate"]
    options = ["--no-header", "--no-emit-index-url", "--no-emit-find-links", "--python-version", "3.11", "-"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("UV_FIND", "PIP_"))}
    return subprocess.run(
        [*command, *options], input="\n".join(wanted), env=environment, check=True, capture_output=True, text=True
    ).stdout


def main() -> None:
    if sys.argv[1:] == ["--pins"]:
        print("\n".join(pins(FILE.read_text())))
        return
    of_torch = " \\\n".join([TORCH_PIN, *(f"    --hash=sha256:{digest}" for digest in TORCH)])
    if sys.argv[1:] == ["--torch"]:
        print(of_torch)
        return
    FILE.write_text(HEADER + hashes(pins(FILE.read_text())))
    for file, header in ((TOOLS, TOOLS_HEADER), (COMPILER, COMPILER_HEADER)):
        file.write_text(header + hashes(pins(file.read_text())))
    print(FILE.read_text().count("--hash"), "hashes")


if __name__ == "__main__":
    main()
