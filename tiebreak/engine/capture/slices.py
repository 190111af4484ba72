"""Checks a large model by a few of its layers: the same code with fewer of them, and both programs compared.

A slice of a task has the same loss, data and settings, and a model whose lists of equal layers (`nn.ModuleList`,
`nn.Sequential`) keep their first two layers and the last one. It shares its layers with the user's model, which stays
as it is. What the check finds out about the slice holds for the whole program if these hold:

(1) the layers of a run have equal modules, shapes and settings, but for integers that count the layers, and no tensor
    of one is anywhere else in the model;
(2) in the whole program, the instructions of each inner layer are those of the next one, over values that are one layer
    further, or the same ones;
(3) all other instructions, and those of the second layer, are those of the slice, over values that stand where the
    slice's stand.

The exception are sums over all layers in the update, such as the norm of all gradients.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from copy import copy
from dataclasses import dataclass, replace
from glob import escape
from itertools import takewhile, zip_longest
from typing import Any, Final

import torch
from torch import Tensor, nn

from tiebreak.engine.capture.captured import Captured
from tiebreak.engine.capture.state import MODEL
from tiebreak.engine.capture.task import Task
from tiebreak.engine.optimizers.rules import AVERAGE
from tiebreak.engine.optimizers.settings import Group, settings_of
from tiebreak.engine.optimizers.translate import TorchOptimizers
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.program.isa import Instruction, Opcode, RandomParams, Slot, SourceKind

FIRST: Final = 2
"""The number of layers that are kept at the start of a run; one more is kept at its end."""
LEAST: Final = 5
"""The fewest layers of a run: of fewer, none would be compared with two others."""
_PLAIN: Final = (int, float, complex, str, bytes, tuple, torch.dtype, type(None))
Layer = tuple[str, int] | None
"""The path of a run's first layer, and the number of a layer in the run; None: no layer of any run."""


class NoSlice(ConfigurationError):
    """A few layers of a model do not represent the others, so the whole model has to be checked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """A task over a model with fewer layers."""

    task: Task
    names: Mapping[str, str]
    """The paths of modules, and the names of tensors, in the whole model, by those in the slice's."""
    layers: Mapping[str, Layer]
    """The layers of the whole model's runs by their paths."""
    counts: Mapping[str, int]
    """The number of layers of each run."""

    @classmethod
    def of(cls, task: Task) -> "Slice":
        """Raises `NoSlice` if no list of the model has enough equal layers in a row."""
        if len(task.phases) > 1:
            raise NoSlice("expected one loss, got several")
        counts, layers, names = dict[str, int](), dict[str, Layer](), dict[str, str]()
        for run in _runs(task.model):
            counts[run[0]] = len(run)
            layers |= {path: (run[0], number) for number, path in enumerate(run)}
        if not counts:
            raise NoSlice(
                f"expected a model with a list (nn.ModuleList, nn.Sequential) of at least {LEAST} equal layers in "
                f"a row, of which {FIRST + 1} would be checked, got none"
            )
        dropped = {path for path, layer in layers.items() if layer and FIRST <= layer[1] < counts[layer[0]] - 1}
        model = _shell(task.model, "", "", dropped, names)
        for small, own in [*names.items()]:
            module = task.model.get_submodule(own)
            names |= {_path(small, name): _path(own, name) for name in (*module._parameters, *module._buffers)}
        given: Any = task.optimizer
        if isinstance(given, TorchOptimizers):
            given = given.over([*model.parameters()])
        elif given is not None:
            found = [(name, settings_of(given, names[name])) for name, _ in model.named_parameters()]
            groups = [Group(match=(escape(n),), lr_factor=factor, weight_decay=decay) for n, (factor, decay) in found]
            given = replace(given, groups=tuple(groups))
        fewer = replace(task, model=model, optimizer=given, evaluate=None, evaluate_every=None)
        return cls(task=fewer, names=names, layers=layers, counts=counts)

    def compare(self, whole: Captured, small: Captured, model: nn.Module) -> None:
        """Raises `NoSlice`, with the place, if the program of `model` is not the slice's for more layers."""
        part = _Parts(small, self.names, self.layers)
        large = _Parts(whole, {name: name for name, _ in _tensors(model)}, self.layers)
        for run, count in self.counts.items():
            for number in range(1, count - 2):
                large.follow(run, number)
        kept = {(run, n) for run, count in self.counts.items() for n in (*range(FIRST), count - 1)}
        pairs: dict[int, int] = {}
        for layer in (None, *sorted(kept)):
            pairs |= _paired(part, part.groups[layer], large, large.groups[layer])
        for a, b in pairs.items():
            for x, y in zip(part.reads(a), large.reads(b), strict=True):
                if x in part.across and y in large.across:
                    continue
                stands = x in pairs and large.first(pairs[x]) == large.first(y)
                if not stands or not self._alike(part.layers[a], part.layers[x], large.layers[y]):
                    raise _other(large.leaves[b], "it reads another value")
        for name, tensor in small.data.items():
            if not torch.equal(tensor, whole.data[name]):
                raise _other(None, f"the data {name} are others")

    def _alike(self, at: Layer, small: Layer, whole: Layer) -> bool:
        """Whether a layer reads of the same layer in the slice and in the whole model, or of one as far away."""
        if at is None or small is None or whole is None or not at[0] == small[0] == whole[0]:
            return small == whole
        # In the slice, the last layer comes after the first ones.
        return small == whole or whole[1] - at[1] == min(small[1], FIRST) - min(at[1], FIRST)


