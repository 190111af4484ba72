"""What a step may do besides computing: each case is captured right, or refused with its module and line."""

import gc
import itertools
import logging
import math
import os
import random
import re
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextvars import ContextVar, copy_context
from dataclasses import replace
from decimal import getcontext
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Distribution, Normal
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils._python_dispatch import _get_current_dispatch_mode
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from tests.engine.lowering_bench import make_task, run_engine
from tests.engine.optimizer_cases import against_torch
from tests.parts import slow_except
from tiebreak import Batch, Rows, Task, Windows
from tiebreak.api.training.tasks import capture as checked
from tiebreak.engine.capture.captured import Captured, capture_task
from tiebreak.engine.capture.rehearsal import rehearse
from tiebreak.protocol.errors import ConfigurationError

X = torch.arange(32.0).reshape(8, 4) / 16 - 1


class Layer(nn.Module):
    def __init__(self, function: Callable[..., Tensor], **attributes: Any) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.function = function
        for name, value in attributes.items():
            setattr(self, name, value)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, self.linear(x))


def with_buffers(function: Callable[..., Tensor], **buffers: Tensor) -> nn.Module:
    layer = Layer(function)
    for name, value in buffers.items():
        layer.register_buffer(name, value)
    return layer


def task(model: nn.Module, loss: Callable[..., Tensor] | None = None, data: dict[str, Tensor] | None = None) -> Task:
    return make_task(model, data or {"x": X}, rate=0.1, loss=loss or (lambda model, x: model(x).square().mean()))


def captured(model: nn.Module, loss: Callable[..., Tensor] | None = None) -> Captured:
    return capture_task(task(model, loss))


def centred(self: Any, x: Tensor) -> Tensor:
    y = (x - self.centre) * self.centre
    self.centre = 0.9 * self.centre + 0.1 * x.detach().mean(0)
    return y


def reshaped(self: Any, x: Tensor) -> Tensor:
    self.grown = torch.cat([self.grown, x.detach()])
    return x


def late(self: Any, x: Tensor) -> Tensor:
    self.register_buffer("seen", torch.zeros(4))
    return x


def counting(self: Any, x: Tensor) -> Tensor:
    self.calls += 1
    return x * self.calls


def queueing(self: Any, x: Tensor) -> Tensor:
    self.queue[:2] = x.detach()
    return x @ self.queue.T


def clamping(self: Any, x: Tensor) -> Tensor:
    def clamp(_: Tensor) -> None:
        self.linear.weight.data.clamp_(-0.1, 0.1)

    x.register_hook(clamp)
    return x


def endless() -> Iterator[float]:
    number = 0.0
    while True:
        number += 1
        yield number


def numbered(make: Callable[[], Iterator[float]]) -> nn.Module:
    stream = make()
    return Layer(lambda _, x: x * next(stream))


class Slotted:
    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, *_: Any) -> None:
        self.count += 1


def stepping(change: Callable[[], object]) -> nn.Module:
    """Changes something that has no effect on the results of the first steps."""
    return Layer(lambda _, x: (change(), x)[1])


def with_default(self: Any, x: Tensor, held: list[int] = []) -> Tensor:  # noqa: B006 (what a user may write)
    held.append(0)
    return x


def hooking(register: str, hook: Callable[..., Any]) -> nn.Module:
    layer = Layer(lambda _, x: torch.tanh(x))
    getattr(layer, register)(hook)
    return layer


def other_memory(self: Any, x: Tensor) -> Tensor:
    self.centre.data = self.centre + x.detach().mean(0)
    return x - self.centre


def ready(self: Any, x: Tensor) -> Tensor:
    if not self.ready:
        self.ready, x = True, 2 * x
    return x


def drawn_once(self: Any, x: Tensor) -> Tensor:
    if self.noise is None:
        self.noise = torch.rand(4)
    return x + self.noise


def kept(self: Any, x: Tensor) -> Tensor:
    return x @ self.weights[0].detach()


def listed() -> nn.Module:
    layer = Layer(kept)
    layer.weights = [layer.linear.weight]
    return layer


def overlapping(self: Any, x: Tensor) -> Tensor:
    self.whole.add_(1)
    return x + self.part


class Counting(type):
    made = 0

    def bump(cls) -> None:
        Counting.made += 1


class Counted(metaclass=Counting):
    pass


CALLS = [0]


@torch.no_grad()
def decorated() -> None:
    CALLS[0] += 1


def with_keyword(*, held: int = 0) -> int:
    with_keyword.__kwdefaults__["held"] += 1
    return held


