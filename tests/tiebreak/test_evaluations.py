"""Evaluations: to which bits examples are scored, what a certificate of scores shows, and what catches each cheat."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import ModelCard
from peft import get_peft_model
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import BertConfig, BertForSequenceClassification, GPT2Config, GPT2ForSequenceClassification

from tests.conftest import ROOT
from tests.engine.tiny import CLIENT, TRAINER
from tests.engine.together import train_together
from tests.tampered import Tampered, one_element
from tests.tiebreak.hf_cases import VOCABULARY, llama, texts, tokenizer
from tests.tiebreak.parties import PASSPHRASE, Commands, Once
from tests.tiebreak.test_adapters import lora, perceptron, regression
from tiebreak import ConfigurationError, StateError, VerificationError
from tiebreak.api.certification.certificates import read_certificate, verify
from tiebreak.api.certification.folders import EVALUATION, SCORES
from tiebreak.api.certification.issuance import certify
from tiebreak.api.chain.weights import write_weights
from tiebreak.api.disputing.disputes import dispute
from tiebreak.api.evaluation import examples as rows
from tiebreak.api.evaluation.evaluations import check_against, evaluate, load
from tiebreak.api.machine import Machine
from tiebreak.api.machine.interpreters import make_interpreter
from tiebreak.api.provenance.formats import write
from tiebreak.api.provenance.source import FormatSource
from tiebreak.api.training.runs import agree
from tiebreak.api.training.scoring import METRICS, ScoredExamples, captured, evaluation_task, plan
from tiebreak.cli.options import PASSPHRASE_VARIABLE
from tiebreak.engine.capture.captured import capture_task
from tiebreak.engine.distributed import partition
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.engine.run.interpreter import Interpreter
from tiebreak.engine.run.train import Worker
from tiebreak.protocol.commitments.dsse import Envelope
from tiebreak.protocol.commitments.terms import Terms
from tiebreak.protocol.program.isa import Opcode

PLAIN = Machine(threads=1)
COUNT = 100


def of_classes(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    logits = model(x)
    return torch.stack([(logits.argmax(1) == y).float(), F.cross_entropy(logits, y, reduction="none")], 1)


def worst(scores: Tensor) -> Tensor:
    return torch.stack([scores[:, 0].mean(), scores[:, 1].amax()])


def points(count: int = COUNT, **more: Any) -> ScoredExamples:
    """Examples for a score of one's own."""
    generator = torch.Generator().manual_seed(2)
    data = {"x": torch.randn(COUNT, 6, generator=generator), "y": torch.randint(0, 3, (COUNT,), generator=generator)}
    given: dict[str, Any] = {"score": of_classes, "columns": ("right", "loss"), "metrics": ("accuracy", "loss")}
    return ScoredExamples(**{"data": {name: array[:count] for name, array in data.items()}, **given, **more})


def altered(name: str, change: Callable[[Tensor], object]) -> ScoredExamples:
    found = points()
    change(found.data[name])
    return found


def scores(model: nn.Module, examples: ScoredExamples, batch: int = 3, **how: Any) -> Tensor:
    """The scores and then the metrics that an evaluation computes, in one row."""
    made = captured(model, examples, batch)
    interpreter = make_interpreter(made.program, Machine(**{"threads": 1, **how}))
    state, data = interpreter.to_device(made.state), interpreter.place_data(made.data)
    for step in range(1, made.steps + 1):
        state = interpreter.step(step, state, data).state
    assert not hasattr(model, METRICS), "the model is as it was"
    return torch.cat([state["model.evaluation_scores"].flatten(), state["model.evaluation_metrics"]])


def table(found: Tensor, examples: ScoredExamples) -> Tensor:
    return found[: -len(examples.metrics)].reshape(-1, len(examples.columns))


# ---------------------------------------------------------------- a certificate, and those who cheat