class _Parts:
    """The leaves of a program's value tree (instructions, then commits), by the layers that they belong to.

    What the model was traced to belongs to the layer that ran last, unless it depends on no layer's tensors and draws
    nothing. What follows, the update, belongs to the layer whose tensors it reads.
    """

    def __init__(self, captured: Captured, names: Mapping[str, str], layers: Mapping[str, Layer]) -> None:
        self.leaves = (*captured.program.body, *captured.program.commits)
        self.layers: list[Layer] = []
        self.groups: dict[Layer, list[int]] = defaultdict(list)
        self.across: set[int] = set()
        """Sums over several layers, which are in no group."""
        self.ahead: dict[int, int] = {}
        """The corresponding value of the next layer, by value."""
        self._back: dict[int, int] = {}
        self._names, self._paths = names, layers
        ran: Layer = None
        for number, leaf in enumerate(self.leaves):
            read = {self.layers[value] for value in self.reads(number)} - {None}
            if _is_state(leaf):
                read = {self._named(leaf)[1]}
            elif number < captured.traced:
                path = leaf.origin.partition(" (")[0].rpartition(":")[0]
                ran = self._layer(names.get(path, path))[0] or ran
                read = {ran} if read or isinstance(leaf.params, RandomParams) else set()
            else:
                read = {self.layers[value] for value in self.reads(number) if self.leaves[value].shape} - {None} or read
            self.layers.append(next(iter(read)) if len(read) == 1 else None)
            if len(read) > 1:
                self.across.add(number)
            else:
                self.groups[self.layers[-1]].append(number)

    def reads(self, number: int) -> list[int]:
        return [operand.value for operand in self.leaves[number].operands]

    def first(self, value: int) -> int:
        """The corresponding value of the earliest inner layer, or of what comes before the layers."""
        while value in self._back:
            value = self._back[value]
        return value

    def key(self, number: int) -> tuple[Any, ...]:
        """All of a leaf but the values that it reads, and the layer."""
        leaf = self.leaves[number]
        params: Any = leaf.params
        if _is_state(leaf):
            prefix, layer, name = self._named(leaf)
            params = prefix, layer and layer[0], name
        elif isinstance(params, Slot):
            params = params.name
        elif isinstance(params, RandomParams):
            params = None  # each draw has a stream of its own
        accesses = tuple((operand.offset, operand.strides) for operand in leaf.operands)
        return leaf.opcode, leaf.function, leaf.dtype, leaf.shape, leaf.reduction, accesses, params

    def follow(self, run: str, number: int) -> None:
        """Compares a layer with the next one."""
        layer, after = (run, number), (run, number + 1)
        pairs = _paired(self, self.groups[layer], self, self.groups[after])
        reads = [(x, y, b) for a, b in pairs.items() for x, y in zip(self.reads(a), self.reads(b), strict=True)]
        for x, y, b in [*((a, b, b) for a, b in pairs.items()), *reads]:
            there, place = self.layers[x], self.layers[y]
            if x in self.across and y in self.across:
                continue
            if x == y and there != layer:
                alike = there is None or self.ahead.setdefault(x, x) == x
            else:
                shifted = there and place == (run, there[1] + 1) and there[0] == run
                alike = bool(shifted) and self.ahead.setdefault(x, y) == y and self._back.setdefault(y, x) == x
            if not alike:
                raise _other(self.leaves[b], "it reads another value")

    def _named(self, leaf: Instruction) -> tuple[str, Layer, str]:
        """The kind of a state entry (a weight, a moment), the layer of its tensor, and the tensor's name there."""
        assert isinstance(leaf.params, Slot)
        words = leaf.params.name.split(".")
        most = 1 if leaf.params.name.startswith((MODEL, AVERAGE)) else len(words) - 1
        for at in range(1, most + 1):
            if (name := ".".join(words[at:])) in self._names:
                return ".".join(words[:at]), *self._layer(self._names[name])
        return leaf.params.name, None, ""

    def _layer(self, path: str) -> tuple[Layer, str]:
        """The layer that a module or tensor lies in, and its path there."""
        words = path.split(".")
        for end in range(1, len(words) + 1):
            if (layer := self._paths.get(".".join(words[:end]))) is not None:
                return layer, ".".join(words[end:])
        return None, path


