"""Answers with one answer: whoever samples, and however, gets the same tokens, and every other token is found."""

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.tiebreak import test_finetune
from tests.tiebreak.parties import PASSPHRASE, Commands, Once
from tiebreak import ConfigurationError
from tiebreak.api.certification.certificates import verify
from tiebreak.api.evaluation import evaluations, examples, generation
from tiebreak.api.evaluation.generation import ExactSampler, SampledAnswers
from tiebreak.api.machine import Machine
from tiebreak.api.training.scoring import METRICS, captured
from tiebreak.cli.options import PASSPHRASE_VARIABLE
from tiebreak.engine.run.loop import exact
from tiebreak.engine.run.loop import steps as loop
from tiebreak.protocol.errors import VerificationError
from tiebreak.protocol.numbers.philox import random_bits

PROMPTS = ["The weights are", "A stranger trains the model, and", "No"]


@pytest.fixture
def folder(once: Once, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(PASSPHRASE_VARIABLE, PASSPHRASE)
    return once("finetune", test_finetune.make)


def sampler(folder: Path, **more: Any) -> ExactSampler:
    model = evaluations.load(folder / "model").float()
    tokens = [[*test_finetune.tokenizer()(text)["input_ids"]] for text in PROMPTS]
    given = {"answers": 3, "length": 12, "temperature": 1.0, "seed": 5, "end": generation.ends_of(model)} | more
    return ExactSampler(model=model, prompts=tokens, **given)


class Garbled:
    """A model that drafts what has nothing to do with its weights."""

    def __init__(self, model: Any, change: Callable[[Tensor], Tensor]) -> None:
        self._model, self._change = model, change

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def eval(self) -> "Garbled":
        return self

    def generate(self, input_ids: Tensor, **given: Any) -> Tensor:
        made = self._model.generate(input_ids=input_ids, **given)
        new = made[:, input_ids.shape[1] :]
        return torch.cat([input_ids, self._change(new)], 1)


def drafting(made: ExactSampler, model: Any) -> SampledAnswers:
    made.model = model
    return made.run()


@pytest.mark.slow
def test_the_answers_are_the_same_whoever_drafts_them(folder: Path) -> None:
    made = sampler(folder)
    expected = made.run()
    assert (expected.corrected, expected.drafted) == (0, sum(len(one) for own in expected.tokens for one in own))
    assert len({tuple(one) for own in expected.tokens for one in own}) > 6, "seed and answer make a difference"
    narrow = drafting(made, evaluations.load(folder / "model"))  # bfloat16
    assert narrow.tokens == expected.tokens
    vocabulary = made.model.config.vocab_size
    wrong = drafting(made, Garbled(sampler(folder).model, lambda new: (new + 1) % vocabulary))
    assert wrong.tokens == expected.tokens
    assert wrong.corrected == wrong.drafted
    short = drafting(made, Garbled(sampler(folder).model, lambda new: new[:, :2]))
    assert short.tokens == expected.tokens
    assert sampler(folder, seed=6).run().tokens != expected.tokens


@pytest.mark.nightly
def test_answers_from_candidates_are_the_same_whoever_drafts_them(folder: Path) -> None:
    few = {"top_k": 9, "top_p": 0.6, "temperature": 1.5, "length": 8}
    made = sampler(folder, **few)
    expected = made.run()
    assert expected.corrected == 0
    assert expected.tokens != sampler(folder, **{**few, "top_p": 1.0}).run().tokens
    assert drafting(made, evaluations.load(folder / "model")).tokens == expected.tokens
    wrong = drafting(made, Garbled(sampler(folder).model, lambda new: (new + 1) % made.model.config.vocab_size))
    assert (wrong.tokens, wrong.corrected) == (expected.tokens, wrong.drafted)
    one, seven = (sampler(folder, **few, answers=count).run().tokens for count in (1, 7))
    for own, single, many in zip(expected.tokens, one, seven, strict=True):
        assert own[:1] == single
        assert own == many[:3]
    greedy = sampler(folder, **{**few, "top_k": 1}).run().tokens
    assert all(own == [own[0]] * 3 for own in greedy)


@pytest.mark.slow
def test_threads_orders_and_other_prompts_change_no_token(folder: Path) -> None:
    expected = sampler(folder).run().tokens
    assert sampler(folder, machine=Machine(threads=1, permute=11)).run().tokens == expected
    fewer = sampler(folder)
    fewer.prompts = fewer.prompts[:2]
    assert fewer.run().tokens == expected[:2]
    hot, cold = (sampler(folder, temperature=t).run().tokens for t in (4.0, 0.0))
    assert hot != expected
    assert all(own == [own[0]] * 3 for own in cold)


def test_the_noise_is_what_the_specification_says(folder: Path) -> None:
    made = sampler(folder)
    for number, answer, position in ((0, 0, 0), (2, 1, 7)):
        first = (answer * (made.width - 1) + position) * made.vocabulary
        drawing = next(i for i in made._bundle.program.body if i.opcode.name == "RANDOM")
        assert drawing.params.stream == 0
        bits = [random_bits(5, number, 0, first + token) for token in range(made.vocabulary)]
        u = torch.tensor(bits, dtype=torch.int64).to(torch.int32).view(torch.float32)
        noise = made.noise(number, answer, position)
        assert isinstance(noise, Tensor)
        torch.testing.assert_close(noise, -torch.log(-torch.log(u)))


def test_tokens_are_drawn_as_often_as_the_model_says() -> None:
    torch.manual_seed(1)
    logits = torch.tensor([2.0, 0.0, 1.0, -1.0, 0.5])
    for temperature in (0.5, 1.0, 2.0):
        drawn = torch.bincount(generation.sampled(logits.expand(40_000, 5), temperature), minlength=5) / 40_000
        torch.testing.assert_close(drawn, (logits / temperature).softmax(0), atol=0.01, rtol=0)
    assert generation.sampled(torch.tensor([1.0, 3.0, 3.0]), 0.0) == 1, "the first of equal ones"


def metric(model: Any, scored: Any) -> float:
    """The share of right answers, by the program."""
    bundle = captured(model, scored, 1)
    interpreter = generation.make_interpreter(bundle.program, Machine())
    state, data = interpreter.to_device(bundle.state), interpreter.place_data(bundle.data)
    for done in loop(interpreter, state, data, range(1, bundle.steps + 1), sums=exact):
        state = done.result.state
    return float(state[f"model.{METRICS}"][0])


@pytest.mark.slow
def test_each_other_token_is_found(folder: Path) -> None:
    made = sampler(folder, answers=2, length=5)
    right = made.run().tokens
    given = (made.width, 1.0, 5)
    assert metric(made.model, generation.answered(made.prompts, right, *given)) == 1.0
    for n, s, at in ((0, 0, 0), (1, 1, 2), (2, 0, 4)):
        wrong = json.loads(json.dumps(right))
        wrong[n][s][at] = (wrong[n][s][at] + 1) % 60
        assert metric(made.model, generation.answered(made.prompts, wrong, *given)) == pytest.approx(5 / 6)
    assert metric(made.model, generation.answered(made.prompts, right, made.width, 1.0, 4)) < 1.0


@pytest.mark.slow
def test_the_command_certifies_answers_that_strangers_check(folder: Path, tmp_path: Path, command: Commands) -> None:
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps({"prompt": text}) + "\n" for text in PROMPTS))
    options = ["--answers", 3, "--length", 12, "--seed", 5, "--json", "-o", tmp_path / "out"]
    told = json.loads(command("generate", folder / "model", tmp_path / "prompts.jsonl", *options))
    path, scores = tmp_path / "out" / "answers.jsonl", tmp_path / "out" / "scores"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["answer_tokens"] for row in rows] == sampler(folder).run().tokens
    assert ([row["prompt"] for row in rows], told["metrics"]) == (PROMPTS, {"sampled": 1.0})
    assert verify(scores, scores / "certificate.json", base=folder / "model")[0].is_evaluation
    against = ["--against", scores / "certificate.json"]
    command("evaluate", folder / "model", "--on", path, *against)
    rows[1]["answer_tokens"][0][3] = 9
    (tmp_path / "forged.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    said = command("evaluate", folder / "model", "--on", tmp_path / "forged.jsonl", *against, code=2)
    assert "other examples" in said
    assert "expected a new or empty folder" in command.error("generate", folder / "model", path, "-o", tmp_path / "out")
    longer = command.error("generate", folder / "model", path, "-o", tmp_path / "x", "--length", 4000)
    assert "tokens with a prompt, got 4,0" in longer


@pytest.mark.slow
def test_the_printed_check_holds_for_an_adapter_and_candidates(folder: Path, tmp_path: Path, command: Commands) -> None:
    from peft import LoraConfig, get_peft_model  # noqa: PLC0415

    torch.manual_seed(2)
    adapted = get_peft_model(evaluations.load(folder / "model"), LoraConfig(r=2, init_lora_weights=False))
    adapted.save_pretrained(tmp_path / "adapter")
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps({"prompt": text}) + "\n" for text in PROMPTS))
    options = ["--base", folder / "model", "--top-k", 12, "--top-p", 0.9, "--length", 5, "--json", "-o"]
    given = ["generate", tmp_path / "adapter", tmp_path / "prompts.jsonl", *options, tmp_path / "out of the way"]
    told = json.loads(command(*given))
    assert told["metrics"] == {"sampled": 1.0}
    check = shlex.split(told["check"])
    assert check[0] == "tiebreak"
    assert {"--base", "--length", "--against"} < {*check}
    assert "other" not in command(*check[1:])
    rows = [json.loads(line) for line in Path(told["answers"]).read_text().splitlines()]
    assert {(row["top_k"], row["top_p"]) for row in rows} == {(12, 0.9)}
    for other in ({"top_k": 13}, {"top_p": 0.8}, {"top_k": 0, "top_p": 1.0}):
        Path(told["answers"]).write_text("".join(json.dumps(row | other) + "\n" for row in rows))
        assert "program" in command(*check[1:], code=2)