def model_of(folder: Path) -> nn.Sequential:
    model = perceptron()
    model.load_state_dict(load_file(folder / "model.safetensors"))
    return model


def make(folder: Path) -> None:
    """A trained model whose job named its evaluation (base, base.json), and that evaluation (out)."""
    planned = plan(points(), captured(perceptron(), points(), 1).roots(), {})
    terms = Terms(nonce=int.from_bytes(sha256(planned).digest()))
    run = agree(regression(perceptron()), folder / "run", client=CLIENT, trainer=TRAINER, terms=terms, machine=PLAIN)
    run.resume(TRAINER, progress=False)
    (folder / "base").mkdir()
    write_weights(run.directory, folder / "base" / "model.safetensors")
    certify(RunDirectory.open(folder / "run"), folder / "base", folder / "base.json", TRAINER)
    evaluate(model_of(folder / "base"), points(), folder / "out", key=TRAINER, machine=PLAIN, progress=False)


@pytest.fixture(autouse=True)
def passphrase(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PASSPHRASE_VARIABLE, PASSPHRASE)


@pytest.fixture
def here(once: Once, tmp_path: Path) -> Path:
    return shutil.copytree(once("evaluations", make), tmp_path / "here")


def checked(here: Path, *more: object) -> list[object]:
    out = here / "out" / "scores"
    return ["verify", out, out / "certificate.json", "--base", here / "base", *more]


def statement_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Envelope.decode((folder / "tiebreak.intoto.json").read_bytes()).payload.data)
    return found


def test_scores_with_a_certificate_show_model_metrics_and_that_they_were_registered(
    here: Path, command: Commands
) -> None:
    out, expected = here / "out" / "scores", of_classes(model_of(here / "base"), **points().data).mean(0).tolist()
    told = command(*checked(here, "--base-certificate", here / "base.json"))
    assert f"{here / 'base'} is what was scored: that state has its tensors too." in told
    assert f"Pre-registered: job {RunDirectory.open(here / 'run').job.id.hex()}, which made {here / 'base'}" in told
    assert "scores of 2." in told
    assert "  - 1: " not in told, "of the first state there is no more to be said than whose scores they are"
    assert "Pre-registered" not in command(*checked(here)), "nobody says what the model was trained by"
    alone = command("verify", out, out / "certificate.json")
    assert "That these are scores of your model: the signers name a base of root" in alone
    assert "(`tiebreak evaluate --against`)" in alone
    assert "README.md (hub) is what this certificate makes of it" in alone
    data: Any = ModelCard((out / "README.md").read_text()).data
    assert (data.model_name, [one.metric_type for one in data.eval_results]) == ("out", ["accuracy", "loss"])
    metrics = {one.metric_type: one.metric_value for one in data.eval_results}
    assert [*metrics.values()] == pytest.approx(expected, rel=1e-6)
    statement = statement_of(out)
    assert statement["predicateType"] == "urn:tiebreak:evaluation:1"
    assert (statement["predicate"]["assuranceLevel"], statement["predicate"]["metrics"]) == ("self_attested", metrics)
    command("key", here / "auditor.pem")
    command("audit", here / "out" / "run", "-o", here / "replay", "--threads", 1)
    command("certify", here / "replay", "--weights", out, "--key", here / "auditor.pem", "-o",
            out / "certificate.json", "--for", "in-toto")  # fmt: skip
    assert statement_of(out)["predicate"]["assuranceLevel"] == "reproduced"
    assert "(in-toto) is what this certificate makes of it" in command(*checked(here))


def resave(change: Callable[[dict[str, Tensor]], object], here: Path) -> None:
    tensors = load_file(here / "out" / "scores" / SCORES)
    change(tensors)
    save_file(tensors, here / "out" / "scores" / SCORES)


