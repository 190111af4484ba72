"""`tiebreak doctor`: says exact of each path of a machine that is, and names what is wrong on one that is not."""

import json
import re

import pytest
import torch
from torch import Tensor

from tests.source_tree import ROOT
from tests.tiebreak.parties import Commands, Parties
from tiebreak.api.machine import Machine, qualification
from tiebreak.api.machine.environment import kernels
from tiebreak.api.machine.interpreters import make_interpreter
from tiebreak.api.training.bundle import load_bundle
from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.arithmetic.backend import builds, why_plain
from tiebreak.engine.arithmetic.plain import maps
from tiebreak.engine.run.qualify import qualify
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.program.isa import MapFunction


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


IN_C = "sums", "scatter", "chains", "moves", "units"


def rows_of(printed: str) -> dict[str, str]:
    return {line[:24].strip(): line[24:] for line in printed.splitlines()}


def test_doctor_reports_exact_arithmetic_with_and_without_compiled_kernels(command: Commands) -> None:
    out, err = command.printed("doctor", "--threads", 1)
    assert err == ""
    rows = rows_of(out)
    for path in ("compiled", "pure"):
        found = re.fullmatch(r"exact: (\d+) cases in \d+\.\d s", rows[f"device cpu, {path}"])
        assert found is not None
        assert int(found[1]) == qualify(Arithmetic()).cases > 1000
    assert rows["torch"] == torch.__version__
    assert rows["torch threads"] == "1"
    assert rows["torch instruction set"] == torch.backends.cpu.get_cpu_capability()
    assert {rows[f"kernel {name}"] for name in ("sums", "scatter", "chains", "moves", "units")} == {
        builds()["sums"].reason
    }
    assert rows["kernel hasher"].startswith("compiled with")


def test_doctor_knows_every_kernel() -> None:
    """Each C file beside a Python module."""
    sources = {path.stem for path in (ROOT / "tiebreak").rglob("*.c")}
    assert {kernel.name for kernel in kernels()} == {"hasher" if name == "hashing" else name for name in sources}


def test_doctor_reports_disabled_kernels_as_json(monkeypatch: pytest.MonkeyPatch, command: Commands) -> None:
    monkeypatch.setenv("TIEBREAK_NATIVE", "0")
    document = command.tell("doctor", "--device", "cpu")
    assert document["exact"] is True
    (one,) = document["qualification"]
    assert (one["device"], one["path"], one["exact"], one["problem"]) == ("cpu", "pure", True, "")
    assert one["cases"] > 1000
    assert document["environment"]["torch"] == torch.__version__
    assert [(k["name"], k["compiled"], k["detail"]) for k in document["kernels"]] == [
        (name, False, "switched off by TIEBREAK_NATIVE=0")
        for name in ("sums", "scatter", "chains", "moves", "units", "hasher")
    ]


def test_pure_torch_on_cuda_is_checked_on_request_or_without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(qualification, "usable_device", torch.device)
    monkeypatch.setattr(qualification, "examine", lambda *path: path)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    cpu, cuda = ("cpu", "pure"), ("cuda:0", "compiled")
    for launching, pure, paths in (
        (True, False, [cpu, cuda]),
        (True, True, [cpu, cuda, ("cuda:0", "pure")]),
        (False, False, [cpu, ("cuda:0", "pure")]),
    ):
        monkeypatch.setattr(qualification, "launches", lambda _, launching=launching: launching)
        assert list(qualification.verdicts(None, (), pure=pure)) == paths


def wrong_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """A square root one ulp off, in torch's path alone."""
    right = maps._FUNCTIONS[MapFunction.SQRT]

    def wrong(read: list[Tensor], out: Tensor) -> None:
        right(read, out)
        out.copy_(torch.nextafter(out, torch.full_like(out, 9e9)))

    monkeypatch.setitem(maps._FUNCTIONS, MapFunction.SQRT, wrong)


def test_wrong_arithmetic_is_reported_and_prevents_training(
    parties: Parties, monkeypatch: pytest.MonkeyPatch, command: Commands
) -> None:
    """Exit code 1, the operation and its operands in one line."""
    wrong_root(monkeypatch)
    named = r"cpu does not compute map sqrt F32 to F32 exactly: expected 0x.*operands 0x"
    out, err = command.printed("doctor", code=1)
    assert rows_of(out)["device cpu, pure"] == "WRONG, see below"
    (line,) = err.strip().splitlines()
    assert re.match(f"ConfigurationError: {named}", line)
    monkeypatch.setenv("TIEBREAK_NATIVE", "0")
    document = json.loads(command.printed("doctor", "--json", code=1)[0])
    assert document["exact"] is False
    assert "map sqrt" in document["qualification"][0]["problem"]
    monkeypatch.setattr("tiebreak.api.machine.interpreters.qualify", qualify)  # which other tests do without
    with pytest.raises(ConfigurationError, match=named):
        make_interpreter(load_bundle(parties.path("captured")).program)


def test_missing_compiled_kernels_warn_unless_the_machine_requires_them(
    parties: Parties, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = load_bundle(parties.path("captured")).program
    monkeypatch.setenv("TIEBREAK_NATIVE", "0")
    reason = "torch alone computes on cpu, without compiled kernels (switched off by TIEBREAK_NATIVE=0)"
    with pytest.warns(UserWarning, match=re.escape(reason)):
        make_interpreter(program)
    with pytest.raises(ConfigurationError, match=f"expected compiled kernels .*: {re.escape(reason)}; install a C"):
        make_interpreter(program, Machine(uncompiled=False))
    monkeypatch.setenv("TIEBREAK_NATIVE", "1")
    assert why_plain(torch.device("cpu")) == "" or builds()["sums"].library is None
    for launched in (True, False):
        monkeypatch.setattr("tiebreak.engine.arithmetic.backend.launches", lambda _, found=launched: found)
        assert why_plain(torch.device("cuda")).startswith("Triton is not installed") != launched
