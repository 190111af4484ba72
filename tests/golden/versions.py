"""Runs the corpus and captures models with other versions of torch: `python -m tests.golden.versions [VERSION...]`.

The package index has these versions for CUDA alone. Without CUDA's libraries, of gigabytes, they are loaded beside
stubs: libraries of the same names whose functions do nothing, which a computation on a CPU never calls. Everything else
is that of `.venv`. A version passes if it reaches all roots of the corpus, by the kernels in C and by torch alone, and
if each model gets the program that the version of `.venv` captures.
"""

import argparse
import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Final

from tests.source_tree import ROOT
from tiebreak.api.corpus.programs import check

VERSIONS: Final = ("2.10.0", "2.11.0", "2.12.0", "2.14.1")
"""The three minor versions before that of constraints.txt, and the one after it."""
CUDA: Final = re.compile(r"lib(cu|nv|nccl)")


def symbols(library: Path) -> tuple[set[str], set[str], dict[tuple[str, str], bool]]:
    """The libraries that one needs, the names that it defines, and those that it wants: (name, version) -> weakly."""
    listed = subprocess.run(
        ["readelf", "--dynamic", "--dyn-syms", "--wide", str(library)], capture_output=True, text=True, check=True
    ).stdout
    defined, wanted = set[str](), dict[tuple[str, str], bool]()
    for line in listed.splitlines():
        fields = line.split()
        if len(fields) > 7 and fields[0].endswith(":"):
            name, _, version = fields[7].partition("@")
            if fields[6] == "UND":
                wanted[name, version.lstrip("@")] = fields[4] == "WEAK"
            else:
                defined.add(name)
    return set(re.findall(r"NEEDED.*\[(.*)\]", listed)), defined, wanted


def make_stubs(libraries: Path, folder: Path) -> None:
    """Compiles stubs of the CUDA libraries that torch's own need, and one of names without a version, `libfirst.so`."""
    folder.mkdir()
    read = [symbols(path) for path in libraries.glob("*.so*")]
    defined = set[str]().union(*(names for _, names, _ in read))
    files = {name for needed, _, _ in read for name in needed if CUDA.match(name)}
    stubs: dict[str, tuple[str, set[str]]] = {name: (name, set()) for name in files}
    first = set[str]()
    for name, version in {key for _, _, wanted in read for key, weak in wanted.items() if not weak}:
        file = next((file for file in files if "nvshmem" in file), "") if version == "NVSHMEM" else version
        if name in defined:
            continue
        if file in files:
            stubs[file] = (version, stubs[file][1] | {name})
        elif not version and re.match(r"_*(cu|nv|p?nccl)", name):
            first.add(name)
    for file, (version, names) in (*stubs.items(), ("libfirst.so", ("", first))):
        code, script = folder / "stub.c", folder / "stub.map"
        code.write_text("".join(f"long {name}(void) {{ return 0; }}\n" for name in sorted(names)))
        script.write_text(f"{version} {{ global: *; }};\n")
        versioned = [f"-Wl,--version-script={script}"] if version and names else []
        options = ["-shared", "-fPIC", "-fno-builtin", f"-Wl,-soname,{file}", *versioned]
        subprocess.run(["cc", *options, "-o", str(folder / file), str(code)], check=True)


def environment(version: str) -> dict[str, str]:
    """The environment in which Python imports a version of torch, which is installed now if it is not there."""
    site = ROOT / f".venv-torch-{version}"
    stubs = site / "stubs"
    if not stubs.exists():
        options = ["-qq", "--no-deps", "--no-compile", "--upgrade", "--target", str(site)]
        subprocess.run([sys.executable, "-m", "pip", "install", *options, f"torch=={version}"], check=True)
        make_stubs(site / "torch" / "lib", stubs)
    return {"LD_LIBRARY_PATH": str(stubs), "LD_PRELOAD": str(stubs / "libfirst.so"), "PYTHONPATH": str(site)}


def run(module: str, *arguments: str, more: dict[str, str]) -> dict[str, dict[str, str]]:
    """The JSON that a module prints in its last line."""
    command = [sys.executable, "-W", "ignore", "-m", module, *arguments]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | more, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, dict[str, str]] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Print a line for each version; end with 1 if one has another root."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("versions", nargs="*", default=VERSIONS)
    expected = run("tests.golden.program_roots", more={})["roots"]
    other = defaultdict[str, list[str]](list)
    for version in parser.parse_args().versions:
        more, path = environment(version), ROOT / f".venv-torch-{version}" / "corpus.json"
        path.unlink(missing_ok=True)
        command = [sys.executable, "-W", "ignore", "-m", "tiebreak", "corpus", "run", "--output", str(path)]
        subprocess.run(command, cwd=ROOT, env=os.environ | more, stdout=subprocess.DEVNULL, check=False)
        (made, _), captured = check(path), run("tests.golden.program_roots", more=more)
        other[version] += [f"program {n}" for n, root in expected.items() if captured["roots"][n] != root]
        other[version] += map(str, made.differing)
        words = f"OTHER ROOTS: {'; '.join(other[version])}" if other[version] else "the same roots"
        runs = f"{len(made.computed)} runs of the corpus, {len(expected)} programs of models"
        sys.stdout.write(f"torch {made.environment['torch']}: {runs}: {words}\n")
        sys.stdout.flush()
    sys.exit(any(other.values()))


if __name__ == "__main__":
    main()
