"""The command `tiebreak-reference`; in a checkout, `python -m conformance`."""

import argparse
import gzip
import json
import shutil
import sys
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from conformance import PROGRAMS, run, vectors
from tiebreak.protocol.errors import VerificationError

HERE: Final = Path(__file__).resolve().parent
PACKED: Final = HERE / "data"
VECTORS: Final = PACKED / "vectors" if PACKED.is_dir() else HERE.parent / "tests" / "vectors"
CORPUS: Final = PACKED / "corpus" if PACKED.is_dir() else HERE.parent / "corpus"


def compare(name: str, cases: Iterable[tuple[str, Any, Any]]) -> bool:
    """Prints how many cases agree, or the first that does not."""
    count = 0
    for where, expected, found in cases:
        if expected != found:
            print(f"{name} {where}: expected {_shown(expected)}, got {_shown(found)}")
            return False
        count += 1
    print(f"{name}: {count}", flush=True)
    return count > 0


def _shown(value: Any) -> str:
    return f"0x{value.hex()}" if isinstance(value, bytes) else repr(value)


def check(folder: Path) -> bool:
    """Holds each file of vectors against the reference; names files whose check needs a library that is missing."""
    checks = dict(vectors.CHECKS)
    try:
        checks |= import_module("conformance.signed").CHECKS
    except ModuleNotFoundError as error:
        if str(error.name).split(".")[0] in ("conformance", "tiebreak"):
            raise
        print(f"not checked without {error.name} ([signatures]): seats, receipts, snapshots, posts")
    agree = []
    for name, cases in checks.items():
        try:
            agree.append(compare(name, cases(json.loads((folder / f"{name}.json").read_text()))))
        except (LookupError, TypeError, ValueError, VerificationError) as error:
            print(f"{name}: expected a file as README.md of the vectors describes it, got {error!r}")
            agree.append(False)
    return all(agree)


def export(folder: Path) -> None:
    """Writes the vectors, with the description of their formats, and runs of the corpus as `recheck` reads them."""
    shutil.copytree(VECTORS, folder / "vectors", ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    for name in PROGRAMS:
        (folder / "corpus" / name).mkdir(parents=True)
        for path in (CORPUS / name).iterdir():
            target = folder / "corpus" / name / path.name
            if path.suffix == ".gz":
                target.with_suffix(".tbp").write_bytes(gzip.decompress(path.read_bytes()))
            else:
                shutil.copyfile(path, target)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tiebreak-reference", description="The integer reference, and test vectors.")
    commands = parser.add_subparsers(dest="command", required=True)
    chosen = commands.add_parser("check", help="hold the test vectors against the integer reference")
    chosen.add_argument("folder", type=Path, nargs="?", default=VECTORS, help="of vectors [the package's own]")
    chosen = commands.add_parser(
        "corpus", help="compute runs of the corpus in integers, and compare every record and root"
    )
    chosen.add_argument("names", nargs="*", default=PROGRAMS, metavar="NAME", help=f"{', '.join(PROGRAMS)} [all]")
    chosen.add_argument("--steps", type=int, help="only so many [all]")
    chosen = commands.add_parser("run", help="run a program in integers; prints what `recheck run` prints")
    for name in ("program", "state", "data"):
        chosen.add_argument(name, type=Path)
    chosen.add_argument("steps", type=int)
    chosen.add_argument("interval", type=int, nargs="?", help="steps of a checkpoint [all]")
    chosen.add_argument("precision", type=int, nargs="?", default=32, help="bits of a rounded result, 16 to 32 [32]")
    chosen.add_argument("logs", type=Path, nargs="?", help="policy `logged`: a plain log file (SPEC section 5.1)")
    chosen = commands.add_parser("export", help="write vectors and runs of the corpus for an implementation under test")
    chosen.add_argument("folder", type=Path, help="a folder that does not exist")
    return parser


def main() -> int:
    """Runs a command; 1 if a case differs, 2 if a file is refused."""
    options = _parser().parse_args()
    agree = [True]
    try:
        match options.command:
            case "check":
                agree = [check(options.folder)]
            case "corpus":
                agree = [compare(name, run.corpus(CORPUS / name, options.steps)) for name in options.names]
            case "run":
                files = options.program, options.state, options.data
                opened = run.opened(*files, options.steps, options.precision, options.logs)
                for line in run.lines(opened, options.steps, options.interval or options.steps):
                    print(line, flush=True)
            case _:
                export(options.folder)
    except (OSError, VerificationError) as error:
        print(f"refused: {error}", file=sys.stderr)
        return 2
    return int(not all(agree))


if __name__ == "__main__":
    sys.exit(main())
