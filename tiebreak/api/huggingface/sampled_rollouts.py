"""Rollouts that have to be the model's samples: the step's program checks each of their tokens.

A token of a completion is the first of the greatest logits / temperature + noise, as in
`tiebreak.api.evaluation.generation`, with the noise of the step's own draws. The state has an entry that is 1 as long
as all rollouts of all steps were so, and 0 from the first one on that was not: another token, or a completion that ends
too early or too late.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from math import prod
from pathlib import Path
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor

from tiebreak.api.evaluation.generation import drafts, noise_of, sampled, settled
from tiebreak.api.huggingface.recording import record
from tiebreak.api.huggingface.refusals import samples
from tiebreak.api.huggingface.rollouts import Rollouts, seeded
from tiebreak.api.machine import Machine
from tiebreak.api.machine.interpreters import make_interpreter
from tiebreak.api.training.runs import Run
from tiebreak.engine.capture.state import MODEL
from tiebreak.engine.capture.step_run import replaced
from tiebreak.engine.data.tensors import from_bytes
from tiebreak.engine.dtypes import TORCH_DTYPES
from tiebreak.engine.logged.committed import CommittedLogs
from tiebreak.engine.logged.files import LogFiles
from tiebreak.engine.run import schedule
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.protocol.errors import ConfigurationError, VerificationError
from tiebreak.protocol.program.isa import Opcode, ReduceFunction

RUN: Final = "run"
"""The folder of the run in the trainer's `output_dir`."""
SAMPLED: Final = "rollouts_sampled"
"""The buffer with 1 or 0."""
_PLAIN: Final = {"top_p": (1.0, None), "top_k": (0, None), "min_p": (None, 0.0), "repetition_penalty": (1.0, None)}
"""Settings of the sampler that have to be as they are by default."""


class _Seen(Exception):
    """Ends a step when all that was wanted of it is there."""


def check(trainer: Any) -> None:
    """Raises `ConfigurationError` for a trainer whose rollouts are not the plain samples of each step's weights."""
    args, wrong = trainer.args, list[str]()
    if args.steps_per_generation != args.gradient_accumulation_steps or trainer.num_iterations != 1:
        wrong.append("steps_per_generation = gradient_accumulation_steps and num_iterations = 1")
    wrong += [f"{name} = {kept[0]}" for name, kept in _PLAIN.items() if getattr(args, name, kept[0]) not in kept]
    if getattr(trainer, "mask_truncated_completions", False):
        wrong.append("mask_truncated_completions = False")
    if getattr(args, "generation_kwargs", None):
        wrong.append("no generation_kwargs")
    if wrong:
        raise ConfigurationError(
            f"expected a trainer with {', '.join(wrong)}, whose tokens a step can check, got others"
        )


@contextmanager
def marked(trainer: Any) -> Iterator[Callable[[Any, Mapping[str, Tensor]], None]]:
    """Gives the trainer's model the buffer meanwhile; files of its weights do not have it. Yields `judge(trainer)`."""
    if not samples(trainer):
        raise ConfigurationError("expected a trainer that samples (GRPO, RLOO) with exact_sampling, got another")
    check(trainer)
    model = trainer.model
    model.register_buffer(SAMPLED, torch.ones(()), persistent=False)
    try:
        yield judge(trainer)
    finally:
        del model._buffers[SAMPLED]
        model._non_persistent_buffers_set.discard(SAMPLED)


def judge(trainer: Any) -> Callable[[Any, Mapping[str, Tensor]], None]:
    """The part of a step that checks a micro-batch, to be captured with its loss."""
    end = _ends(trainer)

    def judged(model: Any, given: Mapping[str, Tensor]) -> None:
        ids, mask = (torch.cat([given[f"prompt_{n}"], given[f"completion_{n}"]], 1) for n in ("ids", "mask"))
        said, asked = given["completion_ids"], given["completion_mask"] == 1
        logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits[:, -said.shape[1] - 1 : -1]
        found = sampled(logits.float() / trainer.temperature, 1.0)
        follows, is_end = F.pad(asked[:, 1:], (0, 1)), torch.zeros_like(asked)
        for token in end:
            is_end = is_end | (said == token)
        is_full = torch.arange(said.shape[1]) == said.shape[1] - 1
        ends = torch.where(asked & ~follows, is_end | is_full, torch.where(asked, ~is_end, ~follows))
        right = (((found == said) | ~asked) & ends).all() & asked[:, 0].all()
        model.rollouts_sampled.copy_(torch.minimum(model.rollouts_sampled, right.float()))

    return judged


