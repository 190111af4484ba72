"""Rollouts that have to be the model's samples: the step's program checks each of their tokens.

A token of a completion is the first of the greatest logits / temperature + noise, as in
`tiebreak.api.evaluation.generation`, with the noise of the step's own draws. The state has an entry that is 1 as long
as all rollouts of all steps were so, and 0 from the first one on that was not: another token, or a completion that ends
too early or too late. From that step on the recorded loss is NaN; gradients are those of the loss. A job that demands
finite losses takes the trainer's stake for it.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any, Final, NoReturn

import torch
import torch.nn.functional as F
from torch import Tensor

from tiebreak.api.evaluation.generation import drafts, noise_of, sampled, settled
from tiebreak.api.huggingface.recording import record
from tiebreak.api.huggingface.refusals import samples
from tiebreak.api.huggingface.rollouts import OLD, Rollouts, seeded, shuffling
from tiebreak.api.machine import Machine
from tiebreak.api.machine.interpreters import make_interpreter
from tiebreak.api.training import reading
from tiebreak.api.training.runs import Run
from tiebreak.engine.capture.state import MODEL
from tiebreak.engine.capture.step_run import replaced
from tiebreak.engine.data.mapped import stored
from tiebreak.engine.data.tensors import from_bytes
from tiebreak.engine.dtypes import TORCH_DTYPES
from tiebreak.engine.logged.committed import CommittedLogs
from tiebreak.engine.logged.files import LogFiles
from tiebreak.engine.run import schedule
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.protocol.errors import ConfigurationError, VerificationError
from tiebreak.protocol.numbers.philox import shuffle
from tiebreak.protocol.program.isa import Opcode, ReduceFunction

RUN: Final = "run"
"""The folder of the run in the trainer's `output_dir`."""
SAMPLED: Final = reading.SAMPLED.removeprefix(MODEL)
"""The buffer with 1 or 0."""
_PLAIN: Final = {"min_p": (None, 0.0), "repetition_penalty": (1.0, None)}
"""Settings of the sampler that have to be as they are by default."""
_DECLARED: Final = ("old_per_token_logps", OLD)
"""Log-probabilities of the model that sampled; by sequence, of RLOO."""
_CLOSE: Final = 1e-4


class _Seen(Exception):
    """Ends a step when all that was wanted of it is there."""


def check(trainer: Any) -> None:
    """Raises `ConfigurationError` for a trainer whose rollouts are not the plain samples of each step's weights."""
    args, wrong = trainer.args, list[str]()
    if args.steps_per_generation != args.gradient_accumulation_steps or trainer.num_iterations != 1:
        wrong.append("steps_per_generation = gradient_accumulation_steps and num_iterations = 1")
    wrong += [f"{name} = {kept[0]}" for name, kept in _PLAIN.items() if getattr(args, name, kept[0]) not in kept]
    if not 0 < _left_out(trainer)[1] <= 1:
        wrong.append("0 < top_p <= 1")
    if getattr(trainer, "mask_truncated_completions", False):
        wrong.append("mask_truncated_completions = False")
    if getattr(args, "generation_kwargs", None):
        wrong.append("no generation_kwargs")
    if wrong:
        raise ConfigurationError(
            f"expected a trainer with {', '.join(wrong)}, whose tokens a step can check, got others"
        )


@contextmanager
def marked(trainer: Any) -> Iterator[Callable[[Any, Mapping[str, Tensor]], Tensor]]:
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


