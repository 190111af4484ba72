"""The micro-batches of GRPO and RLOO: rollouts, which TRL's trainers make with the weights of the moment.

Prompts are data of the job, in the order in which steps read them. What comes with the weights of the moment is late
data: the trainer's own code samples, scores and buffers it before each step, it is padded to one shape, and the step's
log publishes it. Log-probabilities of a frozen reference model are part of the program.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from hashlib import sha256
from importlib import import_module
from math import lcm
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import set_seed

from tiebreak.api.huggingface.recording import WEIGHT, RecordedColumns, Recording
from tiebreak.engine.capture.step_run import replaced, same_draws
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.numbers.philox import shuffle

REFERENCE: Final = "ref_per_token_logps"
"""The column that TRL computes with the reference model, and the program in its place."""


@contextmanager
def seeded(trainer: Any) -> Iterator[None]:
    """Draws within follow from the trainer's seed and its number of micro-batches alone; those after it are as before.

    So what evaluations and callbacks draw changes no rollout, nor does an interruption. The order in which rollouts are
    used has a seed of its own, so that it is known before they are sampled.
    """
    module = shuffling(trainer)
    plain = module.shuffle_sequence_dict

    def shuffled(given: dict[str, Any]) -> Any:
        with same_draws():
            set_seed(_seed(trainer, " order"))
            return plain(given)

    with same_draws(), replaced(module, shuffle_sequence_dict=shuffled):
        set_seed(_seed(trainer, ""))
        yield


def _seed(trainer: Any, purpose: str) -> int:
    digest = sha256(f"{trainer.args.seed} {trainer._step}{purpose}".encode()).digest()
    return int.from_bytes(digest[:4], "little")


def shuffling(trainer: Any) -> Any:
    """The module of TRL in which a trainer finds the function that shuffles its rollouts."""
    modules = [import_module(kind.__module__) for kind in type(trainer).__mro__]
    return next(module for module in modules if hasattr(module, "shuffle_sequence_dict"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollouts:
    """The form of a step's rollouts, the same for the whole job."""

    example: Recording
    """The micro-batches of a step with drawn tokens and rewards, as the trainer makes them."""
    columns: RecordedColumns
    """The example as a step reads it, and the factor of the loss."""
    known: dict[str, Tensor]
    """What is known of the job's micro-batches before training, in their order: prompts."""
    widths: dict[str, int]
    """The length of what is padded, by name."""
    padding: int
    """The token id that fills prompts on the left and completions on the right."""
    period: int
    """The number of steps after which all rollouts made so far are used up."""

    @classmethod
    def of(cls, trainer: Any, recording: Recording, *, shuffled: bool = True) -> "Rollouts":
        """Pads the prompts of the recorded batches to the longest, and makes an example. The trainer stays as it is.

        shuffled: whether rollouts are used in the order into which TRL shuffles them, or in that of their sampling.
        """
        args, inputs = trainer.args, recording.inputs
        every, a = args.steps_per_generation * trainer.num_iterations, args.gradient_accumulation_steps
        if {*recording.counts} != {a}:
            raise ConfigurationError(
                f"expected {a} micro-batches in each step, got a last step of an epoch with {min(recording.counts)}; "
                "set steps_per_generation to a multiple of gradient_accumulation_steps"
            )
        prompts = {repr(row["prompt"]): row["prompt"] for batch in inputs[::every] for row in batch}
        tokens = dict(zip(prompts, trainer._tokenize_prompts([*prompts.values()])[0], strict=True))
        longest = [max(len(tokens[repr(row["prompt"])]) for row in batch) for batch in inputs[::every]]
        multiple = getattr(trainer, "pad_to_multiple_of", None) or 1
        prompt, completion = (-(-n // multiple) * multiple for n in (max(longest), trainer.max_completion_length))
        made = _example(trainer, inputs[every * longest.index(min(longest))], a)
        if others := sorted({n for batch in made for n, value in batch.items() if not isinstance(value, Tensor)}):
            raise ConfigurationError(f"expected rollouts that are tensors, got others: {', '.join(others)}")
        names, long = [n for n in made[0] if n != REFERENCE], made[0]["completion_ids"].shape[1]
        widths = {
            n: prompt if n.startswith("prompt_") else completion
            for n in names if made[0][n].ndim > 1 and (n.startswith("prompt_") or made[0][n].shape[1] == long)
        }  # fmt: skip
        padding, dtypes = trainer._tokenizer.pad_token_id, {n: made[0][n].dtype for n in names}
        known = {
            "prompt_ids": lambda rows: _filled([tokens[repr(row["prompt"])] for row in rows], prompt, padding),
            "prompt_mask": lambda rows: (
                _filled([[1] * len(tokens[repr(row["prompt"])]) for row in rows], prompt, 0) > 0
            ),
        }
        columns = RecordedColumns(
            data={}, dtypes=dtypes | {WEIGHT: torch.float32}, constants={}, factor=1.0,
            smallest=tuple((i, i) for i in range(a)),
        )  # fmt: skip
        found = cls(
            example=Recording(inputs=made, items=[None] * a, counts=[a] * a), columns=columns, widths=widths,
            padding=padding, period=lcm(every, a) // a,
            known={name: _in_order(trainer, inputs, of_rows, shuffled=shuffled) for name, of_rows in known.items()},
        )  # fmt: skip
        columns.data.update(found.late(made))
        columns.data[WEIGHT] = torch.full([len(inputs)], float(a if trainer.loss_is_scaled_for_ga else 1))
        return found

    def data(self, seed: int) -> dict[str, Tensor]:
        """The columns of the job's data, a row for each micro-batch. seed: the job's, for its order of rows."""
        columns = {**self.known, WEIGHT: self.columns.data[WEIGHT]}
        count = len(columns[WEIGHT])
        place = torch.tensor([shuffle(g, seed, 0, count, 0) for g in range(count)])
        return {name: torch.empty_like(tensor).index_copy_(0, place, tensor) for name, tensor in columns.items()}

    @property
    def refers(self) -> bool:
        """Whether the loss reads what a reference model computes."""
        return REFERENCE in self.example.inputs[0]

    def computed(self, trainer: Any, model: Any, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The completions' log-probabilities by the reference: TRL's copy of the model, or that without adapters."""
        if not self.refers:
            return {}
        ids, mask = (torch.cat([given[f"prompt_{n}"], given[f"completion_{n}"]], 1) for n in ("ids", "mask"))
        frozen: Any = nullcontext()
        if trainer.ref_model is None:
            frozen = import_module("trl.trainer.utils").use_adapter(
                model, "ref" if "ref" in model.peft_config else None
            )
        with torch.no_grad(), frozen:
            found, *_ = trainer._get_per_token_logps_and_entropies(
                trainer.ref_model or model, ids, mask, given["completion_ids"].shape[1]
            )
        return {REFERENCE: found}

    def late(self, batches: Sequence[Mapping[str, Tensor]], first: int | None = None) -> dict[str, Tensor]:
        """The micro-batches of a step in its form. Raises `ConfigurationError` for others, or with other prompts.

        first: the number of the first one in the job, from 0.
        """
        names = [name for name in self.columns.dtypes if name != WEIGHT]
        found = {name: torch.stack([self._padded(name, batch[name]) for batch in batches]) for name in names}
        for name, tensor in self.known.items() if first is not None else ():
            if not torch.equal(found[name], tensor[first : first + len(batches)].to(found[name].dtype)):
                raise ConfigurationError(
                    f"expected {name} in micro-batches from {first + 1} on as in the job's data, got others from the "
                    "trainer: let TRL's own code make the rollouts"
                )
        return found

    def _padded(self, name: str, tensor: Tensor) -> Tensor:
        wide = torch.float32 if tensor.is_floating_point() else torch.int64
        plain = tensor.detach().cpu() if tensor.dtype == torch.bool else tensor.detach().cpu().to(wide)
        if name not in self.widths:
            return plain
        gap = self.widths[name] - plain.shape[1]
        if gap < 0:
            raise ConfigurationError(
                f"expected at most {self.widths[name]} columns in {name}, by the longest prompt of the data set and "
                f"max_completion_length, got {plain.shape[1]}"
            )
        sides = (gap, 0) if name.startswith("prompt_") else (0, gap)
        return F.pad(plain, sides, value=self.padding if name.endswith("_ids") else 0)


def _filled(rows: Sequence[Sequence[int]], width: int, padding: int) -> Tensor:
    """Rows of tokens, filled on the left, i32."""
    return torch.tensor([[padding] * (width - len(row)) + [*row] for row in rows], dtype=torch.int32)


def _in_order(
    trainer: Any, inputs: Sequence[Any], of_rows: Callable[[Any], Tensor], *, shuffled: bool
) -> Tensor:  # fmt: skip
    """What each micro-batch reads of the rows for which the trainer samples together."""
    parts, found = trainer.args.steps_per_generation, list[Tensor]()
    every = parts * trainer.num_iterations
    for start in range(0, len(inputs), every):
        made = of_rows(inputs[start])
        if shuffled:
            with replaced(trainer, _step=start), seeded(trainer):
                made = shuffling(trainer).shuffle_sequence_dict({"made": made})["made"]
        chunks = made.unflatten(0, (parts, -1))
        found += [chunks[number % parts] for number in range(min(every, len(inputs) - start))]
    return torch.stack(found)


def _example(trainer: Any, batch: Any, count: int) -> list[dict[str, Any]]:
    """Micro-batches as the trainer makes them, but of drawn completions and rewards: it calls no code of the user's.

    No completion is of full length, so that the example has padding on both sides.
    """
    tokens = min(len(trainer._tokenizer), trainer.model.config.get_text_config().vocab_size)
    longest = max(2, trainer.max_completion_length * 3 // 4)

    def generate(input_ids: Tensor, **_: Any) -> Tensor:
        drawn = torch.randint(tokens, (len(input_ids), longest), device=input_ids.device)
        ends = torch.randint(longest, (len(input_ids),), device=input_ids.device)
        drawn[torch.arange(len(input_ids)), ends] = trainer._tokenizer.eos_token_id
        return torch.cat([input_ids, drawn], 1)[:, : input_ids.shape[1] + trainer.max_completion_length]

    def rewards(inputs: Any, *_: Any) -> Tensor:
        return torch.rand(len(inputs), len(trainer.reward_funcs), device=trainer.args.device)

    reports = {n: copy.deepcopy(vars(trainer)[n]) for n in ("_metrics", "_logs") if n in vars(trainer)}
    modes, made = [(module, module.training) for module in trainer.model.modules()], list[dict[str, Any]]()
    trainer.model.train()
    with (
        seeded(trainer),
        replaced(
            trainer, _calculate_rewards=rewards, state=copy.copy(trainer.state), _step=0, _buffered_inputs=None,
            **reports,
        ),
        replaced(trainer.model, generate=generate),
    ):  # fmt: skip
        for trainer._step in range(count):
            made.append({n: v.cpu() if isinstance(v, Tensor) else v for n, v in trainer._prepare_inputs(batch).items()})
    for module, mode in modes:
        module.training = mode
    return made
