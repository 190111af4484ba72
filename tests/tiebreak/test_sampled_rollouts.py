"""Rollouts that a step's program checks: the same for whoever drafts, and no others pass."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from trl import RLOOTrainer

import tiebreak
from tests.conftest import CaseCounter
from tests.engine.processes import printed
from tests.parts import slow_except
from tests.tiebreak.hf_cases import VOCABULARY, Interrupts, llama
from tests.tiebreak.hf_scripts import lora
from tests.tiebreak.test_grpo import made, prompts, tiny
from tiebreak import ConfigurationError
from tiebreak.api.huggingface import hf_training, sampled_rollouts, trainer_loop
from tiebreak.api.huggingface.sampled_rollouts import SAMPLED, SampledRollouts
from tiebreak.api.training import runs
from tiebreak.engine.capture.state import MODEL
from tiebreak.engine.capture.step_run import replaced
from tiebreak.engine.logged.committed import CommittedLogs
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.engine.run.interpreter import NotFiniteError
from tiebreak.protocol.errors import VerificationError

STEPS = 3


def trainer(folder: Path, **more: Any) -> Any:
    given = {"max_steps": STEPS, "gradient_accumulation_steps": 2, "save_strategy": "no", "temperature": 0.8, **more}
    return made(folder, **{"model": tiny, **given})


def trained(folder: Path, check: str = "none", **more: Any) -> tuple[tiebreak.Run, float]:
    """The run, and what its last state says of all rollouts."""
    tiebreak.hf.train(trainer(folder, **more), exact_sampling=True, check=check)
    run = tiebreak.open_run(folder / "run")
    return run, float(RunDirectory.open(run.directory).state(run.steps)[MODEL + SAMPLED])


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> tiebreak.Run:
    run, sampled = trained(tmp_path_factory.mktemp("honest") / "run")
    assert sampled == 1.0
    return run


@pytest.mark.slow
def test_a_run_says_that_its_rollouts_are_the_models_samples(honest: tiebreak.Run) -> None:
    assert honest.audit().agrees
    opened = RunDirectory.open(honest.directory)
    assert MODEL + SAMPLED in opened.program.state_spec()
    assert SAMPLED not in honest.state_dict(), "files of weights do not have it"


PLAIN = sampled_rollouts.drafts


def narrow(model: Any, rows: Any, *rest: Any) -> list[list[int]]:
    with torch.autocast("cpu", torch.bfloat16):
        return PLAIN(model, rows, *rest)


def other(model: Any, rows: Any, *rest: Any) -> list[list[int]]:
    """Drafts that have nothing to do with the weights."""
    made_up = PLAIN(model, rows, *rest)
    return [own + [3 + token % 50 for token in new[len(own) :]] for own, new in zip(rows, made_up, strict=True)]


@pytest.mark.slow
@pytest.mark.parametrize("drafts", [narrow, other])
def test_whoever_drafts_reaches_the_same_root(honest: tiebreak.Run, tmp_path: Path, drafts: Any) -> None:
    samplers = list[SampledRollouts]()

    class Kept(SampledRollouts):
        def __init__(self, *rest: Any) -> None:
            super().__init__(*rest)
            samplers.append(self)

    with replaced(sampled_rollouts, drafts=drafts), replaced(hf_training, SampledRollouts=Kept):
        run, sampled = trained(tmp_path / "run")
    assert sampled == 1.0
    assert run.root == honest.root
    (sampler,) = samplers
    assert STEPS * 8 * 6 >= sampler.drafted > STEPS * 8 * 2
    assert drafts is narrow or sampler.corrected > sampler.drafted / 2


SETTINGS: dict[str, dict[str, Any]] = {
    "LoRA, KL": {"adapter": lora(), "model": llama, "beta": 0.1}, "RLOO": {"kind": RLOOTrainer}, "KL": {"beta": 0.1},
    "one token": {"gradient_accumulation_steps": 1, "max_completion_length": 1},
    "hot": {"loss_type": "dr_grpo", "temperature": 2.0}, "top-k, top-p": {"top_k": 5, "top_p": 0.8},
    "RLOO, top-p": {"kind": RLOOTrainer, "top_p": 0.6, "temperature": 1.5},
}  # fmt: skip


@pytest.mark.parametrize("name", slow_except(SETTINGS, nightly=("KL", "hot", "RLOO, top-p")))
def test_all_settings_sample_what_their_steps_check(tmp_path: Path, name: str) -> None:
    run, sampled = trained(tmp_path / "run", check="full", **SETTINGS[name])
    assert sampled == 1.0
    assert run.audit().agrees


@pytest.mark.slow
def test_whoever_drafts_among_candidates_reaches_the_same_root(tmp_path: Path) -> None:
    roots = set[str]()
    for drafts in (narrow, other):
        with replaced(sampled_rollouts, drafts=drafts):
            settings = {"top_k": 6, "top_p": 0.7, "temperature": 1.5, "gradient_accumulation_steps": 1}
            run, sampled = trained(tmp_path / drafts.__name__, **settings)
        assert sampled == 1.0
        roots.add(run.root)
    assert len(roots) == 1


@pytest.mark.slow
def test_an_interrupted_run_samples_the_same(honest: tiebreak.Run, tmp_path: Path) -> None:
    stopping = trainer(tmp_path / "run", callbacks=[Interrupts(2)])
    with pytest.raises(KeyboardInterrupt):
        tiebreak.hf.train(stopping, exact_sampling=True, check="none")
    run, sampled = trained(tmp_path / "run")
    assert (run.root, sampled) == (honest.root, 1.0)


Rows = Mapping[str, Tensor]


def token(late: Rows) -> None:
    late["completion_ids"][0, 1, 2] = (late["completion_ids"][0, 1, 2] + 1) % VOCABULARY


def cut(late: Rows) -> None:
    """A completion ends before it has to."""
    late["completion_mask"][0, 0, 3:] = 0


def cut_at_the_front(late: Rows) -> None:
    late["completion_mask"][1, 0, :1] = 0


def none_at_all(late: Rows) -> None:
    late["completion_mask"][1, 2] = 0


def swapped(late: Rows) -> None:
    """The best of many is put in another place."""
    late["completion_ids"][0, :2] = late["completion_ids"][0, :2].flip(0).clone()


@contextmanager
def lying(lie: Callable[[Rows], None], at: int = 2) -> Iterator[None]:
    """The trainer publishes other rollouts than it has sampled."""

    class Lying(trainer_loop._Sampling):
        def _next(self, number: int) -> float:
            if number == at:
                rows = self._rollouts.late(self._taken)
                lie(rows)
                self._taken = [{name: rows[name][part] for name in rows} for part in range(2)]
            return super()._next(number)

    with replaced(trainer_loop, _Sampling=Lying):
        yield


@contextmanager
def stubborn() -> Iterator[None]:
    """Python code of the package goes on whatever the loss is."""
    with replaced(runs, isfinite=lambda _: True), replaced(trainer_loop, check_loss=lambda *_: None):
        yield


@pytest.mark.slow
@pytest.mark.parametrize("lie", [token, cut, cut_at_the_front, none_at_all, swapped])
def test_other_rollouts_show_in_losses_and_state_for_good(tmp_path: Path, lie: Callable[[Rows], None]) -> None:
    """The run is as the program says, and it says that they are no samples."""
    with lying(lie), stubborn():
        run, sampled = trained(tmp_path / "run")
    assert sampled == 0.0
    assert [isfinite(loss) for loss in run.losses] == [True, False, False]
    assert all(tensor.isfinite().all() for tensor in run.state_dict().values())
    assert RunDirectory.open(run.directory).job.demands_finite_losses


@pytest.mark.slow
def test_a_false_rollout_changes_no_bit_of_gradients_and_weights(tmp_path: Path) -> None:
    def unmarked(held: Any) -> Callable[..., Tensor]:
        judged = plain(held)
        return lambda *given: torch.ones_like(judged(*given))

    plain, found = sampled_rollouts.judge, list[tiebreak.Run]()
    for name, judge in (("marked", plain), ("unmarked", unmarked)):
        with lying(token, at=1), stubborn(), replaced(sampled_rollouts, judge=judge):
            found.append(trained(tmp_path / name)[0])
    assert [isfinite(loss) for run in found for loss in run.losses] == [False] * STEPS + [True] * STEPS
    first, second = (RunDirectory.open(run.directory).state(STEPS) for run in found)
    assert [name for name in first if not first[name].equal(second[name])] == ["telemetry.loss"]
    assert first.keys() == second.keys() > {MODEL + SAMPLED}


@pytest.mark.slow
@pytest.mark.parametrize("at", [1, 2])
def test_the_package_stops_before_a_step_with_other_rollouts(tmp_path: Path, at: int) -> None:
    keys = tiebreak.new_key(), tiebreak.new_key()
    options = {"exact_sampling": True, "check": "none", "client": keys[0], "key": keys[1]}
    with lying(token, at), pytest.raises(NotFiniteError, match=rf"step {at}: (the |telemetry\.)loss is no longer"):
        tiebreak.hf.train(trainer(tmp_path / "run", save_strategy="steps", save_steps=1), **options)
    opened = RunDirectory.open(tmp_path / "run" / "run")
    assert [head.head.count for head in opened.heads()] == [*range(1, at)]
    assert tiebreak.open_run(opened.path).step == at - 1


@pytest.mark.slow
def test_the_first_loss_of_samples_is_compared_with_plain_pytorch(tmp_path: Path) -> None:
    def other_loss(held: Any, *rest: Any) -> Callable[..., Tensor]:
        loss = plain(held, *rest)
        return lambda model, **rows: loss(model, **rows) + 0.01

    plain = hf_training.objective
    with replaced(hf_training, objective=other_loss), pytest.raises(ConfigurationError, match="the loss of plain"):
        trained(tmp_path / "run")


@pytest.mark.slow
def test_rollouts_of_another_seed_are_no_samples(tmp_path: Path) -> None:
    plain = sampled_rollouts.noise_of

    def noise(drawing: Any, first: int, count: int, seed: int, number: int) -> Tensor:
        return plain(drawing, first, count, seed + 1, number)

    class Believing(SampledRollouts):
        """Takes a draft for what the program says."""

        def _exact(self, number: int, state: Any, prompts: Any, rows: Any) -> list[list[int]]:
            return [[*own[1:], 0] for own in rows]

    with (
        replaced(sampled_rollouts, noise_of=noise),
        replaced(hf_training, SampledRollouts=Believing),
        stubborn(),
    ):
        _, sampled = trained(tmp_path / "run")
    assert sampled == 0.0


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"num_iterations": 2}, "num_iterations = 1"), ({"steps_per_generation": 4}, "steps_per_generation = gradient"),
        ({"min_p": 0.1}, "min_p = None"), ({"repetition_penalty": 1.2}, "repetition_penalty = 1.0"),
        ({"mask_truncated_completions": True}, "mask_truncated_completions = False"),
    ],
)  # fmt: skip
def test_rollouts_that_no_step_can_check_are_refused_by_name(tmp_path: Path, more: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        trained(tmp_path / "run", **more)


def of_text(completions: list[str], **_: Any) -> list[float]:
    return [float(len(text)) for text in completions]


@pytest.mark.slow
def test_rewards_are_computed_again_and_others_are_named(
    honest: tiebreak.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    again = trainer(honest.directory.parent)
    weights = {name: tensor.clone() for name, tensor in again.model.state_dict().items()}
    assert tiebreak.hf.check_rewards(again) == STEPS
    assert all(tensor.equal(weights[name]) for name, tensor in again.model.state_dict().items())
    elsewhere = trainer(tmp_path / "elsewhere", reward=of_text)
    with pytest.raises(VerificationError, match=r"step 1, advantages of row \d in micro-batch \d: expected .*, got "):
        tiebreak.hf.check_rewards(elsewhere, honest.directory)
    with monkeypatch.context() as patch:  # a count of tokens, which has no rows
        own, none = CommittedLogs.step_log, {"num_items_in_batch": bytes(16)}
        patch.setattr(CommittedLogs, "step_log", lambda *a: replace(log := own(*a), late={**log.late, **none}))
        with pytest.raises(VerificationError, match=r"step 1, num_items_in_batch in micro-batch 1: expected .*, got 0"):
            tiebreak.hf.check_rewards(again)
        huge = {"completion_ids": torch.full([2, 4, 6], 1 << 40).numpy().tobytes()}
        patch.setattr(CommittedLogs, "step_log", lambda *a: replace(log := own(*a), late={**log.late, **huge}))
        with pytest.raises(
            VerificationError, match=r"step 1, completion_ids in micro-batch 1: expected tokens from 0 to"
        ):
            tiebreak.hf.check_rewards(again)
    others = trainer(honest.directory.parent, data=lambda: prompts().select(range(23, -1, -1)))
    with pytest.raises(
        (VerificationError, ConfigurationError), match=r"step 1, prompt_ids in micro-batch 1|with prompt_ids of"
    ):
        tiebreak.hf.check_rewards(others)
    with pytest.raises(ConfigurationError, match=r"a trainer with completion_ids of \[2, 4, 6\], got \[2, 4, 5\]"):
        tiebreak.hf.check_rewards(trainer(honest.directory.parent, max_completion_length=5))


BUFFERED: dict[str, tuple[dict[str, Any], int]] = {
    "two iterations": ({"num_iterations": 2, "steps_per_generation": 2, "beta": 0.1}, 6),
    "a step of several generations": ({"gradient_accumulation_steps": 4, "steps_per_generation": 2}, 6),
    "the last rollouts are not all used": ({"steps_per_generation": 4, "gradient_accumulation_steps": 1}, 4),
    "RLOO, KL in the reward": ({"kind": RLOOTrainer, "beta": 0.1, "steps_per_generation": 4}, 6),
    "RLOO, LoRA, truncated ones masked": (
        {"kind": RLOOTrainer, "adapter": lora(), "beta": 0.1, "model": llama, "mask_truncated_completions": True}, 6,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", slow_except(BUFFERED, nightly=("two iterations", "RLOO, KL in the reward")))
def test_rewards_of_buffered_rollouts_are_computed_again(tmp_path: Path, case: str) -> None:
    more, checked = BUFFERED[case]
    tiebreak.hf.train(trainer(tmp_path / "run", max_steps=6, **more), check="none")
    assert tiebreak.hf.check_rewards(trainer(tmp_path / "run", max_steps=6, **more)) == checked
    liar = trainer(tmp_path / "run", max_steps=6, reward=of_text, **more)
    with pytest.raises(VerificationError, match=r"step 1, advantages of row \d in micro-batch \d"):
        tiebreak.hf.check_rewards(liar)


@pytest.mark.slow
def test_declared_rewards_with_kl_of_the_weights_of_the_moment_are_computed_again(tmp_path: Path) -> None:
    """Of RLOO with exact sampling: the log-probabilities of the sampling model are published beside advantages."""
    more = {"kind": RLOOTrainer, "beta": 0.1, "max_steps": 2}
    trained(tmp_path / "run", **more)
    assert tiebreak.hf.check_rewards(trainer(tmp_path / "run", **more)) == 2


@pytest.mark.nightly
def test_a_killed_run_samples_and_commits_the_same(tmp_path: Path, cases: CaseCounter) -> None:
    """Killed twenty times at any moment, in the middle of a draft too."""
    found = json.loads(printed("-W", "ignore", "-m", "tests.tiebreak.sampling_kills", str(tmp_path), "20"))
    assert all(found["equal"])
    assert found["killed"]["drafting"] > 0
    cases(sum(found["killed"].values()))
