"""A loader's or a dataset's attributes that decide what a step sees are followed, or refused by their names."""

import copy
import random
import re
from collections.abc import Callable, Iterator
from typing import Any

import datasets
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import tiebreak
from tests.parts import slow_except
from tiebreak.protocol.errors import ConfigurationError

N, SIZE = 20, 4
ROWS: list[dict[str, Any]] = [{"x": torch.full((3,), float(i)), "y": i} for i in range(N)]
X, Y = torch.stack([row["x"] for row in ROWS]), torch.arange(N)


class Rows(Dataset[Any]):
    """Examples whose reading a function may change: it takes the dataset, a number and the example."""

    def __init__(self, change: Callable[[Any, int, Tensor], Tensor] = lambda _, __, x: x, rows: int = N) -> None:
        self.change, self.rows, self.reads = change, rows, 0
        self.own = np.random.default_rng(0)

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, i: int) -> Any:
        self.reads += 1
        return {"x": self.change(self, i, ROWS[i]["x"]), "y": i}


def columns() -> datasets.Dataset:
    return datasets.Dataset.from_dict({"x": X.tolist(), "y": Y.tolist(), "text": ["a"] * N})


def steps_of(data: Any, **settings: Any) -> tuple[list[Tensor], list[Tensor]]:
    """The arrays x and y of each step's batch of a job, which a model without a use for them keeps."""
    model = nn.Linear(3, 1)
    size = data.batch_size or data.batch_sampler.batch_size
    model.register_buffer("x", torch.zeros(size, 3))
    model.register_buffer("y", torch.zeros(size, dtype=torch.long))

    def loss(model: Any, x: Tensor, y: Tensor) -> Any:
        model.x.copy_(x)
        model.y.copy_(y)
        return model(x.float()).sum() * 1e-3

    def by_position(model: Any, *batch: Tensor) -> Any:
        return loss(model, *batch)

    chosen = by_position if isinstance(data.dataset, TensorDataset) else loss
    options = {"optimizer": tiebreak.SGD(lr=1e-9), "steps": 11, **settings}
    trainer = tiebreak.reproducible(tiebreak.Task(model, chosen, data=data, **options))
    states = [trainer.state_dict() for _ in trainer]
    return [state["x"] for state in states], [state["y"] for state in states]


def eagerly(loader: DataLoader[Any], steps: int = 11) -> Iterator[tuple[Tensor, Tensor]]:
    """The batches of a loop over a loader, epoch after epoch."""
    epochs = (batch for _ in range(steps) for batch in loader)
    for batch, _ in zip(epochs, range(steps), strict=False):
        x, y = batch.values() if isinstance(batch, dict) else batch
        yield x.float(), y


def doubled(batch: dict[str, Any]) -> dict[str, Any]:
    return {"x": [2 * torch.tensor(x) for x in batch["x"]], "y": batch["y"]}


class Negative(TensorDataset):
    def __getitem__(self, i: int) -> Any:
        return -self.tensors[0][i], self.tensors[1][i]


class Half(TensorDataset):
    def __len__(self) -> int:
        return N // 2 - N // 2 % SIZE


class Together(Rows):
    """Reads several examples at once, as a loader asks for them, and otherwise than one by one."""

    def __getitems__(self, numbers: list[int]) -> Any:
        return [{"x": ROWS[i]["x"] + 1, "y": i} for i in numbers]


def seeded(_: Any, i: int, x: Tensor) -> Tensor:
    torch.manual_seed(i)
    return x + torch.rand(3)


def cached(held: Any, i: int, x: Tensor) -> Tensor:
    cache = vars(held).setdefault("cache", {})
    return cache.setdefault(i, x + 1)  # type: ignore[no-any-return]


def hidden(_: int) -> None:
    pytest.fail("no worker is begun")


TENSORS = TensorDataset(X, Y)
IN_ORDER: dict[str, Callable[[], DataLoader[Any]]] = {
    "tensors": lambda: DataLoader(TENSORS, SIZE),
    "a dataset": lambda: DataLoader(Rows(), SIZE),
    "a list": lambda: DataLoader(ROWS, SIZE),  # type: ignore[arg-type]
    "columns": lambda: DataLoader(columns().with_format("torch", columns=["x", "y"]), SIZE),
    "a transform": lambda: DataLoader(columns().with_transform(doubled), SIZE),
    "a dtype": lambda: DataLoader(columns().with_format("torch", columns=["x", "y"], dtype=torch.int64), SIZE),
    "drop_last": lambda: DataLoader(Rows(rows=18), SIZE, drop_last=True),
    "a list as sampler": lambda: DataLoader(Rows(), SIZE, sampler=[5, 3, 3, 9, 2, 11, 19, 0]),
    "a range as sampler": lambda: DataLoader(TENSORS, SIZE, sampler=range(12)),
    "a tensor as sampler": lambda: DataLoader(Rows(), SIZE, sampler=torch.arange(11, -1, -1)),
    "a sampler over columns": lambda: DataLoader(
        columns().with_format("torch", columns=["x", "y"]), SIZE, sampler=[*range(7, 15)]
    ),
    "a batch_sampler": lambda: DataLoader(Rows(), batch_sampler=BatchSampler(SequentialSampler(Rows()), 5, True)),
    "a subset": lambda: DataLoader(Subset(TENSORS, [4, 1, 2, 3]), SIZE),
    "several": lambda: DataLoader(ConcatDataset([Rows(), Rows(cached)]), SIZE),
    "its own reading": lambda: DataLoader(Negative(X, Y), SIZE),
    "its own length": lambda: DataLoader(Half(X, Y), SIZE),
    "reading together": lambda: DataLoader(Together(), SIZE),
    "a seed by number": lambda: DataLoader(Rows(seeded), SIZE),
    "what changes nothing": lambda: DataLoader(Rows(), SIZE, worker_init_fn=hidden, pin_memory=False, timeout=0),
    "workers": lambda: DataLoader(Rows(), SIZE, num_workers=1, prefetch_factor=3, persistent_workers=True),
}


