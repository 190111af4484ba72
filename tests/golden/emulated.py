"""Computes on a machine that is not here: `python -m tests.golden.emulated arm64`, or `s390x`, which is big-endian.

QEMU executes the other machine's Python (Debian's packages, in a folder of its own) with wheels from the package index.
On ARM the golden runs and a run of the demo have to reach the roots that x86 reaches, with kernels by a cross compiler
and without. torch has no wheels for s390x: there the integer reference reaches the golden records, and tests of the
protocol, its vectors and certificates pass. QEMU and the compiler are installed as root, if they are missing.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from scripts.constraints import pins
from tests.golden.bundle import NAMES, STEPS, TINY, load

ROOT: Final = Path(__file__).resolve().parents[2]
PYTHON: Final = "usr/bin/python3.11"
TORCH: Final = "torch==2.10.0"
"""Later wheels for ARM need CUDA's packages. The wheels of torch 2.13 that constraints.txt names are x86's."""
WHEELS: Final = (
    "click",
    "coincurve",
    "cryptography",
    "eth-hash[pycryptodome]",
    "filelock",
    "lazy-loader",
    "msgpack",
    "numpy",
    "rich",
    "zstandard",
)
PROTOCOL: Final = ("accumulator", "certificate", "game", "job", "logged_game", "merkle", "messages",
                   "program", "reference", "rounding", "snapshot", "transcendental", "vectors")  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Another machine: Debian's and QEMU's names for it, and what its Python needs beyond the standard library.

    libraries: of Debian's packages. compiler: its cross compiler, as a package and as a command.
    """

    debian: str
    qemu: tuple[str, ...]
    wheels: tuple[str, ...]
    libraries: tuple[str, ...] = ()
    compiler: tuple[str, str] | None = None
    start: str = ""

    @property
    def folder(self) -> Path:
        return ROOT / f".venv-{self.debian}"


OLD_LIBRARIES: Final = f"""import sys
import Cryptodome.Hash.keccak
sys.path.append({str(ROOT)!r})
from tests.golden import secp256k1
sys.modules["Crypto"], sys.modules["Crypto.Hash"] = Cryptodome, Cryptodome.Hash
sys.modules["Crypto.Hash.keccak"], sys.modules["coincurve"] = Cryptodome.Hash.keccak, secp256k1
"""
"""Debian 12 has pycryptodome under another name, and no libsecp256k1 for Python: `ecdsa` makes the same signatures."""
MACHINES: Final = {
    "arm64": Machine(
        debian="arm64",
        qemu=("qemu-aarch64-static", "-cpu", "max,pauth=off"),
        wheels=(*WHEELS, "pytest", "safetensors", TORCH),
        libraries=("libgomp1", "libstdc++6"),
        compiler=("gcc-aarch64-linux-gnu", "aarch64-linux-gnu-gcc"),
    ),
    "s390x": Machine(
        debian="s390x",
        qemu=("qemu-s390x-static",),
        wheels=("eth-hash", "filelock", "iniconfig", "lazy-loader", "mpmath", "packaging", "pluggy", "pygments",
                "pytest", "pytest-timeout", "safetensors"),
        libraries=tuple(
            f"python3-{name}"
            for name in ("cffi-backend", "cryptography", "ecdsa", "hypothesis", "msgpack", "numpy", "pycryptodome")
        ),
        start=OLD_LIBRARIES,
    ),
}  # fmt: skip


def run(command: list[str], **environment: str) -> str:
    """Runs a command in the tree; its standard output. Ends this process if it fails."""
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | environment, stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode != 0:
        sys.stdout.write(done.stdout)
        sys.exit(f"{' '.join(command[:12])}: FAILED with {done.returncode}")
    return done.stdout


def install(machine: Machine) -> None:
    """Installs QEMU and the cross compiler on this machine, if they are missing."""
    wanted = {"qemu-user-static": machine.qemu[0]}
    if machine.compiler:
        wanted[machine.compiler[0]] = machine.compiler[1]
    missing = [package for package, command in wanted.items() if shutil.which(command) is None]
    if missing:
        as_root = [] if os.geteuid() == 0 else ["sudo"]
        run([*as_root, "apt-get", "update", "-qq"])
        run([*as_root, "apt-get", "install", "-qq", "-y", *missing], DEBIAN_FRONTEND="noninteractive")


def unpack(machine: Machine) -> None:
    """Downloads the other machine's packages and unpacks them, with an apt that knows nothing of this machine."""
    apt = machine.folder / "apt"
    for name in ("state/lists/partial", "cache/archives/partial"):
        (apt / name).mkdir(parents=True)
    (apt / "state/status").touch()
    (apt / "apt.conf").write_text(
        f'APT::Architecture "{machine.debian}"; APT::Architectures {{ "{machine.debian}"; }}; Debug::NoLocking "1";\n'
        f'Dir::State "{apt}/state"; Dir::State::status "{apt}/state/status"; Dir::Cache "{apt}/cache";\n'
    )
    packages = ("python3.11-minimal", "libpython3.11-stdlib", "python3-pip-whl", *machine.libraries)
    run(["apt-get", "update", "-qq"], APT_CONFIG=str(apt / "apt.conf"))
    run(["apt-get", "install", "-qq", "-y", "--download-only", "--no-install-recommends", *packages],
        APT_CONFIG=str(apt / "apt.conf"))  # fmt: skip
    for package in sorted((apt / "cache/archives").glob("*.deb")):
        run(["dpkg", "-x", str(package), str(machine.folder / "root")])
    shutil.rmtree(apt)