def judge(trainer: Any) -> Callable[[Any, Mapping[str, Tensor]], Tensor]:
    """The part of a step that checks a micro-batch, to be captured with its loss: whether all so far are samples."""
    end = _ends(trainer)

    def judged(model: Any, given: Mapping[str, Tensor]) -> Tensor:
        ids, mask = (torch.cat([given[f"prompt_{n}"], given[f"completion_{n}"]], 1) for n in ("ids", "mask"))
        said, asked = given["completion_ids"], given["completion_mask"] == 1
        logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits[:, -said.shape[1] - 1 : -1]
        found = sampled(logits.float(), trainer.temperature, *_left_out(trainer))
        follows, is_end = F.pad(asked[:, 1:], (0, 1)), torch.zeros_like(asked)
        for token in end:
            is_end = is_end | (said == token)
        is_full = torch.arange(said.shape[1]) == said.shape[1] - 1
        ends = torch.where(asked & ~follows, is_end | is_full, torch.where(asked, ~is_end, ~follows))
        allowed = torch.where(asked, found == said, given["completion_mask"] == 0)
        right = (allowed & ends).all() & asked[:, 0].all()
        so_far = torch.minimum(model.rollouts_sampled, right.float())
        model.rollouts_sampled.copy_(so_far)
        return so_far > 0

    return judged


def _left_out(trainer: Any) -> tuple[int, float]:
    """The trainer's top_k and top_p."""
    return trainer.args.top_k or 0, 1.0 if trainer.args.top_p is None else trainer.args.top_p


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
                settings = self._trainer.temperature, self._end, *_left_out(self._trainer)
                return drafts(self._trainer.model, tokens, rooms, noise, *settings)

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
        ids, mask = (late[f"completion_{kind}"].flatten(0, 1) for kind in ("ids", "mask"))
        ids.fill_(self._rollouts.padding)
        for row, (prompt, tokens) in enumerate(zip(prompts, rows, strict=True)):
            own = tokens[len(prompt) :]
            ids[row, : len(own)], mask[row, : len(own)] = torch.tensor(own, dtype=torch.int64), 1
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
    in_order = replaced(shuffling(trainer), shuffle_sequence_dict=lambda given: given)
    with in_order, replaced(trainer.model, generate=generate):
        yield


def check_rewards(trainer: Any, run: str | Path | None = None) -> int:
    """Computes the rewards of a run again, and all that follows from them. Returns the number of steps.

    Calls the reward functions of the trainer on what the run's logs have, and compares prompts, masks and counts with
    what was published, and advantages to 1e-4, since devices round their means in their own ways. Log-probabilities of
    the sampling model stay as declared. So it is for whoever trusts this code, and rewards that depend on more than
    their arguments differ. Steps at the end are left out if the run did not use all of their rollouts.

    trainer: made as the one that trained; it is not trained. run: the run's folder [default: that in its `output_dir`].

    Raises `VerificationError` that names the first step, entry and row that differ, `CannotCheck` if logs are missing.
    """
    opened = RunDirectory.open(Path(run or Path(str(trainer.args.output_dir), RUN)))
    recording, args, state = record(trainer, trainer.get_train_dataloader()), trainer.args, copy.copy(trainer.state)
    is_exact = MODEL + SAMPLED in opened.program.state_spec()
    rollouts = Rollouts.of(trainer, recording, exact=is_exact)
    published = _Published(opened, rollouts, trainer)
    a, recorded = int(args.gradient_accumulation_steps), opened.recorded()
    buffered, steps = args.steps_per_generation, opened.job.last_step(recorded - 1) if recorded else 0
    trainer.model.train()
    trainer._buffered_inputs = None
    with (
        _generating(trainer, published.generate) if is_exact else replaced(trainer.model, generate=published.generate),
        replaced(trainer, state=state, _get_per_token_logps_and_entropies=published.log_probabilities(trainer)),
    ):
        for number in range(steps * a):
            trainer._step, state.global_step = number, number // a
            with seeded(trainer):
                if number % (buffered * trainer.num_iterations) == 0:
                    if number + buffered > steps * a:
                        return number // a
                    published.take(range(number, number + buffered), shuffling(trainer).shuffle_sequence_dict)
                made = rollouts.late([trainer._prepare_inputs(recording.inputs[number])])
            published.compare(number, {name: tensor[0] for name, tensor in made.items()})
    return steps


