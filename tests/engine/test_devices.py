"""Devices other than the CPU: the same bytes.

Without a GPU the branches for other devices run on a stand-in (tests.engine.elsewhere), which refuses what a GPU
refuses and whose FP64 results are another device's; that shows that no code assumes a CPU, and that the roots do not
depend on FP64's last bits. It does not show what a GPU's own kernels compute. With one, three models of real sizes, and
the golden runs, must reach the CPU's roots.
"""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from benchmarks.real_models import REAL, make_real_task
from tests.engine.lowering_bench import nth
from tests.engine.processes import printed
from tests.golden.bundle import INTERVAL, MODELS, STEPS, TINY, load
from tests.golden.train import inputs, make_run, train
from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.capture.compile import compile_task
from tiebreak.engine.data.tensors import identities
from tiebreak.engine.run.qualify import qualify
from tiebreak.protocol.commitments.records import state_tree

needs_gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
REAL_STEPS = 20


@pytest.mark.slow
def test_the_stand_in_for_a_device_reaches_the_roots(tmp_path: Path, cases: Callable[[int], None]) -> None:
    names = (*TINY, "resnet")
    found = json.loads(printed("-m", "tests.engine.on_another_device", "reach", str(tmp_path), str(STEPS), *names))
    assert found["cases"] > qualify(Arithmetic()).cases  # and a large product
    assert "reduce sum of products (large) exactly" in found["refused"]
    assert found["calls"] > 20_000
    for name in names:
        records = load(name).expected.records
        assert [tuple(record) for record in found["records"][name]] == list(records[1 : 1 + STEPS // INTERVAL])
        assert found["firsts"][name] == records[0][1]
        assert found["undecided"][name] > 0  # the exact fallback took part
        cases(1)


class TestOnTheGPU:
    """CPU root == GPU root."""

    pytestmark = needs_gpu

    @pytest.mark.parametrize("name", MODELS)
    @pytest.mark.parametrize("permute", [None, 7])
    def test_golden_runs_reach_the_root(self, name: str, permute: int | None, tmp_path: Path) -> None:
        root = train(make_run(tmp_path / name, inputs(name)), Arithmetic("cuda", permute=permute))
        assert root == load(name).expected.run_root

    @pytest.mark.timeout(3600)
    @pytest.mark.parametrize("name", REAL)
    def test_models_of_real_sizes_end_in_the_same_state(self, name: str) -> None:
        """GPT-2 124M, ResNet-50 and a small Llama, 20 steps: the CPU takes minutes for them."""
        compiled = compile_task(make_real_task(name, steps=REAL_STEPS))
        states = (nth(REAL_STEPS, compiled, Arithmetic(device)).state for device in ("cpu", "cuda"))
        one, other = (state_tree(identities(state)).root.hex() for state in states)
        assert one == other