def says(here: Path, **fields: Any) -> None:
    path = here / "out" / "scores" / EVALUATION
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def signs(here: Path, **fields: Any) -> None:
    """The evaluator says something else and signs it."""
    says(here, **fields)
    out = here / "out" / "scores"
    for name in ("certificate.json", "README.md", "tiebreak.intoto.json"):
        (out / name).unlink()
    certify(RunDirectory.open(here / "out" / "run"), out, out / "certificate.json", TRAINER)


def scores_another(here: Path) -> None:
    shutil.rmtree(here / "out")
    evaluate(perceptron(), points(), here / "out", key=TRAINER, machine=PLAIN, batch=COUNT, progress=False)


def shows_the_model_before_its_last_step(here: Path) -> None:
    state = RunDirectory.open(here / "run").state(3)
    kept = {name.removeprefix("model."): tensor for name, tensor in state.items() if name.startswith("model.")}
    save_file({name: tensor.clone() for name, tensor in kept.items()}, here / "base" / "model.safetensors")


def shows_another_card(here: Path) -> None:
    card = here / "out" / "scores" / "README.md"
    card.write_text(card.read_text().replace("| accuracy | 0.", "| accuracy | 0.9"))


FORGED: dict[str, tuple[Callable[[Path], object], str]] = {
    "a score in the file": (partial(resave, lambda t: t["evaluation_scores"][7].fill_(1)), "tensors under state root"),
    "metrics in the file": (partial(resave, lambda t: t[METRICS].fill_(1)), "expected tensors under state root"),
    "a tensor left out": (partial(resave, lambda t: t.pop(METRICS)), "expected .* tensors"),
    "the name of a metric": (
        partial(says, metrics=["F1", "loss"]), "evaluation whose evaluation.json has SHA-256 .*, got the folder"
    ),
    "examples as they were registered": (
        partial(signs, data="ab" * 32), "evaluation.json, data: expected .*, as the job has it, got 'abab"
    ),
    "a metric as it was registered": (partial(signs, program="ab" * 32), "program: expected .*, as the job has it"),
    "scores of another model": (scores_another, "base: expected tensors under state root"),
    "a model of one step less": (shows_the_model_before_its_last_step, "base: expected tensors under state root"),
    "no file of what is scored": (
        lambda here: (here / "out" / "scores" / EVALUATION).unlink(), "expected the folder of an evaluation"
    ),
    "a card with other metrics": (shows_another_card, "README.md: expected what this certificate makes of it as hub"),
}  # fmt: skip


@pytest.mark.parametrize("case", FORGED)
def test_forged_scores_are_refused(here: Path, command: Commands, case: str) -> None:
    forge, words = FORGED[case]
    forge(here)
    assert re.search(words, command.error(*checked(here, "--resaved"), code=2))


def test_certificates_of_scores_and_of_weights_do_not_stand_for_each_other(here: Path) -> None:
    out = here / "out" / "scores"
    with pytest.raises(VerificationError, match=r"expected the folder of an evaluation .*, got a model"):
        verify(here / "base", out / "certificate.json", others=True)
    with pytest.raises(VerificationError, match="expected a model, got the folder of an evaluation"):
        verify(out, here / "base.json")
    with pytest.raises(VerificationError, match="another metric, number or length"):
        check_against(captured(perceptron(), points(), 1), read_certificate(here / "base.json"), points(), out)


def test_metrics_beside_weights_and_beside_a_certificate_are_nobodys(here: Path, command: Commands) -> None:
    """Formats take metrics from the scores that were certified, and from no others that lie where they are written."""
    forged, signed = here / "forged", read_certificate(here / "out" / "scores" / "certificate.json")
    resave(lambda t: t[METRICS].fill_(1), shutil.copytree(here, here.with_name("copy")))
    shutil.copytree(here.with_name("copy") / "out" / "scores", forged)
    write(["hub"], FormatSource(signed=signed, certificate="certificate.json", folder=forged, key=TRAINER))
    assert "| accuracy | 1.0 |" in (forged / "README.md").read_text()
    told = command.error("verify", here / "out" / "scores", forged / "certificate.json", code=2)
    assert "README.md: expected what this certificate makes of it as hub" in told
    source = FormatSource(signed=read_certificate(here / "base.json"), certificate="base.json", folder=forged)
    assert source.metrics == {}