@lru_cache
def looked_up(key: int) -> float:
    return 1.0 + key


def by_import(_: Any, x: Tensor) -> Tensor:
    import tests.engine.tiny as module  # noqa: PLC0415 (what a user may write)

    module.hostile = getattr(module, "hostile", 0) + 1
    return x


def by_name(_: Any, x: Tensor) -> Tensor:
    globals()["BY_NAME"] = globals().get("BY_NAME", 0) + 1
    return x


def twice_updated(self: Any, x: Tensor) -> Tensor:
    return checkpoint(self.norm, x, use_reentrant=False)


def expanded() -> nn.Module:
    layer = Layer(lambda self, x: x + self.shift)
    layer.shift = nn.Parameter(torch.ones(1).expand(4))
    return layer


def covered(self: Any, x: Tensor) -> Tensor:
    self.last.add_(1)
    return x + self.whole.sum()


def three_views() -> nn.Module:
    whole = torch.zeros(12)
    return with_buffers(covered, whole=whole, first=whole[:4], last=whole[8:])


@torch.library.custom_op("tiebreak_tests::bump", mutates_args=("x",))
def bump(x: Tensor) -> None:
    x.add_(1)


def bumped(self: Any, x: Tensor) -> Tensor:
    bump(self.held)
    return x + self.held


CONTEXT, TEXT = copy_context(), os.open(__file__, os.O_RDONLY)
VARIABLE = ContextVar("VARIABLE", default=0)
NUMBERS, BUSY = itertools.count(), dict.fromkeys(range(3000), 0)
HELD, COUNTS = torch.zeros(4), np.zeros(1)


def skipping(self: Any, x: Tensor) -> Tensor:
    if self.training and torch.rand([]) < self.layerdrop:
        return x
    return self.linear(x)


def asserting(_: Any, x: Tensor) -> Tensor:
    assert x.abs().max() < 1e9
    return x


def thawing(self: Any, x: Tensor) -> Tensor:
    self.frozen.requires_grad_(True)
    return self.frozen(x)


def hooked_in_forward(self: Any, x: Tensor) -> Tensor:
    """The hooks add up: after three steps, the gradient is 8 times as large."""
    self.linear.weight.register_hook(lambda grad: 2 * grad)
    return x


def marked(self: Any, x: Tensor) -> Tensor:
    self.linear.weight.calls = getattr(self.linear.weight, "calls", 0) + 1
    return x * self.linear.weight.calls


def with_list() -> nn.Module:
    layer = Layer(lambda self, x: (self.linear.weight.calls.append(0), x * len(self.linear.weight.calls))[1])
    layer.linear.weight.calls = []
    return layer


def written_in_backward(self: Any, x: Tensor) -> Tensor:
    def keep(grad: Tensor) -> None:
        self.seen.copy_(grad.mean(0))

    x.register_hook(keep)
    return x * self.seen


def assigned_in_backward(self: Any, x: Tensor) -> Tensor:
    def keep(grad: Tensor) -> None:
        self.seen = grad.mean(0)

    x.register_hook(keep)
    return x * self.seen


def doubly_saved(_: Any, x: Tensor) -> Tensor:
    with torch.autograd.graph.saved_tensors_hooks(lambda t: 2 * t, lambda t: t):
        return x.tanh()


def accumulating() -> nn.Module:
    layer = Layer(lambda _, x: x)
    layer.node = layer.linear.weight.view_as(layer.linear.weight).grad_fn.next_functions[0][0]
    layer.node.register_prehook(lambda grads: (3 * grads[0],))
    return layer


def left_on(_: Any, x: Tensor) -> Tensor:
    torch.set_autocast_enabled("cpu", True)
    return x


def joined(_: Any, x: Tensor) -> Tensor:
    lengths = 1 + (x[:, 0] > 0).long()
    targets = torch.ones(2, 2, dtype=torch.int64)
    targets = targets[torch.arange(2) < lengths[:, None]]
    return F.ctc_loss(x.log_softmax(-1).expand(3, 2, 4), targets, torch.full((2,), 3), lengths)


def alone(_: Any, x: Tensor) -> Tensor:
    if _get_current_dispatch_mode() is not None:
        raise RuntimeError("no modes")
    return x


def catching(self: Any, x: Tensor) -> Tensor:
    self.late += 1
    try:
        return -x if self.late > 3 else x
    except Exception:
        return x


