"""`tiebreak doctor`: says exact of each path of a machine that is, and names what is wrong on one that is not."""

import json
import re

import pytest
import torch
from torch import Tensor

from tests.source_tree import ROOT
from tiebreak.api.environment import kernels
from tiebreak.cli.main import run, tiebreak
from tiebreak.engine.arithmetic import Arithmetic, elementwise
from tiebreak.engine.run import worst
from tiebreak.engine.run.qualify import qualify
from tiebreak.protocol.program.isa import MapFunction


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def rows_of(printed: str) -> dict[str, str]:
    return {line[:24].strip(): line[24:] for line in printed.splitlines()}


def test_this_machine_is_exact_with_kernels_and_without(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tiebreak, ["doctor", "--threads", "1"]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    rows = rows_of(printed.out)
    for path in ("compiled", "pure"):
        found = re.fullmatch(r"exact: (\d+) cases in \d+\.\d s", rows[f"device cpu, {path}"])
        assert found is not None
        assert int(found[1]) == qualify(Arithmetic()).cases > 1000
    assert rows["torch"] == torch.__version__
    assert rows["torch threads"] == "1"
    assert rows["torch instruction set"] == torch.backends.cpu.get_cpu_capability()
    assert {rows[f"kernel {name}"] for name in ("reduce", "scatter", "elementwise")} == {elementwise.build().reason}
    assert rows["kernel hasher"].startswith("compiled with")


def test_doctor_knows_every_kernel() -> None:
    """Each C file beside a Python module."""
    sources = {path.stem for path in (ROOT / "tiebreak").rglob("*.c")}
    assert {kernel.name for kernel in kernels()} == {"hasher" if name == "hashing" else name for name in sources}


def test_as_json_and_without_kernels(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("TIEBREAK_NATIVE", "0")
    assert run(tiebreak, ["doctor", "--device", "cpu", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["exact"] is True
    assert [(v["device"], v["path"], v["exact"], v["problem"]) for v in document["qualification"]] == [
        ("cpu", "pure", True, "")
    ]
    assert document["qualification"][0]["cases"] > 1000
    assert document["environment"]["torch"] == torch.__version__
    assert [(k["name"], k["compiled"], k["detail"]) for k in document["kernels"]] == [
        (name, False, "switched off by TIEBREAK_NATIVE=0") for name in ("reduce", "scatter", "elementwise", "hasher")
    ]


@pytest.mark.parametrize("device", ["abacus", "meta", "cuda:99"])
def test_a_device_that_is_not_there(capsys: pytest.CaptureFixture[str], device: str) -> None:
    assert run(tiebreak, ["doctor", "--device", device]) == 1
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("ConfigurationError: expected a device that this torch computes FP64 on")


def wrong_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """A square root one ulp off, in torch's path alone."""
    right = elementwise._FUNCTIONS[MapFunction.SQRT]

    def wrong(read: list[Tensor], out: Tensor) -> None:
        right(read, out)
        out.copy_(torch.nextafter(out, torch.full_like(out, 9e9)))

    monkeypatch.setitem(elementwise._FUNCTIONS, MapFunction.SQRT, wrong)


def test_wrong_arithmetic_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 1, the operation and its operands in one line."""
    wrong_root(monkeypatch)
    assert run(tiebreak, ["doctor"]) == 1
    printed = capsys.readouterr()
    assert rows_of(printed.out)["device cpu, pure"] == "WRONG, see below"
    (line,) = printed.err.strip().splitlines()
    assert re.match(
        r"ConfigurationError: cpu does not compute map sqrt F32 to F32 exactly: expected 0x.*operands 0x", line
    )


def test_wrong_arithmetic_as_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    wrong_root(monkeypatch)
    monkeypatch.setenv("TIEBREAK_NATIVE", "0")
    assert run(tiebreak, ["doctor", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["exact"] is False
    assert "map sqrt" in document["qualification"][0]["problem"]


def test_threads_must_be_some(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tiebreak, ["doctor", "--threads", "0"]) == 1
    assert "--threads" in capsys.readouterr().err


def test_the_factor_of_the_worst_data(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(worst, "QUICK", (worst.product(1, 64, 64, 64), worst.plain(64, 64)))
    monkeypatch.setattr(worst, "PATTERNS", {"exact ties": worst.PATTERNS["exact ties"]})
    monkeypatch.setattr("tiebreak.api.qualification.verdicts", lambda *_: iter(()))
    assert run(tiebreak, ["doctor", "--threads", "1", "--worst"]) == 0
    rows = rows_of(capsys.readouterr().out)
    for path in ("compiled", "without compiler"):
        found = re.match(r"([\d.]+) times as long as ordinary data \(.*: exact ties\)", rows[f"worst, {path}"])
        assert found is not None
        assert float(found[1]) > 0
    assert run(tiebreak, ["doctor", "--threads", "1", "--worst", "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)["worst"]) == {"compiled", "without compiler"}
