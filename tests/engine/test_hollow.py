"""Captures for another device: the step is rehearsed there, and before the traces on the CPU, without numbers.

`cpu:0` stands for that device: the CPU by another name, whose memory can be looked at.
"""

import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.engine import elsewhere
from tests.engine.test_capture_pure import REFUSED, Layer, task, with_buffers
from tests.engine.test_eager import RIGHT
from tests.engine.test_reports import logs
from tests.engine.test_slices import plain
from tests.engine.test_slices import task as of_layers
from tests.parts import slow_except
from tiebreak.engine.capture import captured, check, reach
from tiebreak.engine.capture.slices import Slice
from tiebreak.engine.capture.step_run import CPU, Errors, Hollow
from tiebreak.engine.capture.task import Task
from tiebreak.engine.run.loop import exact_step
from tiebreak.protocol.errors import ConfigurationError

pytestmark = pytest.mark.filterwarnings("ignore:the step is rehearsed on the CPU", "ignore:the capture is checked")
HERE = torch.device("cpu", 0)
Places = list[torch.device | None]


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch) -> Places:
    """Where steps are rehearsed, in order; None: on the CPU, without numbers."""
    found: Places = []
    real = captured.rehearse

    def rehearse(model: Any, losses: Any, batch: Any, device: torch.device | None = CPU, **more: Any) -> frozenset[str]:
        found.append(device)
        return real(model, losses, batch, device, **more)

    monkeypatch.setattr(captured, "rehearse", rehearse)
    return found


def of_here(made: Task) -> captured.Captured:
    return check.checked(made, exact_step, HERE)


def keeping(make: Callable[[Any], Tensor]) -> Task:
    """Makes a table in the first step and keeps it, as masks and tables of angles are kept."""

    def run(layer: Any, x: Tensor) -> Tensor:
        if layer.table is None:
            layer.table = make(layer)
        return x * layer.table

    layer = with_buffers(run, base=torch.linspace(0.5, 1.0, 4))
    layer.table = None
    return task(layer)


def ramp(layer: Any) -> Tensor:
    return torch.arange(4.0, device=layer.base.device)


QUICK: dict[str, Callable[[], Task]] = {**RIGHT, "a table": lambda: keeping(ramp)}


@pytest.mark.parametrize("name", slow_except(QUICK, "assigned", "a table"))
def test_capture_for_a_device_gives_the_cpus_program(name: str, places: Places) -> None:
    torch.manual_seed(0)
    made = QUICK[name]()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = of_here(made)
    assert places == [None, HERE]
    assert not any("rehearsed" in str(one.message) for one in said), "and not on the CPU"
    assert found.check == "full"
    assert found.program.root == check.checked(made, exact_step).program.root
    assert vars(made.model).get("table") is None, "what was kept is gone"