COUNTED = [
    ("branch", lambda s, x: x if s.n.item() else 2 * x),
    ("set", lambda s, x: 2 * x if s.n.item() in {30, 60} else x),
    ("dict", lambda s, x: x * {30: 0.5}.get(float(s.n), 1.0)),
    ("text", lambda s, x: x * getattr(s, f"rate{s.n.item()}", 1.0)),
    ("another text", lambda s, x: x * {"30": 0.5}.get(str(s.n.item()), 1.0)),
    ("sum of bools", lambda s, x: x * ((s.n.item() > 1) + (s.n.item() > 30))),
    ("complement", lambda s, x: x * ~(s.n.item() > 30)),
    ("cut", lambda s, x: x * (float(s.n) * 0.29 // 1)),
    ("power", lambda s, x: x / 2 ** s.n.item()),
]
"""Uses of a counter's number for which no tensor can stand."""
REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "random": (lambda: Layer(lambda _, x: x * random.random()), "random numbers of Python.*torch.rand"),
    "own random": (lambda: Layer(lambda s, x: x * s.r.random(), r=random.Random(1)), "random numbers of Python"),
    "numpy": (lambda: Layer(lambda _, x: x if np.random.rand() < 2 else -x), "random numbers of NumPy.*torch.rand"),
    "numpy generator": (lambda: Layer(lambda s, x: x * s.r.random(), r=np.random.default_rng(1)), "attribute r"),
    "seed": (lambda: Layer(lambda _, x: (torch.manual_seed(0), F.dropout(x))[1]), "seeds torch's random numbers"),
    "time": (lambda: Layer(lambda _, x: x * time.time()), "the time .*out of the step"),
    "counter": (lambda: Layer(counting, calls=0), r"changes attribute calls of module 0.*register_buffer"),
    "queue": (lambda: Layer(queueing, queue=torch.zeros(3, 4)), "changes attribute queue"),
    "generator": (lambda: numbered(endless), "variable stream"),
    "clamp": (lambda: Layer(clamping), r"writes to 0\.linear\.weight in its backward pass in place"),
    "batch": (lambda: Layer(lambda _, x: x), "writes to batch tensor 0 in place"),
    "backward": (lambda: Layer(lambda _, x: x), "it calls `backward`; return the loss instead"),
    "generator=": (lambda: Layer(lambda s, x: x * torch.rand(4, generator=s.g), g=torch.Generator()), "generator="),
    "numpy()": (lambda: Layer(lambda _, x: x * torch.from_numpy(x.detach().numpy())), "torch's operators only"),
    "deque": (lambda: stepping(partial(deque().append, 0)), "changes variable change of <lambda>"),
    "slots": (lambda: stepping(Slotted()), "changes variable change"),
    "count": (lambda: Layer(lambda _, x: (next(NUMBERS), x)[1]), "changes variable NUMBERS of <lambda>.*`data=`"),
    "late entry": (lambda: stepping(lambda: BUSY.update({2999: BUSY[2999] + 1})), "changes variable BUSY"),
    "default": (lambda: Layer(with_default), "changes a default argument of with_default"),
    "data": (lambda: stepping(lambda: HELD.data.add_(1)), "changes variable HELD"),
    "view": (lambda: stepping(partial(COUNTS.__iadd__, 1)), "changes variable change"),
    "instance": (lambda: Layer(lambda s, x: (s.__dict__.update(n=s.__dict__["n"] + 1), x)[1], n=0), "attribute n of"),
    "hook": (lambda: hooking("register_forward_hook", Slotted()), "changes a hook of module 0"),
    "backward hook": (lambda: hooking("register_full_backward_hook", Slotted()), "changes a hook of module 0"),
    "urandom": (lambda: stepping(lambda: os.urandom(1)), "random numbers of Python"),
    "file": (lambda: stepping(lambda: Path(__file__).open().close()), "reads files .`open`"),
    "environment": (lambda: stepping(lambda: os.putenv("TIEBREAK_TEST", "1")), "writes to the environment"),
    "context": (lambda: stepping(lambda: CONTEXT.run(lambda: VARIABLE.set(VARIABLE.get() + 1))), "variable CONTEXT"),
    "metaclass": (lambda: stepping(Counted.bump), "changes attribute made of class Counting"),
    "decorated": (lambda: stepping(decorated), "changes variable CALLS of decorated"),
    "compiled": (lambda: Layer(torch.compile(counting, backend="eager"), calls=0), "changes attribute calls of module"),
    "keyword": (lambda: stepping(with_keyword), "changes a default argument of with_keyword"),
    "import": (lambda: Layer(by_import), "changes variable hostile of module tests.engine.tiny"),
    "name": (lambda: Layer(by_name), "changes variable BY_NAME of by_name"),
    "cache": (lambda: Layer(lambda _, x: x * looked_up(looked_up.cache_info().hits % 1)), "how often a cache was used"),
    "descriptor": (lambda: stepping(lambda: os.read(TEXT, 1)), "reads files .`read`"),
    "setting": (lambda: stepping(lambda: setattr(getcontext(), "prec", getcontext().prec + 1)), "changes a setting of"),
    "version": (lambda: Layer(lambda s, x: x * (1 + s.linear.weight._version)), "`_version`"),
    "cond": (lambda: Layer(lambda _, x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))), "`cond`, which takes"),
    "norm": (lambda: Layer(twice_updated, norm=nn.BatchNorm1d(4)), "a change of 0.norm.*twice in each step"),
    "expanded": (expanded, "got 0.shift, whose elements share memory; clone it"),
    "three views": (three_views, "got 0.whole and 0.last in the same memory"),
    "mutating": (lambda: with_buffers(bumped, held=torch.zeros(4)), "no lowering rule.*write to their arguments"),
    "packed": (lambda: Layer(lambda _, x: pack_padded_sequence(x, torch.ones(4)).data), "and a mask to every"),
    "other memory": (lambda: with_buffers(other_memory, centre=torch.ones(4)), "given other memory"),
    "kept": (listed, r"reads 0\.linear\.weight by another way"),
    "first": (lambda: Layer(ready, ready=False), "first run has other results"),
    "first draw": (lambda: Layer(drawn_once, noise=None), "first run has other results or draws"),
    "trained elsewhere": (lambda: stepping(lambda: None), "trains parameters of the model only"),
    "layerdrop": (lambda: Layer(skipping, layerdrop=0.1), r"needs the values.*set layerdrop .* to 0.*torch\.rand"),
    "assertion": (lambda: Layer(asserting), "needs the values.*start Python with -O"),
    "labels": (lambda: Layer(lambda _, x, labels=X: x[labels[:2] > 0]), "needs the values.*give the model no labels"),
    "root": (lambda: with_buffers(lambda s, x: x * math.sqrt(float(s.n)), n=torch.tensor(2)), "needs the.*torch.sqrt"),
    **{name: (lambda use=use: with_buffers(use, n=torch.tensor([2])), "needs the values") for name, use in COUNTED},
    "caught": (lambda: with_buffers(catching, late=torch.tensor(0.0)), "values of tensors, and catches the error"),
    "thawed": (lambda: Layer(thawing, frozen=nn.Linear(4, 4).requires_grad_(False)), r"0\.frozen\.weight to True; set"),
    "checks": (lambda: Layer(lambda _, x: Normal(x, 1.0, validate_args=True).log_prob(x)), "validate_args"),
    "hook in forward": (lambda: Layer(hooked_in_forward), r"sets a hook on the gradient of 0\.linear\.weight"),
    "mark": (lambda: Layer(marked), r"sets attribute calls of 0\.linear\.weight"),
    "mark with parts": (with_list, r"changes attribute calls of 0\.linear\.weight"),
    "in backward": (lambda: with_buffers(written_in_backward, seen=torch.ones(4)), "0.seen in its backward pass"),
    "by backward": (lambda: with_buffers(assigned_in_backward, seen=torch.ones(4)), r"in its backward pass, .'0\.seen"),
    "saved": (lambda: Layer(doubly_saved), "changes what autograd saves"),
    "node": (accumulating, r"attribute node of module 0 with a node of its own .AccumulateGrad."),
    "left on": (lambda: Layer(left_on), "changes a setting of torch for the next step.*`with` block"),
    "joined": (lambda: Layer(joined), "needs the values.*give ctc_loss its targets padded"),
    "modes": (lambda: Layer(alone), "^the step cannot be captured: .*no modes"),
    "kernels": (lambda: stepping(torch.backends.cuda.flash_sdp_enabled), "asks which kernels attention may use"),
    "times": (lambda: stepping(os.times), "reads the time .`times`"),
    "scripted": (lambda: torch.jit.script(nn.Linear(4, 4)), "module 0 is scripted"),
    "fails": (lambda: Layer(lambda _, x: x @ torch.ones(5)), r"plain PyTorch already: module 0 .*RuntimeError"),
    "fails again": (lambda: numbered(lambda: iter([1.0])), "plain PyTorch already: module 0 .*StopIteration"),
    "grown": (lambda: with_buffers(reshaped, grown=torch.zeros(1, 4)), "buffer 0.grown to stay .* of shape"),
    "late": (lambda: Layer(late), "make them in __init__"),
    "strided": (lambda: Layer(lambda _, x: (x * 1).as_strided((2, 2), (1, 3))), "only elements side by side"),
    "part of memory": (lambda: Layer(lambda _, x: x.T.as_strided((2,), (1,))), "a part of another tensor's memory"),
    "beyond": (lambda: Layer(lambda _, x: (x * 1)[0].as_strided((8,), (1,))), "reads memory beyond its tensor"),
    "sparse": (lambda: Layer(lambda s, x: s.e(torch.arange(2)) + x, e=nn.Embedding(9, 4, sparse=True)), "sparse=False"),
    "double": (lambda: Layer(lambda _, x: x.double()), "1 more places.*dtype torch.float64"),
    "layers": (lambda: nn.Sequential(*(Layer(lambda _, x: x.erfinv()) for _ in range(3))), "2 more places"),
    "vector": (lambda: Layer(lambda _, x: x), "expected a loss of rank 0"),
}  # fmt: skip
INTERNAL = re.compile(r"\(\w*(Error|Exception)\b")
"""An error of ours in brackets, which tells a user nothing."""
LINELESS = {
    "scripted", "by backward", "node", "grown", "late", "first", "first draw", "trained elsewhere", "backward hook",
    "expanded", "three views", "thawed", "vector",
}  # fmt: skip
"""Cases that have no line of the user's: the fault is not in a line of forward, or lies in the backward pass."""