RIGHT = {
    "prompt_tokens": [3, 4], "answer_tokens": [[5, 6], [7, 2]], "temperature": 1.0, "width": 5, "length": 3, "seed": 0,
    "end": [2, 6],
}  # fmt: skip
WRONG: list[dict[str, Any]] = [
    {"answer_tokens": [[5], [7, 2]]}, {"answer_tokens": [[6, 5, 4], [7, 2]]}, {"answer_tokens": [[5, 6]]},
    {"answer_tokens": []}, {"answer_tokens": [[], [7, 2]]}, {"answer_tokens": "56"}, {"answer_tokens": [[5, -6], [2]]},
    {"answer_tokens": [[5, 1 << 40], [2]]}, {"prompt_tokens": []}, {"prompt_tokens": [True]}, {"width": 3},
    {"temperature": float("nan")}, {"temperature": -1.0}, {"seed": 1 << 70}, {"seed": "0"},
    {"end": [2]}, {"end": None}, {"length": -1}, {"width": {}}, {"top_k": -1}, {"top_k": 1.0}, {"top_p": 0.0},
    {"top_p": 1.5}, {"top_p": "0.9"}, {"top_p": float("nan")}, {"top_k": None}, {"top_k": 1 << 70},
]  # fmt: skip


@pytest.mark.parametrize("change", WRONG, ids=str)
@pytest.mark.parametrize("at", [0, 1])
def test_hostile_rows_of_answers_are_refused(change: dict[str, Any], at: int) -> None:
    found = generation.read([("first", RIGHT), ("second", RIGHT | {"top_k": 0, "top_p": 1.0})], 1024)
    assert found.data["asked"].sum() == 8
    rows = [RIGHT, RIGHT]
    rows[at] = RIGHT | change
    with pytest.raises(ConfigurationError, match=r"expected (answers|settings) as `tiebreak generate`|expected whole"):
        generation.read([("first", rows[0]), ("second", rows[1])], 1024)
    with pytest.raises(ConfigurationError, match="expected a width of at most 1,024 tokens"):
        generation.read([("first", RIGHT | {"width": 1 << 40})], 1024)