def _is_state(leaf: Instruction) -> bool:
    return leaf.opcode == Opcode.COMMIT or (leaf.opcode == Opcode.SOURCE and leaf.function == SourceKind.STATE)


def _paired(part: _Parts, some: Sequence[int], whole: _Parts, others: Sequence[int]) -> dict[int, int]:
    """The leaves `others` by the leaves `some`, which do the same in their order."""
    for a, b in zip_longest(some, others):
        if a is None or b is None or part.key(a) != whole.key(b):
            raise _other(part.leaves[a] if b is None else whole.leaves[b], "it does something else")
    return dict(zip(some, others, strict=True))


def _other(leaf: Instruction | None, what: str) -> NoSlice:
    place = f" at {leaf.origin}" if leaf is not None and leaf.origin else ""
    return NoSlice(
        f"expected layers that do the same, of which a few are checked for all, got another program{place}: {what} "
        "than in the slice or in the layer before"
    )


# The model with fewer layers


def _path(*parts: str) -> str:
    return ".".join(filter(None, parts))


def _tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)


def _runs(model: nn.Module) -> list[list[str]]:
    """The paths of equal layers in a row, for each run of them that is in no layer of another one."""
    places: dict[int, list[str]] = defaultdict(list)
    for name, tensor in _tensors(model):
        places[id(tensor)].append(name)

    def is_alone(path: str, layer: nn.Module) -> bool:
        return all(name.startswith(f"{path}.") for _, tensor in _tensors(layer) for name in places[id(tensor)])

    found, inside = list[list[str]](), list[str]()
    for path, module in model.named_modules():
        if not isinstance(module, nn.ModuleList | nn.Sequential) or f"{path}.".startswith((*inside, "\0")):
            continue
        left = [(_path(path, name), child) for name, child in module._modules.items()]
        while left:
            alike = (_same(left[0][1], child, n) and is_alone(p, child) for n, (p, child) in enumerate(left))
            run = [layer for layer, _ in zip([name for name, _ in left], takewhile(bool, alike), strict=False)]
            if len(run) >= LEAST:
                found.append(run)
                inside += [f"{layer}." for layer in run]
            left = left[max(1, len(run)) :]
    return found


def _same(a: nn.Module, b: nn.Module, apart: int) -> bool:
    """Tells whether two layers differ only by the values of tensors, and by integers that count the layers."""
    for (path, own), (other_path, other) in zip_longest(a.named_modules(), b.named_modules(), fillvalue=("", None)):
        if (path, type(own)) != (other_path, type(other)) or vars(own).keys() != vars(other).keys():
            return False
        for x, y in ((value, vars(other)[key]) for key, value in vars(own).items()):
            counts = type(x) is type(y) is int and y - x == apart
            if (isinstance(x, _PLAIN) and x != y and not counts) or (isinstance(x, dict) and len(x) != len(y)):
                return False
    kinds = [[(name, t.shape, t.dtype, t.requires_grad) for name, t in _tensors(layer)] for layer in (a, b)]
    return kinds[0] == kinds[1]


def _shell(module: nn.Module, small: str, own: str, dropped: Set[str], names: dict[str, str]) -> nn.Module:
    """A module without the dropped layers: itself, or a copy of the module alone. Notes the paths that are kept."""
    names[small] = own
    children = {name: child for name, child in module._modules.items() if child is not None}
    kept = [name for name in children if _path(own, name) not in dropped]
    order = zip(children if len(kept) < len(children) else kept, kept, strict=False)
    inner = {new: _shell(children[name], _path(small, new), _path(own, name), dropped, names) for new, name in order}
    if inner == children:
        return module
    copied = copy(module)
    vars(copied)["_modules"] = inner if len(kept) < len(children) else module._modules | inner
    return copied
