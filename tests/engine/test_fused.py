"""Sums by Triton kernels, without a GPU: in Triton's interpreter against integers, with mutants that must die."""

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.engine.processes import printed
from tests.parts import slow_except
from tests.source_tree import ROOT
from tiebreak.engine.arithmetic.backend import launches
from tiebreak.engine.arithmetic.gpu import sums
from tiebreak.engine.arithmetic.plan.options import Counts

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton, of the extra gpu")


def python(*arguments: str) -> str:
    """What a Python of its own prints in the last line: Triton decides on its import whether it interprets."""
    return printed(*arguments, without=["TIEBREAK_NATIVE"], OMP_NUM_THREADS="1")


FEW = [["hashing"], ["sums", "operands"], ["chains", "indices", "graphs", "integers", "workers", "frozen"]]


@pytest.mark.parametrize("names", slow_except(FEW), ids=["hashing", "sums", "others"])
def test_triton_kernels_match_integers_in_the_interpreter(names: list[str], cases: Callable[[int], None]) -> None:
    found = json.loads(python("-m", "tests.engine.interpreted", *names))
    assert list(found) == names
    for ran in found.values():
        assert min(ran.values()) > 0
        cases(sum(ran.values()))


MUTANTS = {"sums": 93, "operands": 21, "chains": 33, "hashing": 13, "indices": 16, "graphs": 25, "integers": 41}


LONG = [("sums", "long"), ("workers", "long"), ("graphs", "golden"), ("operands", "golden")]
HELD = ["sm_90", "sm_80", "sm_100", "sm_89", "gfx942"]
MORE = [*((name, "more") for name in MUTANTS), ("workers", "more"), ("frozen", "more"), *LONG]


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "part"), MORE)
def test_triton_kernels_match_integers_on_further_cases(name: str, part: str, cases: Callable[[int], None]) -> None:
    ran = json.loads(python("-m", f"tests.engine.interpreted.{name}", part))
    assert min(ran.values()) > 0
    cases(sum(ran.values()))


@pytest.mark.parametrize("name", slow_except(MUTANTS, nightly=MUTANTS.keys() - {"operands"}))
def test_all_triton_kernel_mutants_are_caught(name: str) -> None:
    dead, mutants = json.loads(python("-m", f"tests.engine.interpreted.{name}", "mutants"))
    assert sorted(dead) == mutants
    assert len(mutants) == MUTANTS[name]


TARGETS = [("sm_90",), ("sm_80", "sm_100"), ("sm_86", "sm_89", "sm_120", "gfx942")]


@pytest.mark.parametrize("targets", slow_except(TARGETS, nightly=TARGETS[1:]), ids=" ".join)
def test_compiled_triton_kernels_match_the_recorded_results(
    targets: tuple[str, ...], tmp_path: Path, cases: Callable[[int], None]
) -> None:
    """Captured ahead of time, kernels keep the rules of `benchmarks.kernels` and are those of its results."""
    options = (word for target in targets for word in ("--target", target))
    python("-m", "benchmarks.kernels", *options, "--output", str(tmp_path))
    found, known = (
        json.loads((folder / "kernels.json").read_text())["rows"] for folder in (tmp_path, ROOT / "benchmarks/results")
    )
    assert {row["case"].split(",")[0] for row in known} == {target for each in TARGETS for target in each}
    assert found == [row for row in known if row["case"].split(",")[0] in targets]
    cases(len(found))


@pytest.mark.nightly
def test_triton_kernel_launches_compile(cases: Callable[[int], None]) -> None:
    cases(int(python("-m", "tests.engine.launches")))