def python(machine: Machine, *arguments: str, path: str = "", **environment: str) -> str:
    """Runs the other machine's Python; its standard output."""
    root = machine.folder / "root"
    libraries = (folder for name in ("blas", "lapack") for folder in root.glob(f"usr/lib/*-linux-gnu/{name}"))
    paths = [path, str(machine.folder / "site"), str(root / "usr/lib/python3/dist-packages")]
    environment |= {"PYTHONPATH": ":".join(filter(None, paths)), "PYTHONDONTWRITEBYTECODE": "1"}
    environment |= {"TIEBREAK_CACHE": str(machine.folder / "cache")}
    search = f"LD_LIBRARY_PATH={':'.join(map(str, libraries))}"  # Debian's BLAS, for NumPy
    return run([*machine.qemu, "-E", search, "-L", str(root), str(root / PYTHON), *arguments], **environment)


def prepare(machine: Machine) -> None:
    """Makes the other machine's folder, unless it is there and was made for the same packages."""
    whole, made_for = machine.folder / "whole", f"{machine}\n{(ROOT / 'constraints.txt').read_text()}"
    if whole.exists() and whole.read_text() == made_for:
        return
    shutil.rmtree(machine.folder, ignore_errors=True)
    install(machine)
    unpack(machine)
    (pip,) = (machine.folder / "root/usr/share/python-wheels").glob("pip-*.whl")
    constraints = machine.folder / "constraints.txt"
    constraints.write_text(
        "\n".join(pin for pin in pins((ROOT / "constraints.txt").read_text()) if "torch==" not in pin)
    )
    alone = [] if TORCH in machine.wheels else ["--no-deps"]
    options = ["-qq", "--no-compile", "--only-binary=:all:", "--root-user-action", "ignore", *alone]
    options += ["--constraint", str(constraints), "--target", str(machine.folder / "site")]
    python(machine, "-m", "pip", "install", *options, *machine.wheels, path=str(pip))
    (machine.folder / "site" / "sitecustomize.py").write_text(machine.start)
    whole.write_text(made_for)


def demo_run(machine: Machine) -> Path:
    """A run of the demo's digits, trained on this machine."""
    made = machine.folder / "demo"
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir()
    tiebreak = [sys.executable, "-m", "tiebreak"]
    keys = [str(made / f"{name}.pem") for name in ("client", "trainer")]
    passphrase = {"TIEBREAK_PASSPHRASE": "of a run for tests alone"}
    run([*tiebreak, "capture", "tiebreak/api/builtin/digits.py", "--output", str(made / "job")])
    for key in keys:
        run([*tiebreak, "key", key], **passphrase)
    parties = ["--client", keys[0], "--trainer", keys[1]]
    run([*tiebreak, "agree", str(made / "job"), *parties, "--output", str(made / "run")], **passphrase)
    run([*tiebreak, "train", str(made / "run"), "--key", keys[1]], **passphrase)
    return made / "run"


def with_torch(machine: Machine) -> None:
    """The golden runs with compiled kernels and without, and an audit of a run that this machine trained."""
    assert machine.compiler, "only a machine with a compiler has torch"
    for kernels, native in (("compiled kernels", "1"), ("no compiled kernels", "0")):
        folder = machine.folder / "golden"
        shutil.rmtree(folder, ignore_errors=True)
        command = ["-m", "tests.golden.train", str(folder), *NAMES, "--threads", "2"]
        found = json.loads(python(machine, *command, CC=machine.compiler[1], TIEBREAK_NATIVE=native).splitlines()[-1])
        if set(found["compiled"]) != {native == "1"}:
            sys.exit(f"expected {kernels}, got compiled: {found['compiled']}")
        for name in NAMES:
            if found["roots"][name] != load(name).expected.run_root:
                sys.exit(f"{name}, {kernels}: expected root {load(name).expected.run_root}, got {found['roots'][name]}")
        say(f"{', '.join(NAMES)}, {STEPS} steps, {kernels}: the same roots")
    run_folder = demo_run(machine)
    shutil.rmtree(machine.folder / "replay", ignore_errors=True)
    audit = ["-m", "tiebreak", "audit", str(run_folder), "--output", str(machine.folder / "replay")]
    say(python(machine, *audit, CC=machine.compiler[1]).strip())


def without_torch(machine: Machine) -> None:
    """The smallest golden runs by the integer reference, and tests of what needs no torch."""
    say(python(machine, "-m", "conformance", "corpus", *TINY).strip())
    say(python(machine, "-m", "conformance", "check").strip())
    files = [f"tests/protocol/test_{name}.py" for name in PROTOCOL]
    say(python(machine, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files).splitlines()[-1])


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> None:
    """Prepare the machine named on the command line, and compute on it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("machine", choices=MACHINES)
    machine = MACHINES[parser.parse_args().machine]
    begun = time.monotonic()
    prepare(machine)
    say(f"{machine.debian}: ready after {time.monotonic() - begun:.0f} s")
    say(python(machine, "-c", "import platform, sys; print(platform.machine(), sys.byteorder, sys.version)").strip())
    (with_torch if machine.compiler else without_torch)(machine)
    say(f"{machine.debian}: passed in {time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    main()