@pytest.mark.parametrize("name", slow_except(REFUSED, *list(REFUSED)[::3]))
def test_steps_that_cannot_be_captured_are_refused_with_module_and_line(name: str) -> None:
    make, message = REFUSED[name]
    model = nn.Sequential(make())
    head = nn.Linear(4, 4)
    losses = {
        "batch": lambda m, x: m(x.mul_(2)).mean(),
        "backward": lambda m, x: (loss := m(x).mean(), loss.backward(retain_graph=True))[0],
        "trained elsewhere": lambda m, x: head(m(x)).mean(),
        "vector": lambda m, x: m(x),
    }
    with pytest.raises(ConfigurationError) as caught:
        captured(model, losses.get(name))
    text = " ".join(str(caught.value).split())
    assert re.search(message, text), text
    assert name in LINELESS or "test_capture_pure.py:" in text, text
    assert text.count("test_capture_pure.py:") <= 2, text
    assert not INTERNAL.search(text), text


COUNT = 0


def hooked(register: str) -> nn.Module:
    model = nn.Linear(4, 4)
    getattr(model.weight, register)(lambda _: None)
    return model


def shared(buffer: bool, *, written: bool = False) -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    if written:
        whole = torch.zeros(8)
        model = with_buffers(overlapping, whole=whole, part=whole[4:])
    elif buffer:
        model.register_buffer("held", model[0].weight.data[1:])
    else:
        model[1].bias = nn.Parameter(model[0].weight.data[3])
    return model