class _Published:
    """The rollouts that a run's logs have, as its trainer had them before it put them in another order."""

    def __init__(self, run: RunDirectory, rollouts: Rollouts, trainer: Any) -> None:
        """Raises `ConfigurationError` for a trainer with rollouts of another form, `VerificationError` for prompts."""
        self._spec, logs, data = run.program.late_spec(), CommittedLogs(LogFiles(run), run.record_at), run.data()
        self._a = self._spec["completion_ids"][1][0]
        own = {name: stored(tensor) for name, tensor in rollouts.data(int(data["seed"])).items()}
        shapes = {name: data[name].shape for name in own if name in data}
        for name, shape in [*shapes.items(), *((name, shape) for name, (_, shape) in self._spec.items())]:
            example = own.get(name, rollouts.columns.data.get(name))
            if example is None or example.shape != shape:
                got = "none" if example is None else [*example.shape]
                raise ConfigurationError(f"expected a trainer with {name} of {[*shape]}, got {got}")
        for name in shapes:
            for number in range(len(own[name])):
                place = shuffle(number, int(data["seed"]), 0, len(own[name]), 0)
                if not own[name][place].equal(data[name][place]):
                    self._refuse(number, name, "that of the trainer's data set", "another in the data of the run")

        @lru_cache(maxsize=rollouts.period + 1)
        def step(number: int) -> dict[str, Tensor]:
            given = logs.step_log(number).late
            return {name: from_bytes(given[name], *kind) for name, kind in self._spec.items()}

        self._step, self._taken = step, dict[str, Tensor]()
        self._tokens = trainer.model.config.get_text_config().vocab_size

    def _refuse(self, number: int, name: str, expected: object, got: object) -> NoReturn:
        where = f"step {number // self._a + 1}, {name} in micro-batch {number % self._a + 1}"
        raise VerificationError(f"{where}: expected {expected}, got {got}")

    def _late(self, number: int) -> dict[str, Tensor]:
        """A micro-batch, numbered from 0 over all steps."""
        return {name: tensor[number % self._a] for name, tensor in self._step(number // self._a + 1).items()}

    def take(self, numbers: range, shuffle: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> None:
        """Puts the rollouts of these micro-batches, which were sampled at once, in the order of that."""
        used = [self._late(number) for number in numbers]
        rows = {n: torch.cat([one[n] for one in used]) for n in ("completion_ids", OLD) if n in self._spec}
        for number, one in zip(numbers, used, strict=True):  # a tokenizer may not bear others
            least, most = (int(value) for value in one["completion_ids"].aminmax())
            if least < 0 or most >= self._tokens:
                self._refuse(number, "completion_ids", f"tokens from 0 to {self._tokens - 1}", f"{least} to {most}")
        order = shuffle({"order": torch.arange(len(rows["completion_ids"]))})["order"].argsort()
        self._taken = {name: tensor[order] for name, tensor in rows.items()}

    def generate(self, input_ids: Tensor, **_: Any) -> Tensor:
        """Stands in for `generate` of the model."""
        return torch.cat([input_ids, self._taken["completion_ids"].to(input_ids.device)], 1)

    def log_probabilities(self, trainer: Any) -> Callable[..., Any]:
        """A stand-in for that of TRL: declared ones of the sampling model, computed ones of the reference."""
        plain = trainer._get_per_token_logps_and_entropies

        def found(model: Any, ids: Tensor, mask: Tensor, count: int, *rest: Any, **more: Any) -> Any:
            if OLD in self._spec and OLD not in self._taken:
                return plain(model, ids, mask, count, *rest, **more)
            sums = self._taken.pop(OLD, torch.zeros(len(ids))).to(ids.device)
            return F.pad(sums[:, None], (0, count - 1)), None, None

        return found

    def compare(self, number: int, made: Mapping[str, Tensor]) -> None:
        """Raises `VerificationError` unless a micro-batch is the one that was published."""
        for name, published in self._late(number).items():
            close = _CLOSE if name == "advantages" else 0.0
            is_near = torch.isclose(made[name], published, close, close, equal_nan=close > 0)
            if name not in _DECLARED and not is_near.all():
                row = (~is_near).nonzero()[0, :1].tolist()  # a count has none
                values = (tensor[(*row,)].tolist() for tensor in (made[name], published))
                self._refuse(number, "".join([name, *(f" of row {n}" for n in row)]), *values)