@pytest.mark.parametrize("row", ['{"prompt": ""}', '{"prompt": 3}', '{"text": "a"}', "[]", ""])
def test_prompts_that_are_none_are_refused(folder: Path, tmp_path: Path, row: str) -> None:
    (tmp_path / "prompts.jsonl").write_text(row)
    with pytest.raises(ConfigurationError, match=r"expected a prompt, which is a text|expected prompts, got none"):
        generation.prompts_in(folder / "model", tmp_path / "prompts.jsonl")


@pytest.mark.slow
def test_answers_of_another_model_are_not_certified_for_this_one(folder: Path, tmp_path: Path) -> None:
    made = sampler(folder, answers=1, length=4)
    path = tmp_path / "answers.jsonl"
    generation.write(path, folder / "model", PROMPTS, made, made.run())
    scored = examples.read(folder / "model", path, 64)
    evaluations.evaluate(made.model, scored, tmp_path / "out", key=evaluations.new_key(), progress=False)
    signed = evaluations.SignedCertificate.read((tmp_path / "out" / "scores" / "certificate.json").read_bytes())
    with torch.no_grad():
        next(iter(made.model.parameters()))[0, 0] += 1
    with pytest.raises(VerificationError, match="another model"):
        evaluations.check_against(captured(made.model, scored, 1), signed, scored, tmp_path / "out" / "scores")
