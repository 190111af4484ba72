"""Runs the first steps of a golden run in integers alone: no torch, no kernel, no floating point.

`python -m tests.golden.reference NAME STEPS` prints one line of JSON: the records that the bundle also has.
"""

import json
import sys
from collections.abc import Iterator

from tests.golden.bundle import load
from tests.protocol.whole_steps import execute, new_state
from tiebreak.api.corpus.programs import CorpusProgram
from tiebreak.protocol.commitments.records import identify, state_tree


def records(bundle: CorpusProgram, steps: int) -> Iterator[tuple[int, str, int]]:
    """(step, state root, loss bits) of each step, by `tiebreak.protocol.program.reference` from the initial state."""
    state, data = bundle.state(), bundle.data()
    for step in range(1, steps + 1):
        values = execute(bundle.program, state, data, step)
        state = new_state(bundle.program, values)
        spec = bundle.program.state_spec()
        root = state_tree({name: identify(*spec[name], state[name]) for name in spec}).root
        yield step, root.hex(), int.from_bytes(values[-1], "little")


def main() -> None:
    """Print the records, and which modules were imported that must not have a say."""
    bundle = load(sys.argv[1])
    committed = {step for step, _, _ in bundle.expected.records}
    found = [record for record in records(bundle, int(sys.argv[2])) if record[0] in committed]
    others = ("torch", "transformers", "tiebreak.engine.arithmetic", "tiebreak.engine.run")
    imported = [module for module in others if module in sys.modules]
    sys.stdout.write(json.dumps({"records": found, "imported": imported}) + "\n")


if __name__ == "__main__":
    main()
