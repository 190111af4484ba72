"""`tiebreak finetune` on a tiny random Llama, with a tokenizer that is trained here."""

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import tiebreak
from tests.tiebreak.parties import PASSPHRASE, Commands, Once
from tiebreak import ConfigurationError, Step
from tiebreak.api.certification.certificates import verify
from tiebreak.api.signing.keys import new_key
from tiebreak.api.training import finetuning, templates
from tiebreak.api.training.finetuning import FineTuning, finetune, windows
from tiebreak.cli.key import PASSPHRASE_VARIABLE
from tiebreak.protocol.errors import EncodingError

PLAIN = "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<eos>{% endfor %}"
MARKED = (
    "{% for m in messages %}<|{{ m['role'] }}|>{% if m['role'] == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
    "{% if m['role'] == 'assistant' %}{%- generation %}{{ m['content'] }}"
    "<eos>{% endgeneration %}{% else %}{{ m['content'] }}<eos>{% endif %}{% endfor %}"
)
QUESTION, ANSWER = "Which digits of the sum are right?", "All of them, and anyone can check that."
SAID = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": ANSWER}]


def make(folder: Path) -> None:
    """A model in BF16 with its tokenizer, and 40 conversations."""
    tokens = Tokenizer(models.BPE(unk_token=None))
    tokens.pre_tokenizer, tokens.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    special = ["<pad>", "<eos>", "<|user|>", "<|assistant|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=320, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=special
    )
    tokens.train_from_iterator([QUESTION, ANSWER], trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=tokens, pad_token="<pad>", eos_token="<eos>", chat_template=MARKED
    )
    tokenizer.save_pretrained(folder / "model")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=320, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, pad_token_id=0, eos_token_id=1, bos_token_id=None, tie_word_embeddings=True,
    )  # fmt: skip
    LlamaForCausalLM(config).bfloat16().save_pretrained(folder / "model")
    (folder / "chat.jsonl").write_text("".join(json.dumps({"messages": SAID, "id": n}) + "\n" for n in range(40)))


@pytest.fixture
def here(once: Once, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(PASSPHRASE_VARIABLE, PASSPHRASE)
    return shutil.copytree(once("finetune", make), tmp_path / "here")


def options(here: Path, output: Path) -> list[Any]:
    given = {
        "data": "chat.jsonl",
        "lora": 2,
        "steps": 20,
        "length": 16,
        "batch": 2,
        "rate": "1e-2",
        "accumulation": None,
    }
    config = here / "config.yaml"
    config.write_text("".join(f"{name}: {'null' if v is None else v}\n" for name, v in given.items()))
    with config.open("a") as file:
        file.write(f"model: {here / 'model'}\n")
    return ["--config", config, "--data", here / "chat.jsonl", "--output", output, "--threads", 1]


@pytest.mark.slow
def test_from_conversations_to_a_certified_adapter(
    here: Path, command: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(step: Step) -> None:
        if step.number == 11:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(finetuning, "train", partial(tiebreak.train, callbacks=[stop]))
        command("finetune", *options(here, here / "out"), code=130)
    assert tiebreak.open_run(here / "out" / "run").step == 10
    found = command.tell("finetune", *options(here, here / "out"))
    run, adapter = tiebreak.open_run(here / "out" / "run"), here / "out" / "adapter"
    assert (found["steps"], found["loss"]) == (20, run.losses[-1])
    assert run.losses[-1] < run.losses[0]
    assert run.audit().agrees
    told = command(*found["verify"].split()[1:])
    assert f"{here / 'model'} is the base that these adapters were trained on" in told
    assert "not as they were signed for" not in told
    card = (adapter / "README.md").read_text()
    for line in (
        found["certificate"],
        "base_model: model\n",
        "SHA-256 `",
        "--base BASE --require 0x",
        run.job.id.hex(),
    ):
        assert line in card
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


@pytest.mark.slow
def test_only_what_the_template_marks_is_learnt(here: Path) -> None:
    settings = FineTuning(model=here / "model", data=here / "chat.jsonl", length=5)
    ids, labels = windows(settings)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(here / "model")
    once = tokenizer.apply_chat_template(SAID, return_dict=True)["input_ids"]
    everything = torch.tensor(once * 40)[: len(once) * 8 * 5].reshape(-1, 5)
    learnt = torch.tensor([i >= once.index(3) + 1 for i in range(len(once))] * 40)[: everything.numel()].reshape(-1, 5)
    kept = learnt[:, 1:].any(1)
    assert not kept.all(), "a window may lie in a question"
    assert torch.equal(ids, everything[kept])
    assert torch.equal(labels, everything.where(learnt, -100)[kept])
    assert ANSWER in tokenizer.decode(labels[labels >= 0][: len(once)])
    (here / "model" / "chat_template.jinja").write_text(PLAIN)
    ids, labels = windows(settings)
    assert torch.equal(ids, everything)
    assert torch.equal(labels, ids)
    (here / "chat.jsonl").write_text('{"text": "All of them."}\n\n' * 20)
    ids, _ = windows(settings)
    assert tokenizer.decode(ids[:2].flatten()).startswith("All of them.<eos>All")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{}", "line 1: expected a field 'messages'"), ('{"messages": []}', "a list of messages, or a field 'text'"),
        ('{"messages": [{"content": "x"}]}', "a list of messages"), ("[1]", "line 1: expected an object"),
        ('{"text": 1}', "line 1, text: expected text"), ("{", "expected JSON"),
        ('{"messages": [{"role": "tool"}]}', "messages that the tokenizer's chat template takes.*no tools"),
        ("", "expected at least 1024 tokens"),
    ],
)  # fmt: skip
def test_data_that_cannot_be_read_are_named(here: Path, line: str, said: str) -> None:
    (here / "chat.jsonl").write_text(line + "\n")
    with pytest.raises((ConfigurationError, EncodingError), match=said) as caught:
        windows(FineTuning(model=here / "model", data=here / "chat.jsonl"))
    assert "chat.jsonl" in str(caught.value)