def _ends(trainer: Any) -> list[int]:
    found = getattr(trainer, "eos_token_ids", None) or trainer._tokenizer.eos_token_id
    return [found] if isinstance(found, int) else [*found]


class SampledRollouts:
    """Samples what the program of a run checks: stands in for `generate` of the trainer's model."""

    def __init__(self, trainer: Any, run: Run, rollouts: Rollouts, machine: Machine) -> None:
        opened = RunDirectory.open(run.directory)
        self._trainer, self._rollouts, self._end = trainer, rollouts, _ends(trainer)
        self._spec, self._late, body = opened.program.state_spec(), opened.program.late_spec(), opened.program.body
        self._interpreter = make_interpreter(opened.program, machine, opened.job)
        self._data = self._interpreter.place_data(opened.data())
        self._seed, self._size = int(opened.data()["seed"]), trainer.args.per_device_train_batch_size
        self._draws = [i for i in body if i.opcode == Opcode.RANDOM]
        count = self._size * trainer.max_completion_length
        self._found = [
            n for n, i in enumerate(body)
            if (i.opcode, i.function) == (Opcode.REDUCE, ReduceFunction.ARGMAX) and i.numel == count
        ]  # fmt: skip
        a = trainer.args.gradient_accumulation_steps
        if not len(self._draws) == len(self._found) == a or prod(self._draws[0].shape) % count:
            got = f"{len(self._draws)} draws and {len(self._found)} choices"
            raise ConfigurationError(f"expected a model that draws nothing in {a} micro-batches, got {got} (dropout?)")
        self._interpreter.in_order = schedule.in_order(opened.program, self._found)
        self._vocabulary = self._draws[0].numel // count
        self.drafted = self.corrected = 0

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Lets the trainer sample with this."""
        self._generate = self._trainer.model.generate
        with _generating(self._trainer, self.generate):
            yield

    def generate(self, input_ids: Tensor, attention_mask: Tensor, **given: Any) -> Tensor:
        """Prompts with their completions, i64, of prompts that are filled on the left."""
        if not self._trainer.model.training:  # an evaluation
            made: Tensor = self._generate(input_ids=input_ids, attention_mask=attention_mask, **given)
            return made
        number, length = self._trainer.state.global_step, self._trainer.max_completion_length
        prompts = [ids[mask.bool()].tolist() for ids, mask in zip(input_ids.cpu(), attention_mask.cpu(), strict=True)]

        def draft(which: Sequence[int], tokens: Sequence[list[int]]) -> list[list[int]]:
            begun = [len(one) - len(prompts[row]) for row, one in zip(which, tokens, strict=True)]
            rooms = [length - one for one in begun]

            def noise(row: int, at: int) -> Tensor:
                part, place = divmod(which[row], self._size)
                first = (place * length + begun[row] + at) * self._vocabulary
                return noise_of(self._draws[part], first, self._vocabulary, self._seed, number)

            with replaced(self._trainer.model, generate=self._generate):
                return drafts(self._trainer.model, tokens, rooms, noise, self._trainer.temperature, self._end)

        state, modes = self._state(), [(module, module.training) for module in self._trainer.model.modules()]
        self._trainer.model.eval()
        answers, mended = settled(
            prompts, length, self._end, draft, lambda rows: self._exact(number, state, prompts, rows)
        )
        for module, mode in modes:
            module.training = mode
        self.drafted, self.corrected = self.drafted + sum(map(len, answers)), self.corrected + mended
        filled = [[*own, *[self._rollouts.padding] * (length - len(own))] for own in answers]
        return torch.cat([input_ids, torch.tensor(filled, device=input_ids.device)], 1)

    def _state(self) -> dict[str, Tensor]:
        """The state before a step, as far as sampling reads it; anything for the rest."""
        model = self._trainer.model
        own = {MODEL + name: tensor.detach() for name, tensor in (*model.named_parameters(), *model.named_buffers())}
        state = {name: torch.empty(shape, dtype=TORCH_DTYPES[dtype]) for name, (dtype, shape) in self._spec.items()}
        state |= {name: tensor.to(state[name].dtype) for name, tensor in own.items() if name in state}
        return self._interpreter.to_device(state)

    def _exact(
        self, number: int, state: Mapping[str, Tensor], prompts: Sequence[list[int]], rows: Sequence[list[int]]
    ) -> list[list[int]]:  # fmt: skip
        """The token that the program samples after each token of all rows, from the last one of the prompt on."""
        late = {name: torch.zeros(shape, dtype=TORCH_DTYPES[dtype]) for name, (dtype, shape) in self._late.items()}
        for name, width in (("prompt", self._rollouts.widths["prompt_ids"]), ("completion", 0)):
            ids, mask = (late[f"{name}_{kind}"].flatten(0, 1) for kind in ("ids", "mask"))
            ids.fill_(self._rollouts.padding)
            for row, (prompt, tokens) in enumerate(zip(prompts, rows, strict=True)):
                own = tokens[len(prompt) :] if not width else prompt
                at = width - len(own) if width else 0
                ids[row, at : at + len(own)], mask[row, at : at + len(own)] = torch.tensor(own, dtype=torch.int64), 1
        found = dict[int, Tensor]()

        def observe(leaf: int, tensor: Tensor) -> Tensor:
            if leaf in self._found:
                found[leaf] = tensor.cpu()
                if len(found) == len(self._found):
                    raise _Seen
            return tensor

        try:
            placed = self._interpreter.to_device(late)
            self._interpreter.step(number + 1, dict(state), {**self._data, **placed}, observe, check_finite=False)
        except _Seen:
            pass
        said: list[list[int]] = torch.cat([found[n].reshape(self._size, -1) for n in self._found]).tolist()
        return [[-1] * (len(prompt) - 1) + own for prompt, own in zip(prompts, said, strict=True)]


@contextmanager
def _generating(trainer: Any, generate: Callable[..., Tensor]) -> Iterator[None]:
    """Lets a trainer sample with a function, and use the rollouts in the order in which they were sampled."""
    modules = [import_module(kind.__module__) for kind in type(trainer).__mro__]
    shuffling = next(module for module in modules if hasattr(module, "shuffle_sequence_dict"))
    with replaced(shuffling, shuffle_sequence_dict=lambda given: given), replaced(trainer.model, generate=generate):
        yield


def check_rewards(trainer: Any) -> int:
    """Computes the rewards of a run with `exact_sampling` again, and all that follows from them. Returns its steps.

    Calls the reward functions of the trainer on what the run's logs have, and compares prompts, masks and advantages
    with what was published, bit by bit. So it is for whoever trusts this code, and rewards that depend on more than
    their arguments differ. trainer: made as the one that trained, with the run in its `output_dir`; it is not trained.

    Raises `VerificationError` that names the first step and entry that differ, `CannotCheck` if logs are missing.
    """
    opened = RunDirectory.open(Path(str(trainer.args.output_dir), RUN))
    if MODEL + SAMPLED not in opened.program.state_spec():
        raise ConfigurationError("expected a run with exact_sampling, whose rollouts are in order, got another")
    recording, spec, a = record(trainer), opened.program.late_spec(), trainer.args.gradient_accumulation_steps
    rollouts, steps = Rollouts.of(trainer, recording), opened.last_complete()
    logs = CommittedLogs(LogFiles(opened), opened.record_at)
    late = dict[str, Tensor]()

    def published(input_ids: Tensor, **_: Any) -> Tensor:
        return torch.cat([input_ids, late["completion_ids"].flatten(0, 1).to(input_ids.device)], 1)

    trainer.model.train()
    trainer._buffered_inputs = None
    with _generating(trainer, published):
        for number in range(1, steps + 1):
            given = logs.step_log(number).late
            late |= {name: from_bytes(given[name], *spec[name]) for name in spec}
            made = []
            for trainer._step in range((number - 1) * a, number * a):
                with seeded(trainer):
                    made.append(trainer._prepare_inputs(recording.inputs[trainer._step]))
            for name, tensor in rollouts.late(made).items():
                if name in late and not torch.equal(tensor, late[name]):
                    part, *row = at = tuple((tensor != late[name]).nonzero()[0, :2].tolist())  # no row in a count
                    where = f"{name}{''.join(f' of row {n}' for n in row)} in micro-batch {part + 1}"
                    raise VerificationError(
                        f"step {number}, {where}: expected {tensor[at].tolist()}, got {late[name][at].tolist()}"
                    )
    return steps
