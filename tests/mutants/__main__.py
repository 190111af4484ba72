"""Tries the mutants that are named, `--jobs` at once. Fails if one lives."""

import argparse
import sys
import tempfile
from pathlib import Path

from tests.mutants import mutants, tried

parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
parser.add_argument("texts", nargs="*", help="parts of the names or files of mutants [default: all]")
parser.add_argument("--jobs", type=int, default=1, help="how many to try at once")
given = parser.parse_args()
if not (chosen := mutants(*given.texts)):
    sys.exit(f"expected a part of a mutant's name or file, got {given.texts}")
with tempfile.TemporaryDirectory() as folder:
    lives = tried(chosen, Path(folder), given.jobs)
sys.exit(f"{len(lives)} of {len(chosen)} live: {', '.join(mutant.name for mutant in lives)}" if lives else 0)
