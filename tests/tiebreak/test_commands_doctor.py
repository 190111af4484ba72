"""`tiebreak doctor`: says exact on a machine that is, and names what is wrong on one that is not."""

import re

import pytest
import torch
from torch import Tensor

from engine.arithmetic import Arithmetic, elementwise
from engine.qualify import qualify
from protocol.isa import MapFunction
from tiebreak.cli import run, tiebreak


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def test_this_machine_is_exact(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tiebreak, ["doctor", "--threads", "1"]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    rows = dict(re.split(r"  +", line, maxsplit=1) for line in printed.out.splitlines())
    found = re.fullmatch(r"exact: (\d+) cases in \d+\.\d s", rows["device cpu"])
    assert found is not None
    assert int(found[1]) == qualify(Arithmetic()).cases > 1000
    assert any(torch.__version__ in value for value in rows.values())


@pytest.mark.parametrize("device", ["abacus", "meta", "cuda:99"])
def test_a_device_that_is_not_there(capsys: pytest.CaptureFixture[str], device: str) -> None:
    assert run(tiebreak, ["doctor", "--device", device]) == 1
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("ConfigurationError: expected a device that this torch computes on")


def test_wrong_arithmetic_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A machine whose square root is one ulp off: exit code 1, the operation and its operands in one line."""
    right = elementwise._FUNCTIONS[MapFunction.SQRT]

    def wrong(read: list[Tensor], out: Tensor) -> None:
        right(read, out)
        out.copy_(torch.nextafter(out, torch.full_like(out, 9e9)))

    monkeypatch.setitem(elementwise._FUNCTIONS, MapFunction.SQRT, wrong)
    assert run(tiebreak, ["doctor"]) == 1
    printed = capsys.readouterr()
    assert "exact" not in printed.out
    (line,) = printed.err.strip().splitlines()
    assert re.match(
        r"ConfigurationError: cpu does not compute map sqrt F32 to F32 exactly: expected 0x.*operands 0x", line
    )


def test_threads_must_be_some(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tiebreak, ["doctor", "--threads", "0"]) == 1
    assert "--threads" in capsys.readouterr().err
