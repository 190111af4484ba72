"""Devices other than the CPU: the same bytes.

Without a GPU the branches for other devices run on a stand-in (tests.engine.elsewhere), which refuses what a
GPU refuses and whose FP64 results are another device's; that shows that no code assumes a CPU, and that the roots do
not depend on FP64's last bits. It does not show what a GPU's own kernels compute. With one, three models of real sizes,
and the golden runs, must reach the CPU's roots.
"""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.real_models import REAL, make_real_task
from tests.engine.arithmetic_cases import product
from tests.engine.lowering_bench import nth
from tests.engine.processes import printed
from tests.golden.bundle import INTERVAL, MODELS, STEPS, TINY, load
from tests.golden.train import inputs, make_run, train
from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.arithmetic.backend import free_memory
from tiebreak.engine.capture.captured import capture_task
from tiebreak.engine.capture.step_run import untouched
from tiebreak.engine.data.tensors import identities
from tiebreak.engine.run.graphs import Reads
from tiebreak.engine.run.interpreter import loss_bits
from tiebreak.engine.run.qualify import qualify
from tiebreak.protocol.commitments.records import state_tree
from tiebreak.protocol.numbers.float32 import NAN_BITS

needs_gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
REAL_STEPS = 20


@pytest.mark.slow
def test_an_emulated_device_reaches_the_golden_roots(tmp_path: Path, cases: Callable[[int], None]) -> None:
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
    def test_golden_runs_reach_their_root_on_cuda(self, name: str, permute: int | None, tmp_path: Path) -> None:
        root = train(make_run(tmp_path / name, inputs(name)), Arithmetic("cuda", permute=permute))
        assert root == load(name).expected.run_root

    @pytest.mark.timeout(3600)
    @pytest.mark.parametrize("name", REAL)
    def test_full_size_models_end_in_the_same_state_on_cpu_and_cuda(self, name: str) -> None:
        """GPT-2 124M, ResNet-50 and a small Llama, 20 steps: the CPU takes minutes for them."""
        captured = capture_task(make_real_task(name, steps=REAL_STEPS))
        states = (nth(REAL_STEPS, captured, Arithmetic(device)).state for device in ("cpu", "cuda"))
        one, other = (state_tree(identities(state)).root.hex() for state in states)
        assert one == other


def test_reads_of_device_values_by_the_host_are_recorded() -> None:
    x = torch.arange(4.0)
    with Reads() as reads:
        x.add(1).exp().sum()  # nothing
        x.index_select(0, torch.tensor([0, 2]))
        x[x > 1]
        x[torch.tensor([0, 2])]
        x.nonzero()
        x.max().item()
        x.to(torch.float64)
        x.to("meta")
        Arithmetic().execute(product(2, 3, 2), [torch.ones(6), torch.ones(6)], 0)
    here = "in elsewhere"
    assert reads.seen == {f"{name} {here}": 1 for name in ("index", "nonzero", "_local_scalar_dense", "_to_copy")}
    with Reads() as reads:
        Arithmetic(compiled=False).execute(product(2, 3, 2), [torch.ones(6), torch.ones(6)], 0)
    assert {place.split(" in ")[1].split(".")[0] for place in reads.seen} <= {"sums", "exact", "options"}
    assert reads.seen


def test_memory_cached_by_torch_counts_as_free(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in (("mem_get_info", (100, 900)), ("memory_reserved", 70), ("memory_allocated", 30)):
        monkeypatch.setattr(torch.cuda, name, lambda _, size=size: size)
    assert (free_memory(torch.device("cuda")), free_memory(torch.device("cpu"))) == (140, None)


def test_capture_restores_the_random_state_of_all_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    streams = [torch.tensor([3], dtype=torch.uint8), torch.tensor([5], dtype=torch.uint8)]
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_rng_state_all", lambda: [stream.clone() for stream in streams])
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, number: streams[number].copy_(state))
    with untouched(torch.nn.Linear(1, 1)):
        streams[0] += 1
        streams[1] += 1
    assert [int(stream) for stream in streams] == [3, 5]


def test_the_loss_is_read_once_and_its_nan_is_canonical() -> None:
    nans = (0x7F800001, 0xFF800001, 0xFFC00000, 0x7FFFFFFF, 0xFFFFFFFF, NAN_BITS)
    others = (0, 1, 0x80000000, 0x3F800000, 0xBF800000, 0x7F800000, 0xFF800000)
    with Reads() as reads:
        for bits_of_it in (*nans, *others):
            loss = torch.from_numpy(np.array(bits_of_it, dtype=np.uint32).view(np.float32))
            assert loss_bits(loss) == (NAN_BITS if bits_of_it in nans else bits_of_it)
    assert reads.seen == {"_local_scalar_dense in interpreter.loss_bits": len(nans) + len(others)}
