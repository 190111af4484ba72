"""Programs captured once, checked in: the same roots from their bytes alone, whatever ran them.

(1) The engine reaches every record and the run root without capture and without the models' library.
(2) The integer reference reaches them too (`conformance/`, which is also tested where there is no torch).
(3) Capture makes the same programs today, also under another instruction set than that of the machine's own.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.engine.processes import printed
from tests.golden.bundle import COMMAND, MODELS, NAMES, TINY, load
from tests.golden.train import first_record, inputs, make_run, train
from tests.parts import slow_except
from tiebreak.api.corpus import programs
from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.capture.tracing import TESTED_TORCH
from tiebreak.engine.run.directory import RunDirectory

CAPTURED = [name for name in programs.names() if name not in ("every", "signatures")]
"""The programs of the corpus that are not written by hand."""
CHANGED = f"""capture of {{name}} gives another {{what}} than the corpus has.
If nothing of that was meant to change, this is a bug: programs captured before are not those captured now.
If it was (a lowering, an optimizer, the model's library, the format): say so in CHANGELOG.md, since every job drafted
before has another program, and make the golden runs again with `{COMMAND}`."""


def process(module: str, *arguments: str, **variables: str) -> Any:
    without = ("ATEN_CPU_CAPABILITY", "OMP_NUM_THREADS")
    return json.loads(printed("-m", f"tests.golden.{module}", *arguments, without=without, **variables))


def records_of(run: RunDirectory) -> list[tuple[int, str, int]]:
    return [(record.step, record.state_root.hex(), record.loss_bits) for record in run.records()]


@pytest.mark.parametrize("name", NAMES)
def test_the_engine_reaches_the_golden_roots(name: str, tmp_path: Path) -> None:
    made, expected = inputs(name), load(name).expected
    first = first_record(made)
    assert (first.step, first.state_root.hex(), first.loss_bits) == expected.records[0]
    run = make_run(tmp_path / name, made)
    root = train(run, Arithmetic())
    assert records_of(run) == list(expected.records[1:])
    assert root == expected.run_root


@pytest.mark.parametrize("name", slow_except(TINY, TINY[0]))
def test_the_integer_reference_reaches_every_golden_record(name: str, cases: Callable[[int], None]) -> None:
    """All steps of the smallest ones: the three roots of the inputs, each record, and the run root."""
    expected = 3 + len(load(name).expected.records) + 1
    assert printed("-m", "conformance", "corpus", name) == f"{name}: {expected}"
    cases(expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_the_integer_reference_reaches_the_first_golden_record(name: str) -> None:
    """A step of each model: some ten million terms one by one."""
    assert printed("-m", "conformance", "corpus", name, "--steps", "1") == f"{name}: 4"


@pytest.mark.slow
@pytest.mark.parametrize("variables", [{}, {"ATEN_CPU_CAPABILITY": "default", "OMP_NUM_THREADS": "1"}], ids=str)
def test_capture_gives_the_golden_programs_under_any_instruction_set(
    variables: dict[str, str], cases: Callable[[], None]
) -> None:
    assert torch.__version__.rpartition(".")[0] in TESTED_TORCH, "capture is only promised for tested versions of torch"
    names = NAMES if variables else CAPTURED
    found = process("capture", *names, **variables)
    assert not variables or found["capability"] in ("DEFAULT", "NO AVX")
    for name in names:
        for what, root in found["roots"][name].items():
            assert root == getattr(load(name).expected, what), CHANGED.format(name=name, what=what.replace("_", " "))
            cases()