OTHERS: dict[str, tuple[Callable[[], ScoredExamples], int, str]] = {
    "a dropped example": (lambda: points(COUNT - 1), 1, "program_root .*: another metric, number"),
    "one twice instead of another": (lambda: altered("x", lambda x: x[3].copy_(x[4])), 1, "data_root .*: other exam"),
    "another label": (lambda: altered("y", lambda y: y[3].add_(1).remainder_(3)), 1, "data_root .*: other examples"),
    "another order": (lambda: altered("x", lambda x: x.copy_(x.flip(0))), 1, "data_root .*: other examples"),
    "another metric": (lambda: points(metric=worst), 1, "program_root .*: another metric"),
    "another score": (lambda: points(score=lambda m, x, y: of_classes(m, x, y) * 2), 1, "program_root .*: another"),
    "another batch": (points, 2, "program_root .*: another metric, number or length of examples, or size of batches"),
    "another name of the metric": (lambda: points(metrics=("F1", "loss")), 1, r"metrics named \('F1', 'loss'\), got"),
}  # fmt: skip


@pytest.mark.parametrize("case", OTHERS)
def test_whoever_has_the_examples_finds_what_else_was_scored(here: Path, case: str) -> None:
    make_examples, batch, words = OTHERS[case]
    out, model, examples = here / "out" / "scores", model_of(here / "base"), make_examples()
    signed = read_certificate(out / "certificate.json")
    check_against(captured(model, points(), 1), signed, points(), out)
    with pytest.raises(VerificationError, match=words):
        check_against(captured(model, examples, batch), signed, examples, out)
    bundle = captured(perceptron(), points(), 1)
    with pytest.raises(VerificationError, match=r"initial_state_root .*: another model"):
        check_against(bundle, signed, points(), out)


def test_a_forged_score_is_found_by_an_audit_of_it_and_convicted_at_one_number(here: Path, command: Commands) -> None:
    with evaluation_task(model_of(here / "base"), points(), 1) as task:
        run = agree(task, here / "forged" / "run", client=CLIENT, trainer=TRAINER, machine=PLAIN)
    shutil.copytree(here / "forged" / "run", here / "replay")
    forged, replay = RunDirectory.open(here / "forged" / "run"), RunDirectory.open(here / "replay")
    (leaf,) = (commit.operands[0].value for commit in forged.program.commits if "evaluation_scores" in str(commit))
    honest, row = make_interpreter(forged.program, PLAIN), 41
    Worker(forged, Tampered(honest, one_element(row + 1, leaf, 2 * row, lambda value: 1 - value)), key=TRAINER).work()
    Worker(replay, honest).work()
    assert run.steps == COUNT == len(forged.records()), "one of a hundred segments is one of a hundred examples"
    audit = ["audit", forged.path, "--threads", 1, "--segment"]
    command(*audit, row - 1)
    assert "checkpoint 42 of 100, step 42, where the state differs" in command(*audit, row, code=2)
    command(*audit, row + 1)  # which begins with what is signed
    found = dispute(forged, replay, PLAIN)
    assert found is not None
    assert found.loser == "trainer"
    assert re.search(rf"checkpoint 42 of 100, step 42; .*element {2 * row}$", found.sentence)


def test_no_other_evaluation_passes_for_the_registered_one(here: Path, command: Commands) -> None:
    signs(here, rows="easier.jsonl")
    told = command(*checked(here, "--base-certificate", here / "base.json"))
    assert "is what was scored" in told
    assert "Pre-registered" not in told