@pytest.mark.parametrize("name", slow_except(IN_ORDER, "drop_last", "a sampler over columns", "its own length"))
def test_each_step_uses_the_data_loaders_batch(name: str) -> None:
    loader = IN_ORDER[name]()
    expected = [*eagerly(loader)]
    assert len(expected) == 11
    xs, ys = steps_of(loader)
    for x, y, (wanted_x, wanted_y) in zip(xs, ys, expected, strict=True):
        assert torch.equal(x, wanted_x)
        assert torch.equal(y, wanted_y)


def test_batches_accumulate_in_the_loaders_order() -> None:
    loader = DataLoader(Rows(rows=18), SIZE, drop_last=True)
    last = [y for _, y in eagerly(loader, 22)][1::2]  # the second of each two batches is the last that the model sees
    _, ys = steps_of(loader, accumulation=2)
    assert all(torch.equal(a, b) for a, b in zip(ys, last, strict=True))


SHUFFLED: dict[str, tuple[Callable[[], DataLoader[Any]], set[int], int]] = {
    "shuffle": (lambda: DataLoader(Rows(), SIZE, shuffle=True), {*range(N)}, N),
    "a generator": (
        lambda: DataLoader(Rows(), SIZE, shuffle=True, generator=torch.Generator().manual_seed(1)), {*range(N)}, N,
    ),
    "drop_last": (lambda: DataLoader(Rows(rows=18), SIZE, shuffle=True, drop_last=True), {*range(18)}, 16),
    "a subset": (lambda: DataLoader(Rows(), SIZE, sampler=SubsetRandomSampler(range(8, 16))), {*range(8, 16)}, 8),
    "columns": (
        lambda: DataLoader(columns().with_format("torch"), SIZE, sampler=SubsetRandomSampler([*range(8)])),
        {*range(8)}, 8,
    ),
    "a batch_sampler": (
        lambda: DataLoader(Rows(), batch_sampler=BatchSampler(RandomSampler(Rows()), SIZE, False)), {*range(N)}, N,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", slow_except(SHUFFLED, "drop_last"))
def test_shuffling_loaders_use_the_jobs_own_order_over_their_examples(name: str) -> None:
    make, of, drawn = SHUFFLED[name]
    _, ys = steps_of(make())
    order = torch.cat(ys).tolist()
    epochs = [order[at : at + drawn] for at in range(0, len(order) - drawn + 1, drawn)]
    assert len(epochs) >= 2
    assert all(len({*epoch}) == drawn and {*epoch} <= of for epoch in epochs)
    assert epochs[0] != epochs[1]
    _, again = steps_of(make(), seed=1)
    assert torch.cat(again).tolist() != order


def plus_the_last(held: Any, i: int, x: Tensor) -> Tensor:
    last, held.last = getattr(held, "last", i), i
    return x + last


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(ROWS)


class Unmeasured(Dataset[Any]):
    def __getitem__(self, i: int) -> Any:
        return ROWS[i]


class Own(Sampler[int]):
    def __iter__(self) -> Any:
        return iter(range(N))

    def __len__(self) -> int:
        return N


class Drawing(list[int]):
    def __iter__(self) -> Any:
        return iter(random.sample(range(N), N))


class Loader(DataLoader[Any]):
    def __iter__(self) -> Any:
        return iter([])


def loader(**options: Any) -> Callable[[], Any]:
    return lambda: DataLoader(**{"dataset": Rows(), "batch_size": SIZE, **options})


def at_a_tenth(draw: Callable[[Any], float]) -> Callable[[], Any]:
    return lambda: Rows(lambda held, _, x: -x if draw(held) < 0.1 else x)


def by_batch(batch: dict[str, Any]) -> dict[str, Any]:
    return {"x": [torch.tensor(x) + len(batch["x"]) for x in batch["x"]], "y": batch["y"]}


def noisy(batch: dict[str, Any]) -> dict[str, Any]:
    return {"x": [torch.tensor(x) + torch.rand(()) for x in batch["x"]], "y": batch["y"]}


SAMPLED = WeightedRandomSampler([1.0] * N, N)
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "weights": (loader(sampler=SAMPLED), "the sampler WeightedRandomSampler"),
    "weights in batches": (
        loader(batch_size=1, batch_sampler=BatchSampler(SAMPLED, SIZE, False)), "the sampler WeightedRandomSampler",
    ),
    "replacement": (loader(sampler=RandomSampler(Rows(), replacement=True)), "a sampler with replacement"),
    "a part at random": (loader(sampler=RandomSampler(Rows(), num_samples=8)), "a sampler of 8 of 20 examples"),
    "processes": (loader(sampler=DistributedSampler(Rows(), 2, 0)), "the sampler DistributedSampler"),
    "its own sampler": (loader(sampler=Own()), "the sampler Own"),
    "a list of its own": (loader(sampler=Drawing(range(N))), "the sampler Drawing"),
    "batches in a list": (loader(batch_size=1, batch_sampler=[[0, 1], [2, 3]]), "the batch_sampler list"),
    "no batches": (loader(batch_size=None), "batch_size=None"),
    "collate_fn": (loader(collate_fn=lambda rows: rows[0]), "a collate_fn"),
    "worker_init_fn": (loader(num_workers=1, worker_init_fn=hidden), "a worker_init_fn"),
    "a short batch": (loader(dataset=Rows(rows=18)), "drop_last=False and a last one of 2 examples; give drop_last"),
    "a class": (lambda: Loader(Rows(), SIZE), "the class Loader"),
    "a stream": (lambda: DataLoader(Stream(), SIZE), "a stream, a Stream"),
    "a stream of columns": (lambda: DataLoader(columns().to_iterable_dataset(), SIZE), "a stream, an IterableDataset"),
    "columns as a stream": (lambda: columns().to_iterable_dataset(), "a dataset with a length, .* an IterableDataset"),
    "no length": (loader(dataset=Unmeasured()), "a dataset without a length, an Unmeasured"),
    "nothing": (lambda: Rows(rows=0), "at least one example, got none"),
    "no columns": (lambda: columns().select([]), "at least one example, got none"),
    "torch's numbers": (at_a_tenth(lambda _: torch.rand(()).item()), "uses torch's random numbers"),
    "Python's numbers": (at_a_tenth(lambda _: random.random()), r"uses Python's \(`random`\) random numbers"),
    "NumPy's numbers": (at_a_tenth(lambda _: np.random.rand()), r"uses NumPy's \(`np.random`\) random numbers"),
    "its own numbers": (at_a_tenth(lambda held: held.own.random()), "another at the second look"),
    "state": (lambda: Rows(lambda held, _, x: x * (1 + held.reads % 2)), "another at the second look"),
    "the example before": (lambda: Rows(plus_the_last), "another at the second look"),
    "a transform by batch": (lambda: columns().with_transform(by_batch), "another at the second look"),
    "a random transform": (lambda: columns().with_transform(noisy), "uses torch's random numbers"),
    "another batch": (loader(batch_size=5), "expected batch=5, the batch_size of the DataLoader, got 4"),
}  # fmt: skip


MODEL = nn.Linear(3, N)


def refused(data: Any) -> str:
    """The message of a refusal that leaves the user's random streams alone."""
    torch.manual_seed(0x7EB)
    before = torch.get_rng_state(), random.getstate(), copy.deepcopy(np.random.get_state())
    with pytest.raises(ConfigurationError) as found:
        task(data)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    assert repr(np.random.get_state()) == repr(before[2])
    return str(found.value)


def task(data: Any, **options: Any) -> tiebreak.Task:
    settings = {"optimizer": tiebreak.SGD(lr=0.1), "batch": SIZE, "steps": 6, **options}
    return tiebreak.Task(MODEL, lambda m, x, y: F.cross_entropy(m(x), y), data=data, **settings)


@pytest.mark.parametrize("name", REFUSED)
def test_unsupported_loader_features_are_refused_by_name(name: str) -> None:
    make, words = REFUSED[name]
    assert re.search(words, refused(make()))


def test_borderline_supported_loaders_are_accepted() -> None:
    assert task(DataLoader(Rows(rows=18), SIZE, shuffle=True), steps=4).examples == 18  # ends before the short batch
    assert task(DataLoader(Rows(), 5, shuffle=True), batch=None).batch.size == 5
    holes = [{"x": torch.tensor([float("nan")] * 3), "y": 0}] * SIZE
    assert "finite numbers in data 'x'" in refused(holes), "NaN is no other example"
    with pytest.raises(ConfigurationError, match="expected batch, the number of examples per step, got none"):
        task(Rows(), batch=None)
    made = tiebreak.Task(
        nn.Linear(3, 1), lambda m, x: m(x).sum(), optimizer=tiebreak.SGD(lr=0.1), data=Bare(), batch=2, steps=2
    )
    assert made.examples == N, "examples may be tensors alone"


class Bare(Dataset[Any]):
    def __len__(self) -> int:
        return N

    def __getitem__(self, i: int) -> Any:
        return X[i]
