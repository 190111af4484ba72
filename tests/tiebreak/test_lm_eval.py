"""Tasks of `lm_eval` through our model class, against its own model `hf` on the same tiny Llama."""

import json
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from lm_eval import simple_evaluate
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from tokenizers.processors import TemplateProcessing
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from transformers import LlamaForCausalLM

from tests.source_tree import ROOT
from tests.tiebreak.hf_cases import llama, tokenizer
from tests.tiebreak.parties import PASSPHRASE, Commands, Once
from tiebreak import ConfigurationError
from tiebreak.api.certification.certificates import verify
from tiebreak.api.evaluation.lm_eval_model import LogLikelihoodModel, Pair, run_tasks
from tiebreak.cli.options import PASSPHRASE_VARIABLE

pytestmark = pytest.mark.slow

TASKS = ROOT / "tests" / "tiebreak" / "lm_eval_tasks"
METRICS = {
    "colours": {"acc,none", "acc_norm,none"},
    "endings": {"acc,none", "perplexity,none"},
    "paragraphs": {"word_perplexity,none", "byte_perplexity,none", "bits_per_byte,none"},
}


def near(expected: Any) -> Any:
    """Equal but for rounding: `hf` computes and adds in float32, with log-probabilities close to 0 among them."""
    return pytest.approx(expected, rel=1e-5, abs=2e-5)


def make(folder: Path) -> None:
    """Two models that know half of the answers. The tokenizer of `begins` puts a token before each text."""
    rows = {name: [json.loads(line) for line in (TASKS / f"{name}.jsonl").open()] for name in METRICS}
    learnt = [f"Question: {row['question']}\nAnswer: {row['answers'][row['right']]}" for row in rows["colours"][::2]]
    learnt += [row["text"] for name in ("endings", "paragraphs") for row in rows[name][::2]]
    for name, is_begun in (("ends", False), ("begins", True)):
        made, model = tokenizer(), llama()
        if is_begun:
            made.bos_token = "<|user|>"
            made.backend_tokenizer.post_processor = TemplateProcessing(
                single="<|user|> $A", special_tokens=[("<|user|>", made.bos_token_id)]
            )
        ids = pad_sequence([torch.tensor(made.encode(text)[:64]) for text in learnt], batch_first=True)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        for _ in range(150):
            model(input_ids=ids, labels=ids.masked_fill(ids == 0, -100)).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        made.save_pretrained(folder / name)
        model.save_pretrained(folder / name)


@dataclass
class Recorder:
    """Scores pairs in plain PyTorch and keeps them."""

    model: Path
    batch: int = 3
    calls: list[tuple[str, int, list[Pair]]] = field(default_factory=list)

    @torch.no_grad()
    def __call__(self, pairs: Sequence[Pair], output: Path, *, length: int) -> list[tuple[float, bool]]:
        self.calls.append((output.name, length, [*pairs]))
        model, found = LlamaForCausalLM.from_pretrained(self.model, dtype=torch.float64), []
        for at in range(0, len(pairs), self.batch):
            rows = [torch.tensor(context + following) for context, following in pairs[at : at + self.batch]]
            ids = pad_sequence(rows, batch_first=True)
            assert ids.shape[1] <= length + 1
            logits = model(input_ids=ids[:, :-1]).logits.log_softmax(-1)
            for row, line, (context, following) in zip(rows, logits, pairs[at : at + self.batch], strict=True):
                read = line[len(context) - 1 : len(row) - 1]
                wanted = torch.tensor(following)
                score = -F.nll_loss(read, wanted, reduction="sum").item()
                found.append((score, bool((read.argmax(-1) == wanted).all())))
        return found


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The other machines that something looks for, in vain. A thread of an earlier test may still ask this one."""
    found, real = list[object](), socket.getaddrinfo

    def look_up(host: object, *more: Any, **options: Any) -> Any:
        if host in ("127.0.0.1", "localhost"):
            return real(host, *more, **options)
        found.append(host)
        raise OSError("no network")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    return found


@pytest.fixture
def models(once: Once, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hosts: list[object]) -> Path:
    """The folder of both models. Tasks find their files."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")
    return once("lm_eval", make)