@pytest.mark.parametrize("make", [ramp, lambda _: torch.arange(4.0)])
def test_tensors_cached_on_a_device_stay_out_of_the_program(
    make: Callable[[Any], Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(elsewhere, "DEVICE", torch.device("meta"))  # on which autograd needs no hardware
    monkeypatch.setattr(elsewhere, "_DIVISIONS", ())
    made = keeping(make)
    with elsewhere._Literals(), elsewhere.Mode(worse=True) as mode, warnings.catch_warnings():
        warnings.simplefilter("error")
        found = check.checked(made, exact_step, elsewhere.DEVICE)
    assert mode.calls["aten::addmm"] >= 4
    assert found.program.root == check.checked(made, exact_step).program.root


@pytest.mark.slow
@pytest.mark.parametrize(("device", "of_slice"), [(HERE, [None, HERE]), (CPU, [CPU])])
def test_a_model_that_is_checked_on_a_slice_is_rehearsed_without_numbers(
    device: torch.device, of_slice: Places, places: Places
) -> None:
    made = of_layers(plain())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = check.checked(made, exact_step, device, Slice.of(made), unable)
    assert places == [None, *of_slice]
    assert found.check == "slice"
    assert found.program.root == captured.capture_task(made).program.root


def unable() -> None:
    raise ConfigurationError("expected more memory")


def logging() -> Task:
    """Reads the loss's value, which a step without numbers cannot."""
    return of_layers(plain(), loss=lambda model, x, y: logs(model, x, (y[:, 0] > 0).long()))


@pytest.mark.slow
def test_a_sliced_model_that_reads_values_is_rehearsed_with_numbers(places: Places) -> None:
    made = logging()
    assert check.checked(made, exact_step, CPU, Slice.of(made)).check == "slice"
    assert places == [None, CPU, CPU]


def test_a_rehearsal_with_numbers_is_refused_without_memory_for_it(places: Places) -> None:
    made = logging()
    with pytest.raises(ConfigurationError, match=r"expected more memory\. Without its numbers, the step fails: "):
        check.checked(made, exact_step, CPU, Slice.of(made), unable)
    assert places == [None]


def filled(layer: Any) -> Tensor:
    table = torch.zeros(4)
    table[:] = layer.base * 2
    return table


SLOW: dict[str, tuple[Callable[[], Task], str]] = {
    "derived": (lambda: keeping(lambda layer: layer.base * 2), "."),
    "filled": (lambda: keeping(filled), "expected writes of numbers, got aten.copy_.default"),
    "number": (lambda: keeping(lambda layer: torch.full((4,), float(layer.base[0]))), "needs the values"),
}


@pytest.mark.parametrize("name", SLOW)
def test_steps_that_read_tensor_values_are_rehearsed_on_the_cpu(name: str, places: Places) -> None:
    """Nothing that was kept has wrong numbers."""
    make, reason = SLOW[name]
    with pytest.warns(UserWarning, match=f"rehearsed on the CPU, because that failed on cpu:0: .*{reason}"):
        found = of_here(make())
    assert places == [None, CPU]
    assert found.program.root == check.checked(make(), exact_step).program.root


def test_steps_that_log_values_are_rehearsed_on_the_cpu(places: Places) -> None:
    data = {"x": torch.randn(8, 4), "y": torch.arange(8) % 4}
    made = task(nn.Linear(4, 4), logs, data)
    with pytest.warns(UserWarning, match="rehearsed on the CPU"):
        assert of_here(made).check == "full"
    assert places == [None, CPU]


def switching(layer: Any, x: Tensor) -> Tensor:
    """Does another thing for ever after an error, which there is only without numbers."""
    if layer.clips:
        try:
            x = x / 10 if layer.linear.weight.abs().max() > 1e6 else x
        except Exception:
            layer.clips = False
    return x


def test_a_step_that_catches_the_missing_value_error_is_refused(places: Places) -> None:
    with pytest.raises(ConfigurationError, match="catches the error that a trace raises there") as caught:
        of_here(task(Layer(switching, clips=True)))
    assert places == [None, CPU], "the rehearsal on the CPU passes it"
    with pytest.raises(ConfigurationError) as expected:
        captured.capture_task(task(Layer(switching, clips=True)))
    assert str(caught.value) == str(expected.value)


OWN_LOSSES = "batch", "backward", "trained elsewhere", "vector"
SOON = "counter", "clamp", "kept", "first", "first draw", "data", "mark", "in backward", "other memory", "left on"
OTHERS = [name for name in REFUSED if name not in (*OWN_LOSSES, *SOON)]


@pytest.mark.parametrize("name", slow_except([*SOON, *OTHERS[::4]], *SOON[::2]))
def test_refusals_for_a_device_read_as_on_the_cpu(name: str, places: Places) -> None:
    make, _ = REFUSED[name]
    with pytest.raises(ConfigurationError) as expected:
        captured.capture_task(task(nn.Sequential(make())))
    places.clear()
    with pytest.raises(ConfigurationError) as caught:
        of_here(task(nn.Sequential(make())))
    assert str(caught.value) == str(expected.value)
    assert places == ([None, HERE, CPU] if name == "first" else [None, CPU]), "only other numbers need the device"


def looked_up(function: Callable[[Any, Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    return lambda model, x, y: function(model(x), y + 1, model.weight).mean()


OUTSIDE: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "labels": lambda out, y, w: F.cross_entropy(out, y),
    "embedding": lambda out, y, w: F.embedding(y, w) * out,
    "rows": lambda out, y, w: w[y] * out,
    "gather": lambda out, y, w: out.gather(1, y[:, None]),
    "narrow": lambda out, y, w: F.embedding(y.int(), w) * out,
    "floats": lambda out, y, w: F.cross_entropy(out, y.long()),
    "in place": lambda out, y, w: torch.zeros_like(w).index_add_(0, y, out),
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_out_of_range_indices_never_reach_the_device(name: str, places: Places) -> None:
    """A GPU stops at them, and its process can do nothing there any more."""
    y = torch.full((8,), 3.0) if name == "floats" else torch.arange(8) % 4
    made = task(nn.Linear(4, 4), looked_up(OUTSIDE[name]), {"x": torch.randn(8, 4), "y": y})
    with pytest.raises(ConfigurationError, match=r"plain PyTorch already: .*Error: .* out of "):
        of_here(made)
    assert places == [None, CPU]


def silently(run: Callable[[], object]) -> None:
    with suppress(RuntimeError):
        run()


def test_tensors_without_values_refuse_reads_and_writes() -> None:
    hollow = Hollow(allow_non_fake_inputs=True)
    weight, index = hollow.copy(torch.randn(4, 4)), hollow.copy(torch.arange(4))
    assert index.tolist() == [0, 1, 2, 3]
    assert torch.arange(2.0).tolist() == [0, 1], "others are as always"
    with pytest.raises(ConfigurationError, match=r"expected writes of numbers, got aten\.add_"):
        torch.zeros(4).add_(weight[0])
    with pytest.raises(ConfigurationError, match=r"expected writes of numbers, got aten\.mm\.out"):
        torch.mm(weight, weight, out=torch.zeros(4, 4))
    weight[index] += 1
    with pytest.raises(IndexError, match="out of bounds"):
        weight[index + 1]
    with pytest.raises(ConfigurationError, match="one that catches RuntimeError"), Errors():
        silently(weight.numpy)
    with pytest.raises(RuntimeError, match="numpy"), Errors():
        weight.numpy()


def test_a_step_that_caches_tensors_outside_the_model_is_refused() -> None:
    kept: dict[int, Tensor] = {}

    def run(layer: Any, x: Tensor) -> Tensor:
        return x * kept.setdefault(4, layer.base * 2)

    with pytest.raises(ConfigurationError, match=r'in a global or a cache .*new one, and capture with device="cpu"'):
        of_here(task(with_buffers(run, base=torch.ones(4))))
    kept.clear()
    assert captured.capture_task(task(with_buffers(run, base=torch.ones(4)))).program.body


def test_writes_to_tensors_on_another_device_are_detected() -> None:
    with elsewhere.elsewhere(), torch.inference_mode(False):
        there = elsewhere.Elsewhere(torch.ones(4))
        before = reach._parts(there)
        assert reach.same(reach._parts(there), before)
        there.inner[2] = 3.0
        assert not reach.same(reach._parts(there), before)