UNFIT: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "hook": (lambda: hooked("register_hook"), "weight without hooks on its gradient.*clip="),
    "late hook": (lambda: hooked("register_post_accumulate_grad_hook"), "weight without hooks on its gradient"),
    "lazy": (lambda: nn.LazyLinear(4), "weight to have a shape .call the model once"),
    "shared parameters": (lambda: shared(buffer=False), "0.weight and 1.bias in the same memory.*clone"),
    "shared and written": (lambda: shared(buffer=True, written=True), "whole and part in the same memory"),
    "shared buffer": (lambda: shared(buffer=True), "0.weight and held in the same memory"),
}


@pytest.mark.parametrize("name", UNFIT)
def test_gradient_hooks_lazy_and_shared_parameters_are_refused(name: str) -> None:
    make, message = UNFIT[name]
    with pytest.raises(ConfigurationError, match=message):
        captured(make())


class Keeping(nn.Module):
    """A step that keeps a tensor in a buffer, by an assignment after its forward pass."""

    def __init__(self, keep: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.keep, self.linear, self.norm, self.other = keep, nn.Linear(4, 4), nn.BatchNorm1d(4), nn.BatchNorm1d(4)
        for name in ("old", "older", "table"):
            self.register_buffer(name, torch.zeros(4))
        self.frozen, self.twin = (nn.Parameter(torch.full((4,), size), requires_grad=False) for size in (0.5, 0.25))

    def forward(self, x: Tensor) -> Tensor:
        read = self.old + self.older * 2 + self.table + self.frozen - self.twin
        out = self.other(self.norm(self.linear(x))) * (1 + read) + self.norm.running_mean * self.other.running_mean
        self.keep(self, x)
        return out


def in_place_first(self: Any, x: Tensor) -> None:
    self.old.mul_(0.5)
    self.old = self.older = x.mean(0)


def exchange(self: Any, x: Tensor) -> None:
    self.frozen.data, self.twin.data = self.twin.data, self.frozen.data


def exchange_buffers(self: Any, x: Tensor) -> None:
    self.old, self.older = self.older, self.old.lerp(x.mean(0), 0.5)


KEPT_MEMORY: dict[str, tuple[Callable[[Any, Tensor], Any], str]] = {
    "weight": (lambda m, _: setattr(m, "old", m.linear.bias.detach()), "linear.bias and 0.old"),
    "row": (lambda m, _: setattr(m, "old", m.linear.weight.detach()[1]), "linear.weight and 0.old"),
    "data": (lambda m, _: setattr(m, "old", m.linear.bias.data), "linear.bias and 0.old"),
    "registered": (lambda m, _: m.register_buffer("old", m.linear.bias.detach()), "linear.bias and 0.old"),
    "buffer": (lambda m, _: setattr(m, "old", m.norm.running_mean), "norm.running_mean and 0.old"),
    "mean of another": (lambda m, _: setattr(m.other, "running_mean", m.norm.running_mean), "in the same memory"),
    "written buffer": (in_place_first, "0.old and 0.older"),
    "data of a buffer": (lambda m, _: setattr(m.old, "data", m.linear.bias.data), "given other memory"),
    "data of a frozen one": (lambda m, _: setattr(m.frozen, "data", m.linear.bias.data), "given other memory"),
    "swapped": (exchange, "given other memory"),
}  # fmt: skip
KEPT_COPY: dict[str, Callable[[Any, Tensor], Any]] = {
    "weight": lambda m, _: setattr(m, "old", m.linear.bias.detach().clone()),
    "buffer": lambda m, _: setattr(m, "old", m.norm.running_mean.clone()),
    "copied": lambda m, _: m.old.copy_(m.linear.bias.detach()),
    "one for two": lambda m, x: [setattr(m, name, x.mean(0)) for name in ("old", "older")],
    "never written": lambda m, _: setattr(m, "old", m.table),
    "in turn": lambda m, x: [setattr(m, "older", m.old), setattr(m, "old", x.mean(0))],
    "exchanged": exchange_buffers,
    "frozen": lambda m, _: setattr(m.frozen, "data", m.frozen.data * 0.9 + m.linear.bias.data * 0.1),
}


@pytest.mark.parametrize("name", slow_except(KEPT_MEMORY, "weight"))
def test_a_buffer_assigned_anothers_memory_is_refused_naming_both(name: str) -> None:
    keep, names = KEPT_MEMORY[name]
    with pytest.raises(ConfigurationError, match=names):
        captured(nn.Sequential(Keeping(keep)))


@pytest.mark.parametrize("name", slow_except(KEPT_COPY, "weight"))
def test_a_buffer_assigned_a_copy_matches_eager_pytorch(name: str) -> None:
    torch.manual_seed(0)
    ours, theirs = against_torch(replace(task(nn.Sequential(Keeping(KEPT_COPY[name]))), steps=20))
    for entry, tensor in theirs.items():  # of one tensor with two names, one
        torch.testing.assert_close(ours[entry].to(tensor.dtype), tensor, rtol=1e-3, atol=1e-4)


def test_parameters_in_disjoint_slices_of_one_storage_are_accepted() -> None:
    """`from_pretrained` leaves such slices of one file."""
    model, held = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), torch.randn(40)
    for k, layer in enumerate(model):
        layer.weight = nn.Parameter(held[20 * k : 20 * k + 16].view(4, 4))
        layer.bias = nn.Parameter(held[20 * k + 16 : 20 * k + 20])
    assert torch.isfinite(run_engine(captured(model))["loss"])