LOOPS = "".join(f"{{% for x{depth} in many %}}" for depth in range(10)) + "{% endfor %}" * 10
DOUBLED = "{% set n = namespace(x='xxxxxxxx') %}{% for a in range(99999) %}{% set n.x = n.x ~ n.x %}{% endfor %}"
ENDLESS = "got one that does not; look at the chat template in"


@pytest.mark.slow
def test_a_chat_template_that_does_not_end_is_an_error_before_anything_is_written(
    here: Path, command: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(templates, "SECONDS", 2)  # instead of a minute of a test's processor
    (here / "model" / "chat_template.jinja").write_text("{% set many = messages[0]['content'] %}" + LOOPS)
    (here / "chat.jsonl").write_text(json.dumps({"messages": [{"role": "user", "content": "x" * 1000}]}) + "\n")
    told = command("finetune", *options(here, here / "out"), code=1)
    assert "chat.jsonl, line 1: expected messages that the tokenizer's chat template takes, got: " in told
    assert f"ends within 2 s of processor time and 4 GiB, {ENDLESS}" in told
    assert [path.name for path in (here / "out").iterdir()] == ["key.pem"], "the same command goes on once it is mended"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{{ 9 ** (9 ** 9) }}", ENDLESS),  # one operation, which nothing in its own process could stop
        ("{% macro t(n) %}{% if n %}{{ t(n - 1) }}{{ t(n - 1) }}{% endif %}{% endmacro %}{{ t(60) }}", ENDLESS),
        ("{{ messages[0]['content'] * 10 ** 10 }}", "MemoryError"), (DOUBLED, f"MemoryError|{ENDLESS}"),
    ],
)  # fmt: skip
def test_no_way_to_go_on_or_to_grow_is_without_a_limit(
    here: Path, monkeypatch: pytest.MonkeyPatch, template: str, said: str
) -> None:
    monkeypatch.setattr(templates, "SECONDS", 2)  # as above; copying gigabytes may take as long
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
        finetune(settings, here / "run", key=new_key())
    assert not ran.exists()


def test_settings_that_make_no_job(here: Path, command: Commands) -> None:
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
