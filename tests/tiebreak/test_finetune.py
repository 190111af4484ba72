"""`tiebreak finetune` on a tiny random Llama, with a tokenizer that is trained here."""

import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
import trl
from huggingface_hub import ModelCard
from peft import PeftConfig, PeftModel, set_peft_model_state_dict
from safetensors.torch import load_file
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

import tiebreak
from tests.tiebreak.hf_cases import llama, tokenizer
from tests.tiebreak.parties import PASSPHRASE, Commands, Once
from tiebreak import ConfigurationError, Run, Step
from tiebreak.api.certification.certificates import verify
from tiebreak.api.signing.keys import new_key
from tiebreak.api.training import finetuning, templates
from tiebreak.api.training.finetuning import FineTuning, finetune, windows
from tiebreak.api.training.rows import Example, read
from tiebreak.api.training.settings import (
    LOSSES,
    TUNING,
    check_unchanged,
    evaluations,
    positions,
    quantization,
    remember,
)
from tiebreak.cli.key import PASSPHRASE_VARIABLE

PLAIN = (
    "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<eos>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
MARKED = (
    "{% for m in messages %}<|{{ m['role'] }}|>{% if m['role'] == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
    "{% if m['role'] == 'assistant' %}{%- generation %}{{ m['content'] }}"
    "<eos>{% endgeneration %}{% else %}{{ m['content'] }}<eos>{% endif %}{% endfor %}"
)
QUESTION, ANSWER = "Which digits of the sum are right?", "All of them, and anyone can check that."
SAID = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": ANSWER}]


def make(folder: Path) -> None:
    """A model in BF16 with its tokenizer, and 10 conversations."""
    made, model = tokenizer(), llama(torch.bfloat16)
    made.chat_template, model.config.max_position_embeddings = MARKED, 1024
    made.save_pretrained(folder / "model")
    model.save_pretrained(folder / "model")
    (folder / "chat.jsonl").write_text("".join(json.dumps({"messages": SAID, "id": n}) + "\n" for n in range(10)))


@pytest.fixture
def here(once: Once, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(PASSPHRASE_VARIABLE, PASSPHRASE)
    return shutil.copytree(once("finetune", make), tmp_path / "here")


def options(here: Path, output: Path) -> list[Any]:
    config = here / "config.yaml"
    given = "data: chat.jsonl\nlora: 2\nsteps: 20\nlength: 16\nbatch: 2\nrate: 1e-2\naccumulation: null\n"
    config.write_text(f"model: {here / 'model'}\n{given}")
    return ["--config", config, "--data", here / "chat.jsonl", "--output", output, "--threads", 1]


@pytest.mark.slow
def test_finetune_turns_conversations_into_a_certified_adapter(
    here: Path, command: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(step: Step) -> None:
        if step.number == 11:
            raise KeyboardInterrupt

    resume = Run.resume

    def interrupted(self: Run, *given: Any, callbacks: list[Any], **more: Any) -> Run:
        return resume(self, *given, callbacks=[*callbacks, stop], **more)

    configuration = json.loads((here / "model" / "config.json").read_text())
    (here / "model" / "config.json").write_text(json.dumps(configuration | {"_name_or_path": "org/base"}))
    (here / "about.toml").write_text('license = "mit"\nlanguage = ["no", "en"]\n')
    with monkeypatch.context() as patch:
        patch.setattr(Run, "resume", interrupted)
        command("finetune", *options(here, here / "out"), code=130)
    assert tiebreak.open_run(here / "out" / "run").step == 10
    found = command.tell("finetune", *options(here, here / "out"), "--about", here / "about.toml")
    run, adapter = tiebreak.open_run(here / "out" / "run"), here / "out" / "adapter"
    assert (found["steps"], found["loss"]) == (20, run.losses[-1])
    assert run.losses[-1] < run.losses[0]
    assert run.audit().agrees
    told = command(*found["verify"].split()[1:])
    assert f"{here / 'model'} is the base that these adapters were trained on" in told
    assert "not as they were signed for" not in told
    assert "README.md (hub) is what this certificate makes of it, but for what it declares" in told
    card = (adapter / "README.md").read_text()
    assert ModelCard(card).data.to_dict() == {
        "base_model": "org/base", "base_model_relation": "adapter", "library_name": "peft", "license": "mit",
        "language": ["no", "en"], "pipeline_tag": "text-generation",
    }  # fmt: skip
    named = ["---\n<!-- tiebreak", found["certificate"], "SHA-256 `", "--base BASE --require 0x", run.job.id.hex()]
    assert [line for line in named if line not in card] == []
    base = LlamaForCausalLM.from_pretrained(here / "model", dtype="auto")
    loaded, ids = PeftModel.from_pretrained(base, adapter), torch.arange(4, 20)[None]
    trained = finetuning._adapted(FineTuning(model=here / "model", data=here / "chat.jsonl", lora=2)).eval()
    trained.load_state_dict(run.state_dict())
    with torch.no_grad():
        assert torch.equal(loaded(ids).logits, trained(ids).logits)
    other = command.tell("finetune", *options(here, here / "other"), "--key", here / "out" / "key.pem")
    assert tiebreak.open_run(other["run"]).root == run.root, "an interruption changes nothing"
    assert command.tell("finetune", *options(here, here / "out"))["certificate"] == found["certificate"]
    verify(adapter, adapter / "certificate.json", base=here / "model")


BETTER, WORSE = [SAID[1]], [{"role": "assistant", "content": "Most of them, which nobody can check, so take my word."}]


@pytest.mark.slow
def test_preferences_are_learnt_as_trl_learns_them(here: Path, command: Commands) -> None:
    rows = [{"input": {"messages": SAID[:1]}, "preferred_output": BETTER, "non_preferred_output": WORSE}] * 3
    rows += [{"prompt": SAID[:1], "chosen": WORSE, "rejected": BETTER}]
    (here / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = ["--lora", 2, "--length", 64, "--epochs", 3, "--rate", "1e-2", "--beta", 0.5, "--dtype", "float32",
                "--schedule", "constant", "--warmup", 0, "--threads", 1]  # fmt: skip
    given = ["--model", here / "model", "--data", here / "pairs.jsonl", "--eval", here / "pairs.jsonl", *settings]
    found = command.tell("finetune", *given, "-o", here / "out")
    run = tiebreak.open_run(found["run"])
    assert (run.steps, run.audit().agrees) == (12, True)
    loss = found["evaluation"]["loss"]
    assert loss < torch.log(torch.tensor(2.0)).item(), "three of four rows prefer the same answer"
    assert "4 pairs of answers" in found["data"][0]
    base = LlamaForCausalLM.from_pretrained(here / "model", dtype=torch.float32)
    adapter = here / "out" / "adapter"
    made = tokenizer()
    made.chat_template = MARKED
    plain = [{"prompt": SAID[:1], "chosen": chosen, "rejected": rejected}
             for chosen, rejected in [(BETTER, WORSE)] * 3 + [(WORSE, BETTER)]]  # fmt: skip
    trl_arguments = trl.DPOConfig(
        output_dir=str(here / "trl"),
        beta=0.5,
        max_length=64,
        per_device_eval_batch_size=1,
        report_to=[],
        use_cpu=True,
        bf16=False,
    )
    data = datasets.Dataset.from_list(plain)
    trainer = trl.DPOTrainer(
        base, args=trl_arguments, train_dataset=data, eval_dataset=data, processing_class=made,
        peft_config=PeftConfig.from_pretrained(adapter),
    )  # fmt: skip
    set_peft_model_state_dict(trainer.model, load_file(adapter / "adapter_model.safetensors"))
    assert trainer.evaluate()["eval_loss"] == pytest.approx(loss, rel=1e-5)


def test_rows_of_preferences_are_checked(tmp_path: Path) -> None:
    row = {"input": {"messages": SAID[:1]}, "preferred_output": BETTER, "non_preferred_output": WORSE}
    for bad, words in (
        ({**row, "input": SAID}, "line 2, input: expected an object with messages"),
        ({**row, "preferred_output": []}, "line 2, prompt: expected a list of messages"),
        ({"prompt": "a", "chosen": "b", "rejected": 3}, "line 2, completion: expected text"),
        ({"messages": SAID}, "line 2: expected preferences in all rows or in none"),
    ):
        (tmp_path / "x.jsonl").write_text(f"{json.dumps(row)}\n{json.dumps(bad)}\n")
        with pytest.raises(ConfigurationError, match=re.escape(words)):
            read(tmp_path / "x.jsonl")


@pytest.mark.slow
def test_finetune_applies_its_settings_and_the_card_loads_the_adapter(
    here: Path, command: Commands, tmp_path: Path
) -> None:
    (here / "held.jsonl").write_text(json.dumps({"messages": SAID}) + "\n" + json.dumps({"text": QUESTION}) + "\n")
    given = ["finetune", "--model", here / "model", "--data", here / "chat.jsonl", "--length", 16, "--threads", 1]
    options = ["--lora", 2, "--alpha", 8, "--targets", "q_proj,v_proj", "--dropout", 0.25, "--dtype", "float32",
               "--epochs", 0.5, "--batch", 4, "--schedule", "linear", "--warmup", 1, "--rate", "1e-2"]  # fmt: skip
    plain = command.tell(*given, *options, "-o", here / "plain")
    measured = ["--evaluation", here / "held.jsonl", "--merge", here / "merged"]
    found = command.tell(*given, *options, *measured, "-o", here / "out", "--key", here / "plain" / "key.pem")
    run = tiebreak.open_run(found["run"])
    assert run.root == tiebreak.open_run(plain["run"]).root, (
        "evaluation draws nothing from training, and dropout not anew"
    )
    settings = FineTuning(model=here / "model", data=here / "chat.jsonl", length=16)
    windowed = windows(settings, read(settings.data))
    assert run.steps == len(windowed.ids) // 2 // 4
    assert found["data"] == windowed.lines
    configuration = json.loads((here / "out" / "adapter" / "adapter_config.json").read_text())
    assert [configuration[name] for name in ("r", "lora_alpha", "lora_dropout")] == [2, 8, 0.25]
    assert sorted(configuration["target_modules"]) == ["q_proj", "v_proj"]
    rates = run._run.data()["learning_rate"]
    assert rates.argmax() == 1
    assert rates[-1].item() == pytest.approx(1e-3)
    held = windows(settings, read(here / "held.jsonl"))
    base = LlamaForCausalLM.from_pretrained(here / "model", dtype=torch.float32)
    model = PeftModel.from_pretrained(base, here / "out" / "adapter")
    with torch.no_grad():
        logits = model(input_ids=held.ids).logits[:, :-1].flatten(0, 1)
        loss = torch.nn.functional.cross_entropy(logits, held.labels[:, 1:].flatten())
        measured_loss = evaluations(run.directory)[run.steps]
        assert [measured_loss, found["evaluation"]["loss"]] == pytest.approx([loss.item()] * 2, rel=1e-5)
        merged = LlamaForCausalLM.from_pretrained(here / "merged", dtype=torch.float32)
        torch.testing.assert_close(merged(held.ids).logits, model(held.ids).logits)
    assert "not certified" in (here / "merged" / "README.md").read_text()
    assert found["merged"].endswith("(not certified)")
    card = (here / "out" / "adapter" / "README.md").read_text()
    assert all(f"- {finetuning._prose(line)}\n" in card for line in found["data"])
    assert f"- evaluation loss after step {run.steps}: {found['evaluation']['loss']:.4f}\n" in card
    (code,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    (here / "out" / "model").symlink_to(here / "model")
    done = subprocess.run([sys.executable, "-c", code], cwd=here / "out", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("<|user|>Hello!<eos>")
    command(*(verify_line := found["verify"].split()[1:]))
    command("verify", here / "merged", *verify_line[2:], code=2)
    adapter, scores = here / "out" / "adapter", here / "out" / "evaluation" / "scores"
    lineage = ["--base", adapter, "--base", here / "model", "--base-certificate", adapter / "certificate.json"]
    told = command("verify", scores, scores / "certificate.json", *lineage)
    assert f"{adapter} is what was scored" in told
    assert f"Pre-registered: job {run.job.id.hex()}, which made {adapter}, has the digest of evaluation.json" in told
    results = ModelCard(card).data.eval_results
    assert {one.metric_type: one.metric_value for one in results} == found["evaluation"]


@pytest.mark.slow
def test_only_tokens_marked_by_the_chat_template_are_learnt(here: Path) -> None:
    settings = FineTuning(model=here / "model", data=here / "chat.jsonl", length=5)
    found = windows(settings, read(settings.data))
    ids, labels = found.ids, found.labels
    own = PreTrainedTokenizerFast.from_pretrained(here / "model")
    once = own.apply_chat_template(SAID, return_dict=True)["input_ids"]
    everything = torch.tensor(once * 10).reshape(-1, 5)
    learnt = torch.tensor([i >= once.index(3) + 1 for i in range(len(once))] * 10).reshape(-1, 5)
    kept = learnt[:, 1:].any(1)
    assert not kept.all(), "a window may lie in a question"
    assert torch.equal(ids, everything[kept])
    assert torch.equal(labels, everything.where(learnt, -100)[kept])
    assert ANSWER in own.decode(labels[labels >= 0][: len(once)])
    assert found.lines[0].startswith("10 rows of ")
    assert f"; {int((~kept).sum())} windows and 0 rows without anything to learn" in found.lines[1]
    assert len(found.lines) == 3, "the template marks answers"
    assert found.lines[2] == "columns not used: id"
    (here / "model" / "chat_template.jinja").write_text(PLAIN)
    plain = windows(settings, read(settings.data))
    assert torch.equal(plain.ids, ids), "what an answer adds to the rendering before it"
    assert torch.equal(plain.labels, labels)
    assert "0 answers that cannot be found" in plain.lines[2]
    (here / "model" / "chat_template.jinja").write_text(PLAIN + "{{ messages | length }}")
    with pytest.raises(ConfigurationError, match="0 of them the assistant's"):
        windows(settings, read(settings.data))
    (here / "chat.jsonl").write_text('{"text": "All of them."}\n\n' * 20)
    text = windows(settings, read(settings.data))
    assert torch.equal(text.ids, text.labels)
    assert own.decode(text.ids[:4].flatten()).startswith("All of them.<eos>All")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"messages": [{"role": "tool", "content": ""}]}', "messages that the tokenizer's chat template.*no tools"),
        ("", "expected at least 1024 tokens"),
    ],
)
def test_data_without_a_training_window_are_refused(here: Path, line: str, said: str) -> None:
    (here / "chat.jsonl").write_text(line + "\n")
    with pytest.raises(ConfigurationError, match=f"chat.jsonl.*{said}"):
        windows(FineTuning(model=here / "model", data=here / "chat.jsonl"), read(here / "chat.jsonl"))


def row(path: Path, **columns: Any) -> Example:
    path.write_text(json.dumps(columns) + "\n")
    (found,) = read(path).examples
    return found


USER, REPLY = ({"role": role, "content": content} for role, content in (("user", "q"), ("assistant", "a")))
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]


def test_each_supported_row_format_is_parsed(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    both = row(path, messages=[USER, REPLY], text="t", tools=json.dumps(TOOLS), id=3)
    assert (both.messages, both.text, both.more) == ([USER, REPLY], "", {"tools": TOOLS})
    assert both.unused == {"text", "id"}
    called = {"role": "assistant", "content": None, "tool_calls": [{"id": "x"}]}
    assert row(path, messages=[USER, called], documents=[{"text": "d"}]).messages == [USER, called]
    said = [{"from": who, "value": value} for who, value in (("human", "q"), ("gpt", "a"))]
    assert row(path, conversations=said, system="s").messages == [{"role": "system", "content": "s"}, USER, REPLY]
    assert row(path, conversations=[USER, REPLY]).messages == [USER, REPLY]
    assert row(path, instruction="q", input="", output="a", text="all").messages == [USER, REPLY]
    assert row(path, instruction="q", input="i", output="a").messages[0]["content"] == "q\n\ni"
    assert (found := row(path, prompt="q: ", completion="a")).text[found.given :] == "a"
    assert row(path, prompt=[USER], completion=[REPLY]).first == 1
    assert row(path, prompt="q", messages=[USER, REPLY]).unused == {"prompt"}
    assert row(path, text="t").messages == []


REFUSED: list[tuple[Any, str]] = [
    ({}, "expected one of messages, .* got no column"),
    ([1], "expected an object"),
    ({"messages": []}, "a list of messages"),
    ({"messages": [{"content": "x"}]}, "message 1: expected an object with role"),
    ({"text": 1}, "text: expected text"),
    ({"prompt": "q", "chosen": "a"}, "got chosen, prompt"),
    ({"messages": [USER], "conversations": [USER]}, "one of messages, conversations, .* got conversations, messages"),
    ({"messages": [{"role": "user"}, REPLY]}, "message 1: expected content"),
    ({"messages": [USER, {"role": "gpt", "content": "a"}]}, "message 2: expected a role of system, .*got 'gpt'"),
    ({"conversations": [{"from": "bing", "value": "a"}]}, "got 'bing'"),
    ({"messages": [USER, REPLY | {"weight": 0}]}, "message 2: expected no weight but 1"),
    ({"messages": [USER, REPLY], "tools": "add"}, "tools: expected JSON"),
    ({"messages": [USER, REPLY], "tools": {"a": 1}}, "tools: expected a list"),
    ({"prompt": "q", "completion": [REPLY]}, "completion: expected text"),
    ({"instruction": "q", "output": "a", "history": [["q", "a"]]}, "no earlier turns in `history`"),
    ({"instruction": "q", "output": 3}, "expected texts"),
]


@pytest.mark.parametrize(("columns", "said"), REFUSED, ids=[said for _, said in REFUSED])
def test_unsupported_rows_are_refused_by_file_and_line(tmp_path: Path, columns: Any, said: str) -> None:
    (tmp_path / "x.jsonl").write_text(json.dumps(columns) + "\n")
    with pytest.raises(ConfigurationError, match=f"x.jsonl, line 1.*{said}"):
        read(tmp_path / "x.jsonl")


@pytest.mark.slow
def test_rows_are_read_from_each_kind_of_source(tmp_path: Path) -> None:
    rows = [{"messages": [USER, REPLY]}, {"messages": [USER, REPLY | {"tool_calls": [{"id": "x"}]}]}]
    (tmp_path / "folder").mkdir()
    for name in ("folder/a.jsonl", "folder/b.jsonl"):
        (tmp_path / name).write_text("".join(json.dumps(one) + "\n" for one in rows))
    (tmp_path / "list.json").write_text(json.dumps(rows))
    made = datasets.Dataset.from_list(rows)
    made.to_parquet(tmp_path / "x.parquet")
    made.save_to_disk(tmp_path / "one")
    datasets.DatasetDict({"train": made, "test": made}).save_to_disk(tmp_path / "splits")
    wanted = [one["messages"] for one in rows]
    for name in ("list.json", "x.parquet", "one", "splits"):
        assert [one.messages for one in read(tmp_path / name).examples] == wanted, name
    assert [one.where for one in read(tmp_path / "folder").examples][2] == f"{tmp_path / 'folder' / 'b.jsonl'}, line 1"
    datasets.DatasetDict({"test": made}).save_to_disk(tmp_path / "other")
    (tmp_path / "bad.parquet").write_bytes(b"PAR1")
    (tmp_path / "none").mkdir()
    for name, said in (("other", "a split named train"), ("bad.parquet", "expected Parquet"), ("none", "a folder of")):
        with pytest.raises(ConfigurationError, match=said):
            read(tmp_path / name)


@pytest.mark.slow
def test_tools_reach_the_prompt_and_only_completions_are_learnt(here: Path) -> None:
    (here / "model" / "chat_template.jinja").write_text(PLAIN)
    own = PreTrainedTokenizerFast.from_pretrained(here / "model")

    def tokens(**columns: Any) -> tuple[str, str]:
        row(here / "x.jsonl", **columns)
        settings = FineTuning(model=here / "model", data=here)
        ((found, _),) = finetuning._tokenized(settings, read(here / "x.jsonl").examples)
        learnt = [token for token, is_learnt in zip(found.ids, found.learnt, strict=True) if is_learnt]
        return own.decode(found.ids), own.decode(learnt)

    question, reply = SAID
    assert tokens(messages=SAID, tools=TOOLS)[0].startswith('[{"type": "function"')
    assert tokens(messages=SAID)[0].startswith("<|user|>")
    for prompt in ([question], [*SAID, question]):
        assert tokens(prompt=prompt, completion=[reply])[1] == f"{ANSWER}<eos>", "no answer of the prompt"
    assert tokens(prompt=f"{QUESTION} ", completion=ANSWER) == (f"{QUESTION} {ANSWER}<eos>", f"{ANSWER}<eos>")
    assert tokens(prompt=QUESTION, completion=f" {ANSWER}")[1] == f" {ANSWER}<eos>"


def test_a_changed_setting_is_refused_and_failures_leave_nothing_behind(here: Path, command: Commands) -> None:
    given = ["finetune", "--model", here / "model", "--data", here / "chat.jsonl", "-o", here / "out", "--length", 16]
    settings = FineTuning(model=here / "model", data=here / "chat.jsonl", length=16)
    (here / "out" / "run").mkdir(parents=True)
    remember(here / "out" / "run" / TUNING, settings.remembered())
    settings.check(here / "out" / "run")
    replace(settings, alpha=32, epochs=1.0, evaluation=settings.data).check(here / "out" / "run")
    for more, said in (
        (["--rate", "1e-3"], "rate 0.0002, got 0.001; go on with what it was made with, or start afresh"),
        (["--epochs", "2"], "epochs 1.0, got 2.0"), (["--targets", "q_proj"], "targets all-linear, got q_proj"),
    ):  # fmt: skip
        assert f"{here / 'out' / 'run'} was made with {said}" in command.error(*given, *more)
    (here / "chat.jsonl").write_text('{"text": "x"}\n')
    assert "was made with data (SHA-256) " in command.error(*given)
    shutil.rmtree(here / "out")
    config = json.loads((here / "model" / "config.json").read_text())
    (here / "model" / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 15}))
    (here / "full").mkdir()
    (here / "full" / "x").touch()
    for more, said in (
        ([], "expected a length of at most 15 tokens, the positions of "),
        (["--epochs", 1, "--steps", 1], "expected --epochs or --steps, got both: 1 and 1"),
        (["--keep", "some"], "expected all, every:M or last"),
        (["--merge", here / "full"], "expected a new or empty folder to merge into"),
    ):
        assert said in command.error(*given, *more)
    for more in ([], ["--evaluation", here / "bad.jsonl"]):
        (here / "model" / "config.json").write_text(json.dumps(config | {"rope_scaling": {"factor": 2.0}}))
        (here / ("bad.jsonl" if more else "chat.jsonl")).write_text("{\n")
        assert "line 1: expected JSON" in command.error(*given, *more)
        (here / "chat.jsonl").write_text('{"text": "x"}\n')
    assert not (here / "out").exists()


LOOPS = "".join(f"{{% for x{depth} in many %}}" for depth in range(10)) + "{% endfor %}" * 10
DOUBLED = "{% set n = namespace(x='xxxxxxxx') %}{% for a in range(99999) %}{% set n.x = n.x ~ n.x %}{% endfor %}"
ENDLESS = "got one that does not; look at the chat template in"


@pytest.mark.slow
def test_an_endless_chat_template_fails_before_anything_is_written(
    here: Path, command: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(templates, "SECONDS", 1)  # instead of a minute of a test's processor
    (here / "model" / "chat_template.jinja").write_text("{% set many = messages[0]['content'] %}" + LOOPS)
    (here / "chat.jsonl").write_text(json.dumps({"messages": [{"role": "user", "content": "x" * 1000}]}) + "\n")
    told = command("finetune", *options(here, here / "out"), code=1)
    assert "chat.jsonl, line 1: expected messages that the tokenizer's chat template takes, got: " in told
    assert f"ends within 1 s of processor time and 4 GiB, {ENDLESS}" in told
    assert not (here / "out").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{{ 9 ** (9 ** 9) }}", ENDLESS),  # one operation, which nothing in its own process could stop
        ("{% macro t(n) %}{% if n %}{{ t(n - 1) }}{{ t(n - 1) }}{% endif %}{% endmacro %}{{ t(60) }}", ENDLESS),
        ("{{ messages[0]['content'] * 10 ** 10 }}", "MemoryError"), (DOUBLED, f"MemoryError|{ENDLESS}"),
    ],
)  # fmt: skip
def test_chat_templates_are_limited_in_time_and_memory(
    here: Path, monkeypatch: pytest.MonkeyPatch, template: str, said: str
) -> None:
    monkeypatch.setattr(templates, "SECONDS", 1)  # as above; copying gigabytes may take as long
    (here / "model" / "chat_template.jinja").write_text(template)
    with templates.ChatTemplate(here / "model") as applied, pytest.raises(ConfigurationError, match=said):
        applied.apply([{"role": "user", "content": "x" * 1000}])