def test_a_random_result_kept_on_a_module_is_not_state() -> None:
    """A module keeps its last result, which no step reads; looking at that must not move the random numbers on."""
    model = Layer(lambda self, x: setattr(self, "kept", F.dropout(x)) or self.kept, kept=None)
    assert torch.isfinite(run_engine(captured(model))["loss"])


def counted(self: Any, x: Tensor) -> Tensor:
    assert isinstance(float("inf"), float)
    assert isinstance(int("11", base=2), int)
    before, also = self.steps.item(), int(self.steps)
    self.steps += 1
    warm = min(1.0, float(self.steps) / 8) + max(int(self.steps) // 5, 1, self.steps.item() - 9)
    return self.norm(x) * warm * 0.9 ** float(self.steps) / (self.steps.item() // 2 + 1 + before * also)


def test_numbers_read_from_a_counter_buffer_change_as_in_eager() -> None:
    """For one, the counter of a batch norm without momentum, which averages over all batches so far."""
    torch.manual_seed(0)
    model = with_buffers(counted, steps=torch.tensor(0))
    model.norm = nn.BatchNorm1d(4, momentum=None)
    checked(task(model))
    ours, theirs = against_torch(replace(task(model), steps=20))
    for name, tensor in theirs.items():
        torch.testing.assert_close(ours[name].to(tensor.dtype), tensor, rtol=2e-5, atol=2e-5)
    assert ours["steps"].item() == ours["norm.num_batches_tracked"].item() == 20
    assert not {"float", "int", "min", "max"} & globals().keys()


def masked(_: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    if not torch.compiler.is_exporting():
        mask = torch.arange(4.0)
    return x * mask[None]


def masked_by_values(_: Any, x: Tensor) -> Tensor:
    return masked(_, x if torch.compiler.is_compiling() else x * x[x > 0].sum())


def test_the_eager_path_is_captured_if_the_export_path_drops_an_argument() -> None:
    """Libraries do so with masks. If the eager path cannot be captured, its own reason is given."""
    assert torch.isfinite(run_engine(checked(task(nn.Sequential(Layer(masked)))))["loss"])
    with pytest.raises(ConfigurationError, match="needs the values of tensors"):
        captured(nn.Sequential(Layer(masked_by_values)))


def test_library_value_assertions_are_skipped_only_while_tracing() -> None:
    def bounded(_: Any, x: Tensor, bound: float = 1e9) -> Tensor:
        torch._check_tensor_all(x.abs() < bound)
        return x

    checked(task(nn.Sequential(Layer(bounded))))
    Distribution.set_default_validate_args(True)  # torch.compile switches it off
    checked(task(nn.Sequential(Layer(lambda _, x: Normal(x, x.exp()).log_prob(x.detach() + 1)))))
    assert Distribution._validate_args
    with pytest.raises(ConfigurationError, match="plain PyTorch already"):
        captured(nn.Sequential(Layer(partial(bounded, bound=0.0))))


def test_a_loss_that_changes_python_state_is_refused() -> None:
    batches = iter(DataLoader(TensorDataset(torch.rand(64, 4)), batch_size=2))
    calls = [0]

    def from_a_loader(model: nn.Module, x: Tensor) -> Tensor:
        return model(next(batches)[0] + 0 * x).mean()

    def counted(model: nn.Module, x: Tensor) -> Tensor:
        calls[0] += 1
        return model(x).mean() * calls[0]

    def counted_globally(model: nn.Module, x: Tensor) -> Tensor:
        global COUNT  # noqa: PLW0603 (what a user may write)
        COUNT += 1
        return model(x).mean() * COUNT

    for loss, variable, advice in (
        (from_a_loader, "batches", "give the data to the task"),
        (counted, "calls", "a schedule and data can change"),
        (counted_globally, "COUNT", "a schedule and data can change"),
    ):
        with pytest.raises(ConfigurationError, match=rf"the loss \(.*changes variable {variable} of .*{advice}"):
            captured(nn.Linear(4, 4), loss)


@pytest.mark.parametrize(("array", "wrong"), [("labels", 4), ("labels", -1), ("text", 9)])
def test_an_out_of_range_label_anywhere_in_the_data_is_refused(array: str, wrong: int) -> None:
    """A program would read no element there, and only stop at the step that reaches it, or, in `one_hot`, never."""
    data = {"x": X, "labels": torch.arange(8) % 4, "text": torch.arange(64) % 9}
    data[array][-3] = wrong
    if array == "text":
        model: nn.Module = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 4))
        loss: Callable[..., Tensor] = lambda m, text: m(text).square().mean()  # noqa: E731
        batch = Batch(size=2, examples=Windows(name="text", length=4, stride=2))
    else:
        model, batch = nn.Linear(4, 4), Batch(size=2, examples=Rows(names=("x", "labels")))
        loss = lambda m, x, labels: (m(x) * F.one_hot(labels, 4)).mean()  # noqa: E731
    with pytest.raises(ConfigurationError, match=r"plain PyTorch already: .*(Class values must be|out of range)"):
        capture_task(replace(task(model, loss=lambda m, x: m(x).mean()), loss=loss, data=data, batch=batch))


def test_fullgraph_compiled_functions_and_zero_gradients_are_captured() -> None:
    compiled = torch.compile(lambda x: looked_up(1) * torch.tanh(x), fullgraph=True, backend="aot_eager")
    model = Layer(lambda _, x: compiled(x) + x.sgn())  # the gradient of sgn is a tensor of zeros that has no memory
    assert checked(task(model)).check == "full"


def test_logging_and_mask_caching_in_a_step_are_accepted() -> None:
    """Logging reads a clock, a mask is cached, and the loss reaches the model by another name."""
    log = logging.getLogger("tiebreak.tests.steps")
    log.propagate = False
    table: dict[int, Tensor] = {}
    model = nn.Linear(4, 4)

    def loss(_: nn.Module, x: Tensor) -> Tensor:
        log.warning("a step of %d examples", x.shape[0])
        if 4 not in table:
            table[4] = torch.arange(4.0)
        return (model(x) * table[4]).mean()

    log.addHandler(logging.NullHandler())
    assert torch.isfinite(run_engine(captured(model, loss))["loss"])


def test_garbage_collection_callbacks_are_not_blamed_on_the_step() -> None:
    """Hypothesis, for one, reads a clock in its callback."""
    ticks: list[float] = []

    def callback(*_: object) -> None:
        ticks.append(time.perf_counter())

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        cycles: list[object] = []
        for _ in range(2000):
            cycles.append([cycles])
        return F.mse_loss(model(x), y)

    gc.callbacks.append(callback)
    try:
        gc.collect()
        assert ticks
        assert rehearse(nn.Linear(4, 2), [loss], (torch.randn(3, 4), torch.randn(3, 2))) == frozenset()
    finally:
        gc.callbacks.remove(callback)


def test_capture_keeps_train_modes_and_leaves_the_model_unchanged() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.BatchNorm1d(4))
    model[1].eval()
    model[2].eval()
    model[0].weight.grad = torch.ones(4, 4)
    model[0].bias.requires_grad_(False)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    streams = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
    compiled = captured(model)
    state = run_engine(compiled)
    assert [module.training for module in model.modules()] == [True, True, False, False, True]
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert model[0].weight.grad.tolist() == torch.ones(4, 4).tolist()
    assert not model[0].bias.requires_grad
    assert (random.getstate(), np.random.get_state()[1].tolist()) == streams[:2]
    assert torch.equal(torch.get_rng_state(), streams[2])
    assert torch.equal(state["model.1.running_mean"], before["1.running_mean"])
    assert not torch.equal(state["model.3.running_mean"], before["3.running_mean"])
    assert not any(i.opcode.name == "RANDOM" for i in compiled.program.body)


