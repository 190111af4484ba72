"""Golden runs: programs captured once, with their bytes and the roots that every machine must reach.

A folder each: `program.xz` (the program's encoding, SPEC section 4, compressed), `state.safetensors` and
`data.safetensors` (initial state and data), `expected.json` (roots, and the record of every checkpoint). Nothing here
needs torch or the libraries that the models came from: that is what the bundles are for.
"""

import json
import lzma
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from safetensors.numpy import load_file

from tiebreak.protocol.commitments.records import data_tree, identify, state_tree
from tiebreak.protocol.program.program import Program
from tiebreak.protocol.tags import Digest

FOLDER = Path(__file__).resolve().parent
MODELS = ("gpt2", "resnet", "llama")
TINY = ("mlp", "mixed")
"""So small that the integer reference runs them; `mixed` under autocast to bfloat16."""
NAMES = (*TINY, *MODELS)
COMMAND = "python -m tests.golden.make"
STEPS, INTERVAL = 25, 5


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What a run of the bundle must give. Digests in hex; losses as f32 bits."""

    torch: str
    transformers: str
    steps: int
    checkpoint_interval: int
    program_root: str
    initial_state_root: str
    data_root: str
    run_root: str
    records: tuple[tuple[int, str, int], ...]
    """(step, state root, loss bits) after step 1 and of each checkpoint."""


@dataclass(frozen=True, kw_only=True)
class Bundle:
    name: str
    program: Program
    expected: Expected

    def state(self) -> dict[str, bytes]:
        return _tensor_data(FOLDER / self.name / "state.safetensors")

    def data(self) -> dict[str, bytes]:
        return _tensor_data(FOLDER / self.name / "data.safetensors")

    def state_root(self, state: Mapping[str, bytes]) -> Digest:
        spec = self.program.state_spec()
        return state_tree({name: identify(*spec[name], state[name]) for name in spec}).root

    def data_root(self, data: Mapping[str, bytes]) -> Digest:
        spec = self.program.data_spec()
        return data_tree({name: identify(*spec[name], data[name]) for name in spec}).root


def load(name: str) -> Bundle:
    """A bundle from its folder; the program is decoded and validated like any stranger's."""
    program = Program.decode(lzma.decompress((FOLDER / name / "program.xz").read_bytes()))
    expected = json.loads((FOLDER / name / "expected.json").read_text())
    expected["records"] = tuple((step, root, bits) for step, root, bits in expected["records"])
    return Bundle(name=name, program=program, expected=Expected(**expected))


def write_program(folder: Path, program: Program) -> None:
    """Compressed, with nothing in it that depends on when or where."""
    (folder / "program.xz").write_bytes(lzma.compress(program.encode(), preset=9))


def write_expected(folder: Path, expected: Expected) -> None:
    """Readable, one line for each checkpoint."""
    document = asdict(expected)
    records = ",\n  ".join(json.dumps(record) for record in document.pop("records"))
    text = json.dumps(document, indent=1).removesuffix("\n}")
    (folder / "expected.json").write_text(f'{text},\n "records": [\n  {records}\n ]\n}}\n', encoding="utf-8")


def _tensor_data(path: Path) -> dict[str, bytes]:
    return {name: array.astype(array.dtype.newbyteorder("<")).tobytes() for name, array in load_file(path).items()}