@pytest.mark.nightly
def test_fused_multiply_adds_in_machine_code_are_detected() -> None:
    """So is that of packed instructions on sm_100, whatever the compiler is told."""
    program = (
        "from benchmarks.kernels import MATRIX, assemble, faults; "
        "fused = lambda name, kernel: len(faults(assemble(name, kernel, 32, enable_fp_fusion=True))); "
        "print([fused(name, kernel) for kernel in ('product NN', 'contract_twice', 'settle') "
        "for name in (*MATRIX, 'sm_100')] + [fused('sm_90', name) for name in ('AdamW', 'GELU')], "
        "faults(assemble('sm_100', 'AdamW', 32, APART=False))[0])"
    )
    assert python("-c", program) == "[4, 4, 4, 5, 5, 6, 5, 5, 5, 3, 6] FFMA2"


ASSEMBLED = """
import json
from benchmarks import kernels
from benchmarks.kernels import _problems, assemble, delays, faults
def found(target, kernel, **options):
    return [" ".join(delay.split()[:3]) for delay in delays(assemble(target, kernel, 32, **options))]
few = found("sm_80", "product TN", BLOCK_M=64, BLOCK_N=128), found("sm_90", "product NN", BLOCK_M=64, BLOCK_N=128)
worse = found("sm_90", "product NT", A_UNIT=1, num_stages=2, num_warps=4), found("sm_90", "contract_twice")
too_large = _problems(assemble("sm_89", "product NN", 32, num_stages=12), "product NN")[0]
kernels._softmax = lambda: kernels._chain("dropout")
made = [assemble(target, f"{kernel}: softmax", 32) for target in ("sm_90", "sm_100")
        for kernel in ("add_up", "settle", "find_greatest")]
print(json.dumps([few, worse, too_large, [faults(each) for each in made], max(each.registers for each in made)]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("target", slow_except(HELD, nightly=HELD[1:]))
def test_kernels_of_operands_in_bfloat16_compile_without_faults(target: str, cases: Callable[[int], None]) -> None:
    """Either operand, or both; products take matrix instructions, run copies ahead, and spill what they do in f32."""
    faults, waits, count = json.loads(python("-m", "tests.engine.held_kernels", target))
    assert (faults, waits) == ([], [])
    cases(count)


@pytest.mark.slow
def test_assembled_kernels_keep_the_rules_that_refuse_others() -> None:
    """Of delays in main loops: each rule refuses something; tiles for results of few rows keep all.

    Of shared memory. And a sum, a maximum and what settles sums, of a dropout mask and a product that are computed
    while they are read, have no faults.
    """
    few, (worse, tables), too_large, faults, registers = json.loads(python("-c", ASSEMBLED))
    assert few == [[], []]
    assert "accesses to" in worse[0]
    assert worse[1:] == ["a copy by", "copies of 0"]
    loads = ["16 words of", "4 words of", "16 words of"]
    assert tables == ["a copy by", "a copy by", "copies of 0", "16 words of", "16 words of", *loads]
    assert too_large.startswith("expected 101376 bytes of shared memory or less, got ")
    assert faults == [[]] * 6
    assert registers <= 168


def test_triton_is_not_imported_on_a_cpu() -> None:
    """Neither the package nor a sum on a CPU does, so nobody else needs it or waits for it."""
    program = (
        "import sys, tiebreak, tiebreak.engine.arithmetic.backend as b; from torch import device; "
        "print(b.launches(device('cpu')), 'triton' in sys.modules)"
    )
    assert python("-c", program) == "False False"


def test_cpu_and_mps_use_no_triton_kernels() -> None:
    assert not launches(torch.device("cpu"))
    assert not launches(torch.device("mps"))
    assert sums._up(0.0) == 0.0
    for x in (1.0, 0.1, 3 * 2.0**-53 * (1 + 2.0**-16)):
        assert x <= sums._up(x) <= x * (1 + 2.0**-23)


def test_statistics_add_host_and_device_counts() -> None:
    counts = Counts()
    counts.undecided += 2
    counts.on(torch.device("cpu")).add_(torch.tensor([1, 2, 3, 4]))
    counts.undecided += 1
    counts.on(torch.device("cpu")).add_(torch.tensor([1, 2, 3, 4]))
    found = counts.elements, counts.undecided, counts.undecided_twice, counts.double_rounded
    assert found == (2, 7, 6, 8)