def test_a_refused_capture_leaves_no_side_effects() -> None:
    model = nn.Sequential(Layer(counting, calls=0))
    for refused in (model, nn.Sequential(Layer(left_on))):
        with pytest.raises(ConfigurationError):
            captured(refused)
    assert not torch.is_autocast_enabled("cpu")
    assert model[0].calls == 0
    assert model[0].forward.__func__ is Layer.forward
    assert "__getattribute__" not in vars(nn.Module)


RATES: dict[str, Callable[[Any], float]] = {
    "the rate": lambda layer: layer.optimizer.param_groups[0]["lr"],
    "the scheduler's last rate": lambda layer: layer.scheduler.get_last_lr()[0],
    "the scheduler's count": lambda layer: 1.0 + layer.scheduler.last_epoch,
}


@pytest.mark.parametrize("read", RATES)
def test_a_loss_that_reads_the_scheduled_rate_is_refused(read: str) -> None:
    layer = Layer(lambda _, x: x)
    layer.optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    layer.scheduler = torch.optim.lr_scheduler.ExponentialLR(layer.optimizer, 0.9)

    def given(loss: Callable[..., Tensor], *, scheduled: bool = True) -> Task:
        schedule = layer.scheduler if scheduled else None
        return make_task(layer, loss=loss, data={"x": X}, batch=4, optimizer=layer.optimizer, schedule=schedule)

    reading = lambda model, x: model(x).square().mean() * (1 + RATES[read](model))  # noqa: E731
    with pytest.raises(ConfigurationError, match="reads nothing that a schedule changes"):
        capture_task(given(reading))
    assert (layer.optimizer.param_groups[0]["lr"], layer.scheduler.last_epoch) == (0.1, 0)
    capture_task(given(lambda model, x: model(x).square().mean()))
    capture_task(given(reading, scheduled=False))