def test_code_in_the_folder_of_a_model_is_never_run(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builtins.input", lambda _: "y")  # to the question whether it may be run
    path, ran = here / "model" / "config.json", here / "ran"
    (here / "model" / "theirs.py").write_text(f"open({str(ran)!r}, 'w')\nclass Theirs: pass\n")
    names = dict.fromkeys(("AutoConfig", "AutoModelForCausalLM", "AutoTokenizer"), "theirs.Theirs")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"auto_map": names, "model_type": "theirs"}))
    settings = FineTuning(model=here / "model", data=here / "chat.jsonl", length=5)
    with pytest.raises(ConfigurationError, match="without code from the folder"):
        finetune(settings.check(here / "run"), here / "run", key=new_key())
    assert not ran.exists()


@pytest.mark.slow
def test_invalid_finetuning_settings_are_refused(here: Path, command: Commands) -> None:
    (here / "empty").mkdir()
    given = ["--data", here / "chat.jsonl", "-o", here / "out"]
    assert "a folder with a model's config.json" in command("finetune", "--model", here / "empty", *given, code=1)
    few = ["--model", here / "model", "--length", 500]
    assert "a batch of at most all 1 examples, got 2" in command("finetune", *few, "--batch", 2, *given, code=1)
    for text, said in (
        ("lora: [", "expected YAML"),
        ("- lora", "expected fields among"),
        ("loras: 3", r"got ['loras']"),
        ("data: &a [x, x]\nmodel: [*a, *a]", "expected one value for data, got a list"),
    ):
        (here / "config.yaml").write_text(text)
        assert said in command("finetune", "--config", here / "config.yaml", code=1)
    (here / "config.yaml").write_text("lora: many")
    assert "'many' is not a valid integer" in command(
        "finetune", "--config", here / "config.yaml", *few, *given, code=1
    )
    assert "Missing option '--model'" in command("finetune", *given, code=1)


def test_names_of_others_are_data_in_a_card() -> None:
    assert finetuning._prose("]]><script>\n# `a`") == r"\]\]\>\<script\> \# \`a\`"


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        "[1]",
        '{"n_positions": 8, "rope_scaling": {"factor": 1e999}}',
        f'{{"step": 1, "loss": 1{"0" * 400}}}',
    ],
)
def test_a_models_configuration_may_be_anything(tmp_path: Path, text: str) -> None:
    assert quantization(tmp_path) == ""  # of a tokenizer alone
    for name in ("config.json", TUNING, LOSSES):
        (tmp_path / name).write_text(text)
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(100_000)  # as py_ecc does for whoever imports it, and Python's parser trusts it
    try:
        assert (positions(tmp_path), quantization(tmp_path), evaluations(tmp_path)) == (0, "", {})
        check_unchanged(tmp_path / TUNING, {"lora": 16})
    finally:
        sys.setrecursionlimit(before)
