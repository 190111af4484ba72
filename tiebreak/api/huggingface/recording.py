"""Records what each micro-batch of `trainer.train()` is fed: Trainer's own loop runs once, with nothing to compute.

So sampler, collator, packing, epochs, the short last step and the counts of labels are Trainer's own, in any version
whose `training_step(model, inputs, num_items_in_batch)` is public.
"""

import copy
import logging
import warnings
from ast import literal_eval
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Final, cast

import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only
from transformers import Trainer
from transformers.trainer_callback import CallbackHandler, DefaultFlowCallback

from tiebreak.api.huggingface.refusals import samples
from tiebreak.engine.capture.step_run import random_streams, replaced, same_draws, set_random_streams
from tiebreak.engine.data.disk import storing
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.numbers.philox import shuffle

ITEMS: Final = "num_items_in_batch"
"""The number of labels that count in all micro-batches of a step, by which Trainer divides."""
WEIGHT: Final = "micro_batch_weight"
"""The factor of a micro-batch's loss, where they differ; 0 for one that fills up a short step."""
_FILLINGS: Final = {
    "labels": -100, "shift_labels": -100, "attention_mask": 0, "completion_mask": 0, "position_ids": 0,
    "token_type_ids": 0, "special_tokens_mask": 1, "decoder_attention_mask": 0, "start_positions": 1 << 20,
    "end_positions": 1 << 20,
}  # fmt: skip
_TOKENS: Final = ("input_ids", "decoder_input_ids")
FLASH: Final = frozenset(["cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "seq_idx"])
"""Columns for flash attention alone; other attention takes documents apart by `position_ids`."""
_MULTIPLE: Final = 8
_MUCH_PADDING: Final = 0.25
_LOG: Final = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Recording:
    """The micro-batches of a loop: each is the input of one `training_step`."""

    inputs: list[Any] = field(default_factory=list)
    """The inputs of each micro-batch by name, on the CPU; a list of prompts if the trainer samples from its model."""
    items: list[Any] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    """The number of micro-batches in the step of each."""
    steps: int = 0
    planned: int = 0
    """The steps of the schedule: more than there are if a stream of data ends early."""
    loader: Any = None
    """Gives the same batches again, epoch by epoch, and leaves the random numbers as they were after each."""


class RecordedLoader:
    """The trainer's data loader, which records its batches and repeats them in a second run of the loop."""

    def __init__(self, loader: Any, *, samples: bool = False) -> None:
        """samples: whether a batch is a list of prompts, from which the trainer samples."""
        self._loader, self._samples = loader, samples
        self.epochs: list[list[Any]] = []
        self._states = dict[Any, int]()
        """The states of torch's, Python's and NumPy's random numbers that were met, with their numbers."""
        self._drawn: list[list[tuple[Any, Any, bool]]] = []
        """The numbers of the states before and after each batch, and whether a batch depends on them."""
        self.again: Iterator[tuple[list[Any], list[tuple[Any, Any, bool]]]] | None = None
        self.watches = False
        """Whether there may be a warning, given once, that other code has drawn random numbers."""

    def write(self, path: Path) -> None:
        """Writes what is recorded into a file, for the loaders of other processes.

        It has the tensors by number, in their order, and under no name the rest as a Python literal, where b"" is each
        tensor's place.
        """
        tensors = [leaf.contiguous() for leaf in tree_leaves(self.epochs) if isinstance(leaf, Tensor)]
        words = repr((tree_map_only(Tensor, lambda _: b"", self.epochs), self._drawn, self._states))
        numbered = {str(number): tensor for number, tensor in enumerate(tensors)}
        with storing(path):
            save_file(numbered | {"": torch.frombuffer(bytearray(words.encode()), dtype=torch.uint8)}, path)

    def read(self, path: Path) -> None:
        """Lets the loader give the batches of a file. Processes share its pages, and copy those that they change."""
        try:
            with safe_open(path, "pt") as file:
                epochs, self._drawn, self._states = literal_eval(file.get_tensor("").numpy().tobytes().decode())
                numbers = count()
                self.epochs = tree_map_only(bytes, lambda _: file.get_tensor(str(next(numbers))), epochs)
        except (OSError, SafetensorError, SyntaxError, ValueError) as error:
            raise ConfigurationError(f"{path}: expected batches of tensors, numbers and words: {error}") from error
        self.again = zip(self.epochs, self._drawn, strict=True)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        if self.again is not None:
            states = [*self._states]
            for batch, (before, after, depends) in zip(*next(self.again), strict=True):
                if self.watches and depends and before != self._number(random_streams()):
                    self.watches = False
                    _LOG.warning(
                        "random numbers were drawn between steps by more than the data loaders (a callback, or an "
                        "evaluation that samples): from now on, the examples are drawn otherwise than trainer.train() "
                        "would draw them"
                    )
                set_random_streams(tuple(states[number] for number in after))
                yield batch
            return
        self.epochs.append([])
        self._drawn.append([])
        before = random_streams()
        for batch in self._loader:
            after = random_streams()
            self._drawn[-1].append((self._number(before), self._number(after), self._depends(before, after)))
            if not (self._samples or isinstance(batch, Mapping)):
                raise ConfigurationError(f"expected a collator that gives tensors by name, got {type(batch).__name__}")
            held = batch if self._samples else tree_map_only(Tensor, lambda t: t.detach().cpu().clone(), dict(batch))
            self.epochs[-1].append(held)
            yield batch
            before = random_streams()

    def _number(self, streams: tuple[Any, ...]) -> tuple[int, ...]:
        """The numbers of the three states, which are kept once, however often they are met."""
        return tuple(self._states.setdefault(state, len(self._states)) for state in streams)

    def _depends(self, before: Any, after: Any) -> bool:
        """Whether more random numbers were drawn than the seed of the loader's workers."""
        workers: int = getattr(self._loader, "num_workers", 1)
        if after == before or len(self._drawn[-1]) > 0 or workers > 0:
            return bool(after != before)
        with same_draws():
            set_random_streams(before)
            torch.empty((), dtype=torch.int64).random_()
            return bool(random_streams() != after)


def loop(trainer: Trainer, **options: Any) -> Any:
    """Runs the trainer's own loop, also if `train` is replaced."""
    own = type(trainer).train
    return getattr(own, "original", own)(trainer, **options)


def record(trainer: Trainer, batches: Any, path: Path | None = None) -> Recording:
    """Runs the trainer's loop without computing or reporting, and restores the trainer afterwards.

    An evaluation loads its data, since that draws random numbers on which later batches may depend. batches: the data
    loader. path: a file that is to hold what its `read` reads [default: none].
    """
    held: Any = trainer
    found = Recording(loader=RecordedLoader(batches, samples=samples(trainer)))

    def note(_model: Any, _inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        found.items.append(num_items_in_batch)
        found.counts.append(held.current_gradient_accumulation_steps)
        return torch.zeros((), device=trainer.args.device)

    def load(*_: Any, **__: Any) -> dict[str, float]:
        held.control.should_evaluate = False
        for name in held.eval_dataset if isinstance(held.eval_dataset, dict) else [None]:
            for _batch in held.get_eval_dataloader(name):
                pass
        return {}

    silent = cast("Any", CallbackHandler)([DefaultFlowCallback()], trainer.model, trainer.processing_class, None, None)
    state, control = copy.copy(trainer.state), copy.copy(trainer.control)
    silenced = "log", "_clip_grad_norm", "_get_grad_norm", "store_flos", "_determine_best_metric", "_save_checkpoint"
    nothing = {name: lambda *_, **__: None for name in silenced}
    with (
        same_draws(),
        _as_before(trainer),
        replaced(
            trainer, training_step=note, callback_handler=silent, get_train_dataloader=lambda: found.loader,
            floating_point_ops=lambda _: 0, _evaluate=load, **nothing,
        ),
    ):  # fmt: skip
        loop(trainer)
        found.steps, found.planned = trainer.state.global_step, trainer.state.max_steps
    trainer.state, trainer.control = state, control
    found.inputs = [batch for epoch in found.loader.epochs for batch in epoch][: len(found.items)]
    found.loader.again = zip(found.loader.epochs, found.loader._drawn, strict=True)
    if path is not None:
        found.loader.write(path)
    if not found.steps:
        raise ConfigurationError("expected a trainer with at least one step to do, got none; look at its dataset")
    return found


@contextmanager
def _as_before(trainer: Trainer) -> Iterator[None]:
    """Restores optimizer and schedule, which the loop creates, or advances if they are the user's."""
    held: Any = trainer
    parts = [(part, copy.deepcopy(part.state_dict())) for part in (held.optimizer, held.lr_scheduler) if part]
    with replaced(trainer, optimizer=held.optimizer, lr_scheduler=held.lr_scheduler, _created_lr_scheduler=False):
        yield
    for part, before in parts:
        part.load_state_dict(before)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedColumns:
    """A recording as the data of a job: one row is one micro-batch, and the job's shuffle gives Trainer's order."""

    data: dict[str, Tensor]
    dtypes: dict[str, torch.dtype]
    """The types that the model gets; integers are stored in 32 bits."""
    constants: dict[str, Any]
    """The values that are no tensors, and the same in all batches."""
    factor: float
    """The factor of each micro-batch's loss, unless the data have one for each."""
    smallest: tuple[tuple[int, int], ...]
    """Micro-batches that were padded most, by number, and the row of the data that each is in."""


def columns(trainer: Trainer, recording: Recording, *, ordered: bool = False) -> RecordedColumns:
    """Pads the micro-batches to one shape. Raises `ConfigurationError` for a column without a padding value.

    ordered: whether the job reads the rows in their order, instead of the shuffled one.
    """
    held: Any = trainer
    a = trainer.args.gradient_accumulation_steps
    # The micro-batches in order, the last of a short step again until it has `a`, with the share of each in the mean
    # over the `a` of its step.
    sources, shares, at = list[int](), list[float](), 0
    while at < len(recording.counts):
        count = recording.counts[at]
        sources += [*range(at, at + count), *[at + count - 1] * (a - count)]
        shares += [a / count] * count + [0.0] * (a - count)
        at += count
    rows = [recording.inputs[i] for i in sources]
    names = [n for n, v in rows[0].items() if isinstance(v, Tensor) and n not in FLASH]
    _check_names(trainer, rows, names)
    items = [recording.items[i] for i in sources]
    scaled = getattr(held, "loss_is_scaled_for_ga", None)  # which transformers 5.6 does not have
    if scaled is None:
        scaled = (held.model_accepts_loss_kwargs and items[0] is not None) or held.compute_loss_func is not None
    weights = [a * bool(share) if scaled else share for share in shares]
    found = {name: _stacked(trainer, name, [row[name] for row in rows]) for name in names}
    _tell_padding(rows, found)
    if items[0] is not None:
        found[ITEMS] = torch.stack([torch.as_tensor(count).cpu() for count in items])
    if len(set(weights)) > 1:
        found[WEIGHT] = torch.tensor(weights, dtype=torch.float32)
    dtypes = {name: tensor.dtype for name, tensor in found.items()}
    place = [g if ordered else shuffle(g, trainer.args.seed, 0, len(rows), 0) for g in range(len(rows))]
    sizes = [sum(row[n].numel() for n in names) for row in rows]
    widths = [row[names[0]].shape[0] for row in rows]
    smallest = {sizes.index(min(sizes)), widths.index(min(widths))}
    for name, tensor in found.items():
        is_short = tensor.dtype == torch.int64 and int(tensor.abs().max()) < 1 << 31
        narrow = tensor.to(torch.int32) if is_short else tensor
        found[name] = torch.empty_like(narrow).index_copy_(0, torch.tensor(place), narrow)
    return RecordedColumns(
        data=found, dtypes=dtypes,
        constants={n: v for n, v in rows[0].items() if not isinstance(v, Tensor) and n not in FLASH},
        factor=1.0 if WEIGHT in found else float(weights[0]),
        smallest=tuple(
            (sources[i], place[i]) for i in smallest if any(rows[i][n].shape != found[n].shape[1:] for n in names)
        ),
    )  # fmt: skip


def _check_names(trainer: Trainer, rows: Sequence[dict[str, Any]], names: Sequence[str]) -> None:
    attention = str(getattr(getattr(trainer.model, "config", None), "_attn_implementation", None))
    if attention.startswith("flash"):
        raise ConfigurationError(
            f"expected attention that PyTorch computes (attn_implementation='sdpa' or 'eager'), got {attention!r}"
        )
    for row in rows:
        if row.keys() ^ rows[0].keys():
            raise ConfigurationError(
                f"expected batches with the same names, got {sorted(row)} after {sorted(rows[0])}; let the "
                "data_collator give all of them each time"
            )
        for name in row.keys() - {*names} - FLASH:
            if isinstance(row[name], Tensor) or row[name] != rows[0][name]:
                raise ConfigurationError(
                    f"expected tensors, or what is the same in all batches, got {name} with {row[name]!r} after "
                    f"{rows[0][name]!r}; leave it out in the data_collator"
                )


def _stacked(trainer: Trainer, name: str, tensors: Sequence[Tensor]) -> Tensor:
    """One array of all micro-batches, padded at the ends of its dimensions, the second one to a multiple of 8."""
    top = [max(sizes) for sizes in zip(*(t.shape for t in tensors), strict=True)]
    if len(top) > 1 and any(t.shape[1] != top[1] for t in tensors):
        top[1] = -(-top[1] // _MULTIPLE) * _MULTIPLE
    if all(list(t.shape) == top for t in tensors):
        return torch.stack(list(tensors))
    holders = trainer.processing_class, getattr(trainer.model, "config", None)
    pads = [pad for holder in holders if isinstance(pad := getattr(holder, "pad_token_id", None), int)]
    filling = _FILLINGS.get(name, [*pads, 0][0] if name in _TOKENS else None)
    if filling is None and len({t.shape[1:] for t in tensors}) == 1:  # a short batch's last example again
        return torch.stack([t[torch.arange(top[0]).clamp(max=len(t) - 1)] for t in tensors])
    if filling is None or tensors[0].is_floating_point():
        raise ConfigurationError(
            f"expected batches of one shape for {name}, got {tuple(tensors[0].shape)} and others, and no filling is "
            "known for it; pad it to a fixed length, and set dataloader_drop_last=True"
        )
    return torch.stack([
        F.pad(t, [p for dim in reversed(range(t.ndim)) for p in (0, top[dim] - t.shape[dim])], value=filling)
        for t in tensors
    ])  # fmt: skip


def _tell_padding(rows: Sequence[dict[str, Any]], found: Mapping[str, Tensor]) -> None:
    """Warns of the share of padding in the widest array of the data."""
    name = max(found, key=lambda name: found[name].numel())
    given, computed = sum(row[name].numel() for row in rows), found[name].numel()
    if (share := 1 - given / computed) > _MUCH_PADDING:
        warnings.warn(
            f"{computed - given:,} of {computed:,} elements of {name} ({share:.0%} of what is computed) are padding to "
            f"{found[name][0].numel():,} a batch, since all batches of a job have one shape: cut the longest examples, "
            "or pack them (packing=True)",
            stacklevel=4,
        )