def test_of_many_evaluations_none_is_better(here: Path) -> None:
    """Neither the program nor its data has anything to draw: no seed leads to other scores."""
    evaluate(model_of(here / "base"), points(), here / "again", key=CLIENT, machine=PLAIN, progress=False)
    first, second = (RunDirectory.open(here / name / "run") for name in ("out", "again"))
    assert [r.digest for r in first.records()] == [r.digest for r in second.records()]
    assert not {instruction.opcode for instruction in first.program.body} & {Opcode.RANDOM, Opcode.SHUFFLE}
    assert first.data().keys() == {"place", "x", "y"}


# ---------------------------------------------------------------- rows, and what is computed of them


def written(folder: Path, rows: Iterable[object], name: str = "rows.jsonl") -> Path:
    (folder / name).write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))
    return folder / name


@pytest.fixture
def words(once: Once, tmp_path: Path) -> Path:
    """A copy of the folder of a tokenizer, with a model's configuration."""

    def make(folder: Path) -> None:
        tokenizer().save_pretrained(folder)
        llama().save_pretrained(folder)

    return shutil.copytree(once("words", make), tmp_path / "words")


CHOICE: dict[str, Any] = {"prompt": "the", "choices": [" model", " data loss"], "answer": 0}
LABEL: dict[str, Any] = {"text": "the model", "label": 1}
NUMBER, TEXTS = "expected the number of the right choice, from 0, got ", "expected a prompt, and choices that are texts"
CLASS, FIT = "expected a text and the number of its class, got ", "expected choices of at most 15 tokens after a token"
BAD: dict[str, tuple[object, str]] = {
    "an answer out of range": (CHOICE | {"answer": 2}, f"{NUMBER}2"),
    "an answer below 0": (CHOICE | {"answer": -1}, f"{NUMBER}-1"),
    "a huge answer": (CHOICE | {"answer": 10**40}, f"{NUMBER}1000"),
    "a true answer": (CHOICE | {"answer": True}, f"{NUMBER}True"),
    "a NaN": ('{"prompt": "the", "choices": ["a"], "answer": NaN}', "expected finite numbers, got NaN"),
    "no choice": (CHOICE | {"choices": []}, TEXTS),
    "an empty choice": (CHOICE | {"choices": ["", "a"]}, TEXTS),
    "nested choices": (CHOICE | {"choices": [["a"], "b"]}, TEXTS),
    "no prompt": (CHOICE | {"prompt": None}, TEXTS),
    "an empty prompt": (CHOICE | {"prompt": ""}, FIT),
    "a choice that is too long": (CHOICE | {"choices": [" graph" * 99, " a"]}, FIT),
    "half a character": (CHOICE | {"prompt": "\ud800"}, "expected JSON"),
    "a list": ([1], "expected prompt, choices, answer, as in the first row, got others"),
    "a label below 0": (LABEL | {"label": -1}, CLASS),
    "a huge label": (LABEL | {"label": 10**30}, CLASS),
    "a list of texts": (LABEL | {"text": ["a"]}, CLASS),
    "an empty text": (LABEL | {"text": ""}, "expected a text with tokens, got none"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_row_that_cannot_be_scored_is_named(words: Path, case: str) -> None:
    row, words_of_it = BAD[case]
    first = LABEL if words_of_it.startswith(CLASS) or "with tokens" in words_of_it else CHOICE
    with pytest.raises(ConfigurationError, match=f"rows.jsonl, line 2: .*{re.escape(words_of_it)}"):
        rows.read(words, written(words, [first, row]), 16)


def test_models_and_tokenizers_that_cannot_score_rows_are_refused(words: Path) -> None:
    with pytest.raises(ConfigurationError, match="got 0, 0 of them the assistant's"):
        rows.read(words, written(words, []), 16)
    labels = rows.read(words, written(words, [LABEL, LABEL | {"label": 7}]), 16)
    with pytest.raises(ConfigurationError, match="Target 7 is out of bounds"):
        scores(BERT(), labels)
    pair = rows.read(words, written(words, [{"prompt": "the", "chosen": " model", "rejected": " data"}]), 16)
    with pytest.raises(ConfigurationError, match="expected an adapter on its base for rows of preferences"):
        scores(llama(), pair)
    with pytest.raises(StateError, match="no longer finite"):
        scores(perceptron(), points(score=lambda model, x, y: of_classes(model, x, y).log()))
    with pytest.raises(ConfigurationError, match="expected arrays of one length, with examples along dim 0, got 0"):
        scores(perceptron(), points(0))
    for model, base in ((words, words), (words.parent, None)):
        with pytest.raises(ConfigurationError, match="and none with a model, got" if base else "config.json"):
            load(model, base)
    plain = tokenizer()
    plain.pad_token = None
    plain.save_pretrained(words)
    with pytest.raises(ConfigurationError, match="expected a tokenizer that fills texts up to one length, got"):
        rows.read(words, written(words, [LABEL]), 16)


def classifier(kind: Any, config: Any, **more: int) -> Any:
    torch.manual_seed(0)
    return kind(config(vocab_size=VOCABULARY, num_labels=3, pad_token_id=0, **more)).eval()


BERT: Any = partial(classifier, BertForSequenceClassification, BertConfig, hidden_size=16, num_hidden_layers=1,
                    num_attention_heads=2, intermediate_size=32, max_position_embeddings=64)  # fmt: skip
GPT2: Any = partial(classifier, GPT2ForSequenceClassification, GPT2Config, n_embd=16, n_layer=1, n_head=2,
                    n_positions=64, bos_token_id=1, eos_token_id=1)  # fmt: skip


def adapted() -> Any:
    """An adapter that does something, on a base."""
    torch.manual_seed(1)
    model = get_peft_model(llama(), lora(task_type="CAUSAL_LM", init_lora_weights=False))
    return model.eval()


def eager(model: Any, ids: list[int], begin: int) -> Tensor:
    """The log-probabilities of all tokens after each of the tokens from one before `begin` on."""
    with torch.no_grad():
        found: Tensor = model(torch.tensor([ids])).logits[0].double().log_softmax(-1)
    return found[begin - 1 : -1]


QUESTIONS: list[dict[str, Any]] = [
    {"prompt": said[: len(said) // 2 + 1], "choices": [f" {a}", f" {b} {a}", *([a] if n % 2 else [])], "answer": n % 2}
    for n, (said, a, b) in enumerate(zip(texts(9), texts(9, 1, 5), texts(9, 2, 6), strict=True))
]  # fmt: skip
LONG = {"prompt": "The model " * 12, "choices": [" trains"], "answer": 0}
TWICE = {"prompt": "the", "choices": [" data", " data"], "answer": 0}


def test_choices_are_scored_as_the_model_tells_them(words: Path) -> None:
    examples, made = rows.read(words, written(words, [*QUESTIONS, TWICE]), 64), tokenizer()
    model = adapted()
    result, right = scores(model, examples, 4), list[list[float]]()
    got = table(result, examples)
    for row, question in zip(got, [*QUESTIONS, TWICE], strict=True):
        sums, by_token, by_byte = list[float](), list[float](), list[float]()
        for number, choice in enumerate(question["choices"]):
            given = made(question["prompt"]).input_ids
            ids = made(question["prompt"] + choice).input_ids
            begin = next((n for n, (a, b) in enumerate(zip(given, ids, strict=False)) if a != b), len(given))
            said = eager(model, ids, begin)
            told = said.gather(1, torch.tensor(ids[begin:])[:, None])
            sums.append(told.sum().item())
            by_token.append(sums[-1] / len(ids[begin:]))
            by_byte.append(sums[-1] / len(choice.encode()))
            assert row[3 + number].item() == pytest.approx(sums[-1], rel=1e-5)
            assert row[6 + number].item() == (said.argmax(1) == torch.tensor(ids[begin:])).all()
        right.append([float(max(range(len(one)), key=one.__getitem__) == question["answer"])
                      for one in (sums, by_token, by_byte)])  # fmt: skip
    assert got[:, :3].tolist() == right
    assert right[-1] == [1, 1, 1], "of two alike, the first"
    assert result[-3:].tolist() == pytest.approx(torch.tensor(right).mean(0).tolist())


@pytest.mark.slow
@pytest.mark.parametrize("make_model", [BERT, GPT2], ids=["BERT", "GPT-2"])
def test_texts_are_classified_as_transformers_classifies_each_alone(words: Path, make_model: Any) -> None:
    said = [{"text": text, "label": n % 3} for n, text in enumerate(texts(9, longest=30))]
    model, made = make_model(), tokenizer()
    found = rows.read(words, written(words, said), 64)
    settings = words / "tokenizer_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"padding_side": "left"}))
    filled_before = rows.read(words, written(words, [*said, {"text": "graph " * 70, "label": 0}]), 64)
    assert all(torch.equal(filled_before.data[n][:9, : array.shape[-1]], array) for n, array in found.data.items()
               if array.dim() == 2), "texts begin at position 0"  # fmt: skip
    got = table(scores(model, found), found)
    with torch.no_grad():
        logits = torch.cat([model(**made(row["text"], return_tensors="pt")).logits for row in said])
    answer = torch.tensor([n % 3 for n in range(9)])
    assert got[:, 0].tolist() == (logits.argmax(1) == answer).tolist()
    torch.testing.assert_close(got[:, 1], F.cross_entropy(logits, answer, reduction="none"))
    assert torch.equal(table(scores(model, filled_before), filled_before)[:9], got)


@pytest.mark.slow
def test_windows_and_preferences_have_the_losses_of_finetuning(words: Path) -> None:
    model, made = adapted(), tokenizer()
    examples = rows.read(words, written(words, [{"text": text} for text in texts(9)]), 16)
    result = scores(model, examples, 4)
    found, ids = table(result, examples), torch.tensor([n for text in texts(9) for n in [*made(text).input_ids, 1]])
    windows = ids[: len(ids) // 16 * 16].reshape(-1, 16)
    with torch.no_grad():
        losses = torch.stack([model(w[None], labels=w[None]).loss for w in windows])
    torch.testing.assert_close(found, torch.stack([losses * 15, torch.full_like(losses, 15)], 1))
    torch.testing.assert_close(result[-2:], torch.stack([losses.mean(), losses.mean().exp()]))
    pairs = [{"prompt": "the", "chosen": f" {a}", "rejected": f" {a} {a}"} for a in texts(5, 1, 5)]
    examples = rows.read(words, written(words, pairs), 64)
    found, expected = table(scores(model, examples, 2), examples), list[Tensor]()
    for pair in pairs:
        ratios = list[Tensor]()
        for said in (pair["chosen"], pair["rejected"]):
            begin, ids_of = len(made("the").input_ids), [*made("the" + said).input_ids, 1]
            wanted = torch.tensor(ids_of[begin:])[:, None]
            own = eager(model, ids_of, begin).gather(1, wanted).sum()
            with model.disable_adapter():
                ratios.append(own - eager(model, ids_of, begin).gather(1, wanted).sum())
        expected.append(-F.logsigmoid(0.1 * (ratios[0] - ratios[1])))
    torch.testing.assert_close(found[:, 0], torch.stack(expected).float())
    assert found[:, 1].tolist() == [1] * 5


def test_a_score_and_a_metric_of_ones_own_are_captured() -> None:
    examples = points(9, metric=worst)
    model = perceptron()
    expected = of_classes(model, **examples.data)
    result = scores(model, examples, 4)
    torch.testing.assert_close(table(result, examples), expected)
    torch.testing.assert_close(result[-2:], worst(expected))
    assert all(parameter.requires_grad for parameter in model.parameters()), "the model is as it was"
    assert model.training


# ---------------------------------------------------------------- bits


@pytest.mark.slow
def test_a_score_has_the_same_bits_in_any_batch_width_order_and_number_of_workers(
    words: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    examples, model = rows.read(words, written(words, QUESTIONS), 64), adapted()
    first = scores(model, examples, 1)
    for batch, how in ((7, {}), (32, {}), (3, {"threads": 2}), (7, {"permute": 1}), (4, {"permute": 2})):
        assert torch.equal(scores(model, examples, batch, **how), first), (batch, how)
    wider = rows.read(words, written(words, [*QUESTIONS, LONG]), 64)
    assert wider.data["input_ids"].shape[2] > examples.data["input_ids"].shape[2]
    assert torch.equal(table(scores(model, wider), wider)[:9], table(first, examples))
    monkeypatch.setattr(partition, "LEAST", 1)
    with evaluation_task(model, examples, 4) as task:
        made, steps = capture_task(task), task.steps
    for workers in (1, 2, 3):
        _, state = train_together(made, workers, steps)
        assert torch.equal(state["model.evaluation_scores"].flatten(), first[:-3]), workers
        assert torch.equal(state["model.evaluation_metrics"], first[-3:]), workers


@pytest.mark.slow
def test_an_evaluation_goes_on_after_it_was_interrupted(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {"key": TRAINER, "batch": 7, "machine": PLAIN, "progress": False}
    step = Interpreter.step

    def stopped(self: Interpreter, number: int, *more: Any, **options: Any) -> Any:
        if number == 9:
            raise KeyboardInterrupt
        return step(self, number, *more, **options)

    model = model_of(here / "base")
    with monkeypatch.context() as patch:
        patch.setattr(Interpreter, "step", stopped)
        with pytest.raises(KeyboardInterrupt):
            evaluate(model, points(), here / "stopped", **given)
    assert len(RunDirectory.open(here / "stopped" / "run").records()) == 8
    assert not (here / "stopped" / "scores").exists()
    evaluate(model, points(), here / "stopped", **given)
    names = [here / name / "scores" / SCORES for name in ("stopped", "out")]
    assert names[0].read_bytes() == names[1].read_bytes(), "the size of the batch is another one too"
    with pytest.raises(ConfigurationError, match="expected"):
        evaluate(model, points(COUNT - 1), here / "stopped", **given)


# ---------------------------------------------------------------- the command


@pytest.mark.slow
def test_an_adapter_is_scored_on_its_base_and_checked_without_torch(words: Path, command: Commands) -> None:
    model, adapter, out = shutil.copytree(words, words.parent / "model"), words.parent / "adapter", words.parent / "out"
    adapted().save_pretrained(adapter)
    (adapter / "README.md").unlink()
    given: list[object] = ["evaluate", adapter, "--base", model, "--length", 64, "--threads", 1]
    on = ["--on", written(words, QUESTIONS)]
    found = command.tell(*given, *on, "-o", out)
    scored = load_file(out / "scores" / SCORES)
    examples = rows.read(model, words / "rows.jsonl", 64)
    assert [*found["metrics"].values()] == scored[METRICS].tolist() == scores(adapted(), examples)[-3:].tolist()
    told = command(*found["verify"].split()[1:])
    assert f"{adapter} is what was scored" in told
    blocked = [sys.executable, ROOT / "tests" / "light" / "blocked.py", *found["verify"].split()[1:]]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(blocked, capture_output=True, text=True, env=environment, check=False)
    assert done.stdout == told, done.stderr
    against = ["--against", out / "scores" / "certificate.json"]
    assert command.tell(*given, *on, *against)["holds"]
    others = written(words, [QUESTIONS[0] | {"answer": 1}, *QUESTIONS[1:]])
    assert "other examples" in command(*given, "--on", others, *against, code=2)
    for more in ([], [*on, "--task", "x"]):
        assert "expected --on or --task, got both or neither" in command("evaluate", model, *more, code=1)