def theirs(model: Path, length: int | None = None) -> HFLM:
    return HFLM(pretrained=str(model), device="cpu", batch_size=2, max_length=length)


def request(*texts: str) -> Instance:
    return Instance(request_type="loglikelihood", doc={}, arguments=texts, idx=0)


@pytest.mark.parametrize(("name", "length", "certified"), [("ends", None, False), ("begins", 40, True)])
def test_metrics_are_those_of_lm_evals_own_model(
    models: Path, tmp_path: Path, name: str, length: int | None, certified: bool, hosts: list[object],
    cases: Callable[[], None], command: Commands, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    score, asked = Recorder(models / name), ["answers", "paragraphs"]
    if certified:
        monkeypatch.setenv(PASSPHRASE_VARIABLE, PASSPHRASE)
        tasks = [part for task in asked for part in ("--task", task)]
        told = command(
            "evaluate", models / name, *tasks, "--tasks", TASKS, "--length", length, "-o", tmp_path, "--json"
        )
        found = json.loads((tmp_path / "results.json").read_text())
        assert json.loads(told)["results"] == found["results"]
        for kind in ("loglikelihood", "loglikelihood_rolling"):
            scores = tmp_path / kind / "scores"
            assert verify(scores, scores / "certificate.json", base=models / name)[0].is_evaluation
    else:
        found = run_tasks(models / name, asked, TASKS, tmp_path, score=score, length=length)
    assert hosts == []
    other = simple_evaluate(
        model=theirs(models / name, length), tasks=asked, bootstrap_iters=0,
        task_manager=TaskManager(include_path=TASKS, include_defaults=False),
    )  # fmt: skip
    assert json.loads(json.dumps(found)) == found
    assert {*found["versions"]} == {"answers", *METRICS}
    assert found["versions"] == other["versions"]
    assert found["groups"]["answers"]["acc,none"] == near(other["groups"]["answers"]["acc,none"])
    assert found["lm_eval_version"] == other["lm_eval_version"]
    for task, metrics in METRICS.items():
        lines = (TASKS / f"{task}.jsonl").read_text().splitlines()
        assert found["n-samples"][task] == {"original": len(lines), "effective": len(lines)}
        for metric in metrics:
            assert found["results"][task][metric] == near(other["results"][task][metric])
            assert not metric.startswith("acc") or 0 < found["results"][task][metric] < 1, "some are right, not all"
            cases()
        for line, mine, own in zip(lines, found["samples"][task], other["samples"][task], strict=True):
            assert mine["doc"] == json.loads(line)
            assert mine["arguments"] == [[*one] for one in own["arguments"]]
            for (said,), (expected,) in zip(mine["resps"], own["resps"], strict=True):
                if task == "paragraphs":
                    assert said == near(expected)
                else:
                    assert said == [near(expected[0]), expected[1]]
                cases()
            for metric in metrics:
                key = metric.removesuffix(",none")
                assert mine[key] == near(own[key])
    assert [kind for kind, _, _ in score.calls] == ["loglikelihood", "loglikelihood_rolling"] * (not certified)
    assert {seen for _, seen, _ in score.calls} == {length or 256} - {length}


def test_requests_are_the_data_in_their_order(models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    score, made = Recorder(models / "ends"), tokenizer()
    found = run_tasks(models / "ends", ["endings", "colours"], TASKS, tmp_path, score=score)
    assert capsys.readouterr().out == "", "a command may print its own"
    ((_, _, pairs),) = score.calls
    asked = [one for task in ("endings", "colours") for doc in found["samples"][task] for one in doc["arguments"]]
    assert len(asked) == 7 + 8 * 4
    texts = [(made.decode(context), made.decode(following)) for context, following in pairs]
    assert texts == [("<eos>" if context == "" else context, following) for context, following in asked]
    first, again = (found["samples"]["colours"][at] for at in (0, 6))
    assert first["doc"] == again["doc"], "a document may stand twice"
    assert [one[0][0] for one in first["resps"]] == pytest.approx([one[0][0] for one in again["resps"]])


ODD = [
    ("", " the model"), ("", "<eos>the end"), ("The proof ", "of it"), ("<|user|>said", " so"), ("a", " b" * 30),
    ("x \n\n", "\n\ny"), ("e\u0301\U0001f1eb", "\U0001f1f7 \u202eabc\x00"), ("train the", " model"),
    ("train the", " model"), (" ".join(["token"] * 90), " batch"),
]  # fmt: skip


@pytest.mark.parametrize("name", ["ends", "begins"])
def test_odd_requests_are_read_as_lm_eval_reads_them(models: Path, tmp_path: Path, name: str) -> None:
    score, own = Recorder(models / name), theirs(models / name, 64)
    model = LogLikelihoodModel(models / name, tmp_path, score, 64)
    asked = [request(*texts) for texts in ODD]
    found, expected = model.loglikelihood(asked), own.loglikelihood(asked)
    assert [score for score, _ in found] == near([score for score, _ in expected])
    texts = [request(text) for text in ("", "x", "proof " * 70, "a b " * 200, "\u202e\x00", *(one for _, one in ODD))]
    assert model.loglikelihood_rolling(texts) == near(own.loglikelihood_rolling(texts))
    if name == "ends":
        assert model.loglikelihood_rolling(texts[:1]) == [0]
        assert len(score.calls) == 2, "nothing to score is no evaluation"
    assert max(len(context) + len(following) for _, _, pairs in score.calls for context, following in pairs) == 65


def test_likeliest_continuations_are_told_from_others(models: Path, tmp_path: Path) -> None:
    score, own = Recorder(models / "ends"), theirs(models / "ends")
    model, asked = LogLikelihoodModel(models / "ends", tmp_path, score), []
    for context, _ in ODD[2:]:
        ids = own.tok_encode(context)
        best = own.model.generate(torch.tensor([ids]), max_new_tokens=3, do_sample=False)[0, len(ids) :].tolist()
        asked += [(("", ""), ids, best), (("", ""), ids, [best[0] ^ 1, *best[1:]])]
    found, expected = model._loglikelihood_tokens(asked), own._loglikelihood_tokens(asked)
    assert [best for _, best in found] == [best for _, best in expected] == [True, False] * (len(asked) // 2)
    assert [score for score, _ in found] == near([score for score, _ in expected])


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (("", ""), "expected a text in each request, got an empty one"),
        (("the proof", ""), "loglikelihood: expected 1 to 16 tokens after at least 1, got 0 after 3"),
        (("   ", "of it"), "expected 1 to 16 tokens after at least 1, got 7 after 0"),
        (("", "<eos>"), "expected 1 to 16 tokens after at least 1, got 0 after 1"),
        (("a", " the" * 20), "expected 1 to 16 tokens after at least 1, got 20 after 1"),
    ],
)
def test_requests_without_a_score_are_refused(models: Path, tmp_path: Path, texts: Any, expected: str) -> None:
    score = Recorder(models / "ends")
    model = LogLikelihoodModel(models / "ends", tmp_path, score, 16)
    with pytest.raises(ConfigurationError, match=expected):
        model.loglikelihood([request("a", " the"), request(*texts)])
    assert score.calls == []


def written(folder: Path, data: str, **changed: object) -> list[str]:
    """Writes a task of one's own, which is `endings` with changes, over these lines."""
    folder.mkdir()
    (folder / "data.jsonl").write_text(data)
    task = {
        "task": "own", "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(folder / "data.jsonl")}},
        "output_type": "loglikelihood", "test_split": "test", "doc_to_text": "{{text}}", "doc_to_target": " end",
        "metric_list": [{"metric": "acc"}], **changed,
    }  # fmt: skip
    (folder / "own.yaml").write_text(json.dumps(task))
    return ["own"]


LINE = '{"text": "the proof"}\n'
UNTIL = {"output_type": "generate_until", "metric_list": [{"metric": "exact_match"}]}
ELSEWHERE = "expected tasks with local data, got "


@pytest.mark.parametrize(
    ("data", "changed", "expected"),
    [
        (LINE, UNTIL, "own: expected a task of log-likelihoods, got generate_until"),
        ("", {}, ELSEWHERE),
        (LINE, {"doc_to_text": "{{txt}}"}, f"{ELSEWHERE}UndefinedError: 'txt' is undefined"),
        (LINE, {"dataset_path": "someone/something"}, f"{ELSEWHERE}ConnectionError: Couldn't reach 'someone/something"),
        (LINE, {"dataset_kwargs": {"data_files": "none.jsonl"}}, f"{ELSEWHERE}FileNotFoundError"),
        (LINE, {"task": "other"}, f"{ELSEWHERE}KeyError: .*'own' is not a registered task"),
    ],
)
def test_tasks_that_cannot_run_are_refused_before_anything_is_computed(
    models: Path, tmp_path: Path, hosts: list[object], data: str, changed: dict[str, object], expected: str
) -> None:
    score = Recorder(models / "ends")
    names = written(tmp_path / "own", data, **changed)
    with pytest.raises(ConfigurationError, match=expected):
        run_tasks(models / "ends", names, tmp_path / "own", tmp_path / "out", score=score)
    assert (score.calls, hosts) == ([], [])
    assert not datasets.config.HF_HUB_OFFLINE, "the switches are as before"


def test_generation_is_refused_by_the_model_too(models: Path, tmp_path: Path) -> None:
    model = LogLikelihoodModel(models / "ends", tmp_path, Recorder(models / "ends"))
    asked = [Instance("generate_until", {}, ("a", {"until": ["."]}), 0, ("writing", 0, 1))]
    with pytest.raises(ConfigurationError, match="writing: expected a task of log-likelihoods, got one of generation"):
        model.generate_until(asked)


def test_metric_that_lm_eval_does_not_know_is_not_looked_for(models: Path, tmp_path: Path, hosts: list[object]) -> None:
    metrics = [{"metric": "acc"}, {"metric": "someone/code", "aggregation": "mean"}]
    names = written(tmp_path / "own", LINE, metric_list=metrics)
    found = run_tasks(models / "ends", names, tmp_path / "own", tmp_path, score=Recorder(models / "ends"))
    assert found["results"]["own"]["acc,none"] in {0, 1}
    assert "someone/code,none" not in found["results"]["own"]
    assert hosts == []


def test_tokenizer_without_first_and_last_token_is_refused(models: Path, tmp_path: Path) -> None:
    made = tokenizer()
    made.eos_token = None
    made.save_pretrained(tmp_path / "model")
    llama().config.save_pretrained(tmp_path / "model")
    with pytest.raises(ConfigurationError, match="a token that begins or ends texts, got none"):
        run_tasks(tmp_path / "model", ["endings"], TASKS, tmp_path, score=Recorder(tmp_path))


def test_model_is_registered_by_its_name(models: Path, tmp_path: Path) -> None:
    given = {"model": models / "ends", "output": tmp_path, "score": Recorder(models / "ends")}
    manager = TaskManager(include_path=TASKS, include_defaults=False)
    other = simple_evaluate("tiebreak", given, tasks=["endings"], task_manager=manager, bootstrap_iters=0)
    found = run_tasks(models / "ends", ["endings"], TASKS, tmp_path, score=Recorder(models / "ends"))
    assert other["results"] == found["results"]
