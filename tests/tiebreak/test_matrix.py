"""Twenty-five steps of a small GPT-2, ResNet and Llama: one run root under everything in which two machines may differ.

Threads, instruction set of torch (`ATEN_CPU_CAPABILITY`), order of the terms of every sum, a run in one piece or one
that goes on from another process' checkpoint, compiled kernels or the pure path. Each setting is a process of its own,
because torch reads these variables when it is loaded; it gets the programs of tests/golden as bytes and captures
nothing. `make test` runs one setting, `make test-all` eight: any three of the other factors take all their values
together, and each of them takes both of its values on every instruction set.

A step count selects which bugs can be seen, so these are not shorter. And equality proves nothing where nothing could
differ: without its exact fallback the engine itself does not reach the root.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.golden.bundle import INTERVAL, MODELS, load
from tests.golden.train import inputs, make_run, train
from tests.parts import slow_except
from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.arithmetic.plain import scatter, sums
from tiebreak.engine.run.directory import RunDirectory

ROOT = Path(__file__).resolve().parents[2]
STOPPED_AT = 2 * INTERVAL + 3
"""Where a run is interrupted that another process takes up again: between two checkpoints."""
CPU = torch.cpu.get_capabilities()
ABLE = {
    "default": True,
    "avx2": bool(CPU.get("avx2")),
    "avx512": all(CPU.get(f"avx512_{part}") for part in ("f", "bw", "dq", "vl")),
}
"""Instruction sets that torch has kernels for. It believes the variable, so what the CPU can do is asked here."""
CAPABILITIES = tuple(name for name, able in ABLE.items() if able)


@dataclass(frozen=True)
class Setting:
    """What may differ between two machines, or two runs of one."""

    threads: int
    capability: str
    permuted: bool
    resumed: bool
    compiled: bool

    def __str__(self) -> str:
        words = (
            f"{self.threads}-threads", self.capability, "permuted" * self.permuted, "resumed" * self.resumed,
            "compiled" if self.compiled else "pure",
        )  # fmt: skip
        return " ".join(filter(None, words))


SWITCHES = [values for values in product((False, True), repeat=4) if sum(values) % 2 == 0]
OPPOSITES = [pair for pair in zip(SWITCHES, reversed(SWITCHES), strict=True) if pair[0] < pair[1]]
EVERY = [
    Setting(1 + two, capability, *rest)
    for number, capability in enumerate(CAPABILITIES)
    for pair in OPPOSITES[number :: len(CAPABILITIES)]
    for two, *rest in pair
]

FAR = Setting(2, CAPABILITIES[0], permuted=True, resumed=True, compiled=True)
"""Differs in everything from how the other tests train."""


def process(module: str, *arguments: str, capability: str, native: bool = True) -> Any:
    """What a module of tests.golden prints in a process of its own."""
    dropped = ("ATEN_CPU_CAPABILITY", "OMP_NUM_THREADS", "TIEBREAK_NATIVE")
    environment = {k: v for k, v in os.environ.items() if k not in dropped}
    environment |= {"ATEN_CPU_CAPABILITY": capability, "TIEBREAK_NATIVE": str(int(native))}
    command = [sys.executable, "-m", f"tests.golden.{module}", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["capability"].lower() == ("default" if capability == "default" else capability)
    return found


@pytest.fixture(scope="session")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs that this process began with its own settings and did not end."""
    folder = tmp_path_factory.mktemp("stopped")
    for name in MODELS:
        train(make_run(folder / name, inputs(name)), Arithmetic(), STOPPED_AT)
    return folder


@pytest.mark.parametrize("capability", list(ABLE))
def test_the_test_matrix_covers_every_instruction_set(capability: str) -> None:
    """One that this CPU lacks is a skip with its name, not a case less."""
    if not ABLE[capability]:
        pytest.skip(f"needs a CPU with {capability}")
    assert any(setting.capability == capability for setting in EVERY)


@pytest.mark.parametrize("setting", slow_except(EVERY, FAR), ids=str)
def test_every_machine_setting_reaches_the_same_root(
    setting: Setting, stopped: Path, tmp_path: Path, cases: Callable[[], None]
) -> None:
    if setting.resumed:
        shutil.copytree(stopped, tmp_path, dirs_exist_ok=True)
    options = ["--threads", str(setting.threads), *(["--permute", "7"] if setting.permuted else [])]
    found = process("train", str(tmp_path), *MODELS, *options, capability=setting.capability, native=setting.compiled)
    # The settings did take effect.
    assert found["threads"] == setting.threads
    assert found["compiled"] == [setting.compiled] * len(found["compiled"])
    assert set(found["begun"].values()) == {2 * INTERVAL if setting.resumed else 0}
    assert found["captured"] == []
    for name in MODELS:
        expected = load(name).expected
        records = RunDirectory.open(tmp_path / name).records()
        assert [(r.step, r.state_root.hex(), r.loss_bits) for r in records] == list(expected.records[1:])
        assert found["roots"][name] == expected.run_root
        cases()


def test_without_its_exact_fallback_an_engine_comes_to_another_root(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """FP64 with its error, rounded. `test_qualify.py` and `test_contraction.py` refuse such engines before."""
    monkeypatch.setenv("TIEBREAK_NATIVE", "0")
    for module in (sums, scatter):
        monkeypatch.setattr(module, "settle", lambda c, e, *_, **__: (c + e).float())
    assert train(make_run(tmp_path / "run", inputs("gpt2")), Arithmetic()) != load("gpt2").expected.run_root
