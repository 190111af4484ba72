"""The micro-batches of GRPO and RLOO: rollouts, which TRL's trainers make with the weights of the moment.

Prompts are data of the job, in the order in which steps read them. What comes with the weights of the moment is late
data: the trainer's own code samples, scores and buffers it before each step, it is padded to one shape, and the step's
log publishes it. Log-probabilities of a frozen reference model are part of the program.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from importlib import import_module
from math import lcm
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import set_seed

from tiebreak.api.huggingface import rewards
from tiebreak.api.huggingface.recording import WEIGHT, RecordedColumns, Recording
from tiebreak.engine.capture.step_run import replaced, same_draws
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.numbers.philox import shuffle

REFERENCE: Final = "ref_per_token_logps"
"""The column that TRL computes with the reference model, and the program in its place."""
OLD: Final = "old_logps"
"""The column of RLOO with log-probabilities, by sequence, of the model that sampled."""
_REWARD: Final = "reward_"
"""Prefix of the columns of the data that rewards read, before the number of each."""


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
    """The columns of the job's micro-batches, in their order, before training: prompts, and what rewards read."""
    reward_funcs: tuple[rewards.ComputedReward, ...]
    """The rewards that steps compute."""
    state: rewards.RolloutState | None
    """The state that steps keep of rollouts which they check; a part of the model while that is captured."""
    widths: dict[str, int]
    """The length of what is padded, by name."""
    padding: int
    """The token id that fills prompts on the left and completions on the right."""
    period: int
    """The number of steps after which all rollouts made so far are used up."""

    @classmethod
    def of(cls, trainer: Any, recording: Recording, *, exact: bool = False) -> "Rollouts":
        """Pads the prompts of the recorded batches to the longest, and makes an example. The trainer stays as it is.

        exact: whether steps check that rollouts are samples. These are used in the order of their sampling, without the
        shuffle of TRL.
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
        scored = rewards.computed_rewards(trainer) if exact else ()
        for one in scored:
            if any(own := one.tokens([*prompts.values()])) and own != [*tokens.values()]:
                raise ConfigurationError(f"expected {one.__name__} with the trainer's tokenizer, got other tokens")

        def prompts_of(rows: Any) -> list[list[int]]:
            return [tokens[repr(row["prompt"])] for row in rows]

        known: dict[str, Callable[[Any], Tensor]] = {
            "prompt_ids": lambda rows: rewards.filled(prompts_of(rows), prompt, padding, left=True),
            "prompt_mask": lambda rows: rewards.filled([[1] * len(n) for n in prompts_of(rows)], prompt, left=True),
            **{f"{_REWARD}{n}": partial(_read, one, completion) for n, one in enumerate(scored) if one.column},
        }
        columns = RecordedColumns(
            data={}, dtypes=dtypes | {WEIGHT: torch.float32}, constants={}, factor=1.0,
            smallest=tuple((i, i) for i in range(a)),
        )  # fmt: skip
        found = cls(
            example=Recording(inputs=made, items=[None] * a, counts=[a] * a), columns=columns, widths=widths,
            padding=padding, period=lcm(every, a) // a,
            known={name: _in_order(trainer, inputs, of_rows, shuffled=not exact) for name, of_rows in known.items()},
            reward_funcs=scored, state=rewards.RolloutState(scored, a) if exact else None,
        )  # fmt: skip
        if exact:
            found.known[rewards.NUMBER] = torch.arange(len(inputs), dtype=torch.int32) % a
        columns.dtypes.update(dict.fromkeys(found.known, torch.int64))
        columns.data.update({name: tensor[:a] for name, tensor in found.known.items()} | found.late(made))
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

    @property
    def derived(self) -> set[str]:
        """The columns that a step computes although TRL gives them to its loss."""
        if self.state is None:
            return set()
        counted = {rewards.COUNT} if self.state.parts == 1 else set()
        return counted | ({OLD, rewards.ADVANTAGES} if self.reward_funcs else set())

    @contextmanager
    def attached(self, model: Any, device: torch.device) -> Iterator[None]:
        """Lets the model have the state of rollouts meanwhile, on the CPU; it is on a device afterwards."""
        if self.state is None:
            yield
            return
        model.add_module(rewards.ROLLOUTS, self.state.cpu())
        try:
            yield
        finally:
            del model._modules[rewards.ROLLOUTS]
            self.state.to(device)

    def referred(self, trainer: Any, model: Any, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The completions' log-probabilities by the reference, if the loss reads them."""
        return {REFERENCE: self._reference(trainer, model, given)} if self.refers else {}

    def _reference(self, trainer: Any, model: Any, given: Mapping[str, Tensor]) -> Tensor:
        """Log-probabilities by TRL's copy of the model, or by that without adapters."""
        frozen: Any = nullcontext()
        if trainer.ref_model is None:
            frozen = import_module("trl.trainer.utils").use_adapter(
                model, "ref" if "ref" in model.peft_config else None
            )
        with frozen:
            return _log_probabilities(trainer, trainer.ref_model or model, given)

    @torch.no_grad()
    def computed(self, trainer: Any, model: Any, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The columns that a step computes of a micro-batch before its loss. Writes to the state of rollouts."""
        found, example, penalty = self.referred(trainer, model, given), self.example.inputs[0], None
        if self.state is None:
            return found
        if rewards.COUNT in self.derived & example.keys():
            found[rewards.COUNT] = given["completion_mask"].sum()
        elif rewards.COUNT in example:  # judged with the rollouts
            model.rollouts_sampled.copy_(torch.minimum(model.rollouts_sampled, self.state.counts(given).float()))
        if OLD in self.derived & example.keys():  # of RLOO, whose rewards have the KL term
            said, mask = _log_probabilities(trainer, model, given), given["completion_mask"]
            found[OLD] = (said * mask).sum(1)
            if trainer.beta:
                penalty = trainer.beta * ((said - self._reference(trainer, model, given)) * mask).sum(1)
        if self.reward_funcs:
            own = [given.get(f"{_REWARD}{n}", torch.zeros(0)) for n in range(len(self.reward_funcs))]
            scores = torch.stack([one.scores(given, read) for one, read in zip(self.reward_funcs, own, strict=True)], 1)
            found[rewards.ADVANTAGES] = rewards.advantages(trainer, scores, penalty)
            self.state.note(given, scores)
        return found

    def late(self, batches: Sequence[Mapping[str, Tensor]], first: int = -1) -> dict[str, Tensor]:
        """The micro-batches of a step in its form. Raises `ConfigurationError` for others, or with other prompts.

        first: the number of the first one in the job, from 0, for one whose prompts are compared.
        """
        names = [name for name in self.example.inputs[0] if name != REFERENCE]
        found = {name: torch.stack([self._padded(name, batch[name]) for batch in batches]) for name in names}
        for name in () if first < 0 else sorted(found.keys() & self.known.keys()):
            if not torch.equal(found[name], self.known[name][first : first + len(batches)].long()):
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


def _log_probabilities(trainer: Any, model: Any, given: Mapping[str, Tensor]) -> Tensor:
    """Log-probabilities of completions' tokens, f32 (rows, tokens), as TRL computes them."""
    ids, mask = (torch.cat([given[f"prompt_{n}"], given[f"completion_{n}"]], 1) for n in ("ids", "mask"))
    found: Tensor = trainer._get_per_token_logps_and_entropies(model, ids, mask, given["completion_ids"].shape[1])[0]
    return found


def _read(reward: rewards.ComputedReward, width: int, rows: Sequence[Mapping[str, Any]]) -> Tensor:
    return reward.read([rewards.values_of(row, str(reward.column)) for row in rows], width)


def _in_order(
    trainer: Any, inputs: Sequence[Any], of_rows: Callable[[Any], Tensor], *, shuffled: bool
) -> Tensor:  # fmt: skip
    """The part of each micro-batch in the rows for which the trainer samples together."""
    parts, found = trainer.args.steps_per_generation, list[Tensor]()
    every = parts * trainer.num_iterations
    for start in range(0, len(inputs), every):
        made = of_rows(inputs[start])
        if shuffled:
            with replaced(trainer, _step=start), seeded(trainer):
                made = shuffling(trainer).shuffle_sequence_dict({"made": made})["made"]
        narrow = made.to(torch.int32) if int(made.abs().max()) < 1 << 31 else made
        chunks = narrow.reshape(parts, -1, *narrow.shape[1:])
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

    def score(inputs: Any, *_: Any) -> Tensor:
        return torch.rand(len(inputs), len(trainer.reward_funcs), device=trainer.args.device)

    reports = {n: copy.deepcopy(vars(trainer)[n]) for n in ("_metrics", "_logs") if n in vars(trainer)}
    modes, made = [(module, module.training) for module in trainer.model.modules()], list[dict[str, Any]]()
    trainer.model.train()
    with (
        seeded(trainer),
        replaced(
            trainer, _calculate_rewards=score, state=copy.copy(trainer.state), _step=0, _buffered_inputs=None,
            **reports,
        ),
        replaced(trainer.model, generate=generate),
    ):  # fmt: skip
        for trainer._step in range(count):
            made.append({n: v.cpu() if isinstance(v, Tensor) else v for n, v in trainer._prepare_inputs(batch).items()})
    for module, mode in modes:
        module.training = mode
    return made
