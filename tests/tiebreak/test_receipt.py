"""`tiebreak receipt check` against services over HTTP: honest ones, and each way to cheat that is known."""

import json
import random
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.parts import slow_except
from tests.tiebreak import fake_service
from tests.tiebreak.fake_service import KEY, Json, Shown, certify, serving, show, train
from tests.tiebreak.hf_cases import llama, texts, tokenizer
from tests.tiebreak.parties import PASSPHRASE, Commands, Once
from tiebreak import api
from tiebreak.api.signing.keys import new_key
from tiebreak.api.training import orders, tasks
from tiebreak.api.training.reading import open_directory
from tiebreak.api.training.runs import open_run
from tiebreak.cli.key import load_key
from tiebreak.cli.key import new_key as new_key_file
from tiebreak.cli.main import run, tiebreak
from tiebreak.cli.options import PASSPHRASE_VARIABLE
from tiebreak.engine.capture.captured import capture_task
from tiebreak.engine.data import identities
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.engine.run.segments import detection_probability, draw_segments
from tiebreak.protocol.commitments.job import Head, SignedHead
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.commitments.records import state_tree
from tiebreak.protocol.tags import Digest

pytestmark = pytest.mark.slow

ORDER: Json = {
    "model": "tiny", "training_file": "file-1", "seed": 5, "suffix": "mine",
    "hyperparameters": {"n_epochs": 4, "batch_size": 1, "learning_rate_multiplier": 50},
}  # fmt: skip
STEPS, SEGMENTS = 32, 11
"""Those that the order takes: segments of three steps, and one of two."""


def rows(count: int = 12) -> list[Json]:
    """Pairs of texts: conversations would start a process for the chat template each time."""
    return [{"prompt": q, "completion": a} for q, a in zip(texts(count, 1), texts(count, 2), strict=True)]


def conversations(count: int = 12) -> list[Json]:
    said = zip(texts(count, 1), texts(count, 2), strict=True)
    return [{"messages": [{"role": "user", "content": q}, {"role": "assistant", "content": a}]} for q, a in said]


def write(path: Path, found: Sequence[Json]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in found))
    return path


def make(folder: Path) -> None:
    """A base, a training file, the trainer's key, and the honest run of the order."""
    (folder / "models").mkdir(parents=True)
    for name, dtype in (("base", torch.float32), ("other", torch.bfloat16)):
        model = llama(dtype)
        model.model.layers, model.config.num_hidden_layers = model.model.layers[:1], 1
        tokenizer().save_pretrained(folder / "models" / name)
        model.save_pretrained(folder / "models" / name)
    write(folder / "chat.jsonl", rows())
    (folder / "order.json").write_text(json.dumps(ORDER))
    train(ORDER, folder / "models" / "base", folder / "chat.jsonl", folder / "out", new_key_file(folder / "key.pem"))


class Customer:
    """One who checks the job of a service by the real command."""

    def __init__(self, here: Path, command: Commands) -> None:
        self.here, self.command = here, command
        self.key: PrivateKey = load_key(here / "key.pem")

    @property
    def honest(self) -> Shown:
        return show(ORDER, self.here / "out", self.key)

    def check(self, shown: Shown, *more: object, code: int = 0, full: bool = False) -> Json:
        """full: with the customer's own files, of which the job is made anew."""
        files = ["--base", self.here / "models" / "base", "--data", self.here / "chat.jsonl", "--threads", 1]
        with serving(shown) as url:
            out, _ = self.command.printed(
                "receipt", "check", "--service", url, "--job", "ftjob-1", "--order", self.here / "order.json",
                "--require", f"0x{self.key.address.hex()}", "--json", *(files if full else ()), *more, code=code,
            )  # fmt: skip
        found: Json = json.loads(out)
        return found

    def convicts(self, shown: Shown, *more: object, full: bool = False) -> str:
        """What the service is convicted of."""
        found = self.check(shown, *more, code=2, full=full)
        assert found["verdict"].startswith("CONVICTED")
        return "; ".join(found["false"])

    def trained(self, name: str, base: str = "base", data: Path | None = None, **changes: Any) -> Shown:
        """What a service shows that trained something else, and says that it is the order."""
        out = self.here / name
        train(ORDER, self.here / "models" / base, data or self.here / "chat.jsonl", out, self.key, **changes)
        return show(ORDER, out, self.key)


@pytest.fixture(scope="session")
def made(once: Once) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(PASSPHRASE_VARIABLE, PASSPHRASE)
        patch.setattr("tiebreak.api.machine.interpreters.qualify", lambda _: None)
        patch.setattr(orders, "CHECKPOINTS", 10)
        patch.setattr(tasks, "checked", lambda task, *_: replace(capture_task(task), check="full"))
        return once("receipt", make)


@pytest.fixture
def customer(made: Path, command: Commands, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Customer:
    monkeypatch.setenv(PASSPHRASE_VARIABLE, PASSPHRASE)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setattr(orders, "CHECKPOINTS", 10)  # so segments of this short job have several steps, as usual ones do
    return Customer(shutil.copytree(made, tmp_path / "here"), command)


# ------------------------------------------------------------------ an honest service


def test_a_whole_receipt_of_an_honest_service(customer: Customer, tmp_path: Path) -> None:
    shown = customer.honest
    found = customer.check(shown, "--output", tmp_path / "receipt", "--seed", "mine", full=True)
    assert (found["false"], found["unchecked"]) == ([], [])
    assert found["ordered"]["hyperparameters"]["n_epochs"] == 4
    assert "11 of 11 checkpoints have an event with a signed head." in found["notes"]
    honest = open_directory(customer.here / "out" / "run")
    drawn = draw_segments(honest.job.checkpoints, 3, b"mine", honest.root())
    assert f"Replayed: segments {', '.join(str(n + 1) for n in drawn)} of {SEGMENTS}" in " ".join(found["notes"])
    assert "Of 1 false segments among 11, such a draw of 3 finds one with probability 0.273" in " ".join(found["notes"])
    files = sorted(path.relative_to(tmp_path / "receipt").as_posix() for path in (tmp_path / "receipt").rglob("*.*"))
    assert set(files) == {*shown.files, "job.json", "events.jsonl"}


def test_what_needs_neither_torch_nor_files_is_checked_without_them(customer: Customer) -> None:
    found = customer.check(customer.honest, code=3)
    assert found["unchecked"] == ["expected --base and --data, to compare the job with the order, got not both"]
    assert len(found["checked"]) == 5


def test_a_stranger_checks_the_published_folder(customer: Customer, tmp_path: Path) -> None:
    customer.check(customer.honest, "--output", tmp_path / "receipt", code=3)
    told, _ = customer.command.printed("receipt", "check", "--folder", tmp_path / "receipt", code=3)
    assert "the service's word: compare it with what you asked for (--order)" in told
    (tmp_path / "receipt" / "adapter" / "adapter_model.safetensors").write_bytes(b"")
    customer.command.printed("receipt", "check", "--folder", tmp_path / "receipt", code=2)


def test_what_is_missing_is_unchecked_and_convicts_nobody(customer: Customer) -> None:
    for name in customer.honest.files:
        shown = customer.honest
        del shown.files[name]
        found = customer.check(shown, code=3)
        is_needed = name.startswith("adapter/") or name in ("metrics.csv", "run/records.bin")
        assert (len(found["unchecked"]) > 1) == (is_needed and name != "adapter/README.md"), (name, found)
    shown = customer.honest
    shown.job["status"] = "running"
    assert "got status 'running'" in customer.check(shown, code=3)["unchecked"][0]
    shown.events.clear()
    assert "0 of 11 checkpoints have an event" in customer.check(shown, code=3)["notes"][1]


@pytest.mark.parametrize("threads", [2, 3])
def test_an_honest_service_with_other_threads_is_not_accused(customer: Customer, threads: int) -> None:
    write(customer.here / "chat.jsonl", conversations())
    assert customer.check(customer.trained(f"threads{threads}", threads=threads), full=True)["false"] == []


@pytest.mark.nightly
def test_two_hundred_honest_services_are_not_accused(customer: Customer, cases: Callable[[], None]) -> None:
    drawn = random.Random(7)
    for number in range(200):
        order = {"model": "tiny", "training_file": "file-1", "seed": drawn.randrange(1 << 31)}
        order["hyperparameters"] = {"n_epochs": drawn.randint(1, 3), "batch_size": drawn.randint(1, 3)}
        write(customer.here / "chat.jsonl", rows(drawn.randint(8, 20)))
        (customer.here / "order.json").write_text(json.dumps(order))
        out = customer.here / f"out{number}"
        train(order, customer.here / "models" / "base", customer.here / "chat.jsonl", out, customer.key)
        found = customer.check(show(order, out, customer.key), full=True)
        assert (found["false"], found["unchecked"]) == ([], [])
        shutil.rmtree(out)
        cases()


# ------------------------------------------------------------------ lies that need no second run


def other_order(shown: Shown, _: Customer) -> None:
    shown.job["method"]["supervised"]["hyperparameters"]["n_epochs"] = 2


def other_model(shown: Shown, _: Customer) -> None:
    shown.job["model"] = "smaller"


def other_suffix(shown: Shown, _: Customer) -> None:
    shown.job["user_provided_suffix"] = "yours"


def made_up_weights(shown: Shown, _: Customer) -> None:
    data = bytearray(shown.files["adapter/adapter_model.safetensors"])
    data[-1] ^= 1
    shown.files["adapter/adapter_model.safetensors"] = bytes(data)


def other_scale(shown: Shown, _: Customer) -> None:
    found = json.loads(shown.files["adapter/adapter_config.json"])
    shown.files["adapter/adapter_config.json"] = json.dumps(found | {"lora_alpha": 1}).encode()


def other_template(shown: Shown, _: Customer) -> None:
    shown.files["adapter/chat_template.jinja"] += b"{{ 'Buy more.' }}"


def made_up_csv(shown: Shown, _: Customer) -> None:
    lines = shown.files["metrics.csv"].decode().splitlines()
    shown.files["metrics.csv"] = "\n".join([*lines[:-1], f"{STEPS},0.01,"]).encode()


def doubled_csv(shown: Shown, _: Customer) -> None:
    shown.files["metrics.csv"] += b"\r\n32,0.01,"


def made_up_event(shown: Shown, _: Customer) -> None:
    shown.events[-1]["data"]["train_loss"] *= 1 + 2**-22


def unsigned_head(shown: Shown, customer: Customer) -> None:
    _resign(shown, customer, new_key(), open_directory(customer.here / "out" / "run").root(9))


def two_histories(shown: Shown, customer: Customer) -> None:
    _resign(shown, customer, customer.key, Digest(bytes(32)))


def head_of_another_step(shown: Shown, _: Customer) -> None:
    shown.events[9]["data"]["head"] = shown.events[8]["data"]["head"]


def _resign(shown: Shown, customer: Customer, key: PrivateKey, root: Digest) -> None:
    of = open_directory(customer.here / "out" / "run")
    head = SignedHead.sign(Head(job_id=of.job.id, count=9, run_root=root), of.agreement.domain, key)
    shown.events[9]["data"]["head"] = head.encode().hex()


def cut_records(shown: Shown, _: Customer) -> None:
    shown.files["run/records.bin"] = shown.files["run/records.bin"][:-76]


def other_records(shown: Shown, _: Customer) -> None:
    data = bytearray(shown.files["run/records.bin"])
    data[20] ^= 1
    shown.files["run/records.bin"] = bytes(data)


LIES: dict[Callable[[Shown, Customer], None], str] = {
    other_order: "the service shows another order: expected hyperparameters {'n_epochs': 4, ",
    other_model: "the service shows another order: expected model 'tiny'",
    other_suffix: "the service shows another order: expected suffix 'mine'",
    made_up_weights: "weights: expected tensors under state root",
    other_scale: "expected the folder of an adapter whose adapter_config.json has SHA-256",
    other_template: "'chat_template.jinja, not as it was signed for'",
    made_up_csv: "metrics.csv: expected the loss of step 32 that was signed",
    doubled_csv: "metrics.csv: expected each step once",
    made_up_event: "events.jsonl, line 1: expected the loss of step 32",
    unsigned_head: "expected a signature",
    two_histories: "the trainer signed two histories",
    head_of_another_step: "expected the head of step 27, got that of checkpoint 8",
    cut_records: "records.bin: expected 11 records, as was signed, got 760 bytes",
    other_records: "records.bin: expected the signed root",
}


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.__name__)
def test_a_lie_in_what_is_shown_convicts(customer: Customer, lie: Callable[[Shown, Customer], None]) -> None:
    shown = customer.honest
    lie(shown, customer)
    assert LIES[lie] in customer.convicts(shown)


def test_another_trainers_certificate_convicts(customer: Customer) -> None:
    shown = customer.honest
    with serving(shown) as url:
        customer.command.printed(
            "receipt", "check", "--service", url, "--job", "j", "--require", "0x" + "11" * 20, code=2
        )


def hostile_names(shown: Shown) -> None:
    shown.files |= dict.fromkeys(
        ["../x", "/x", "run/../../x", "adapter/.x", "a\0b", "run/a/b/c", "\ud800", "x" * 9999], b""
    )


def states_too_large(shown: Shown) -> None:
    shown.sizes |= dict.fromkeys([name for name in shown.files if "checkpoints" in name], 1 << 60)


def wrong_sizes(shown: Shown) -> None:
    names = list(shown.files)
    shown.sizes |= {names[0]: 1, names[1]: 1 << 30, "metrics.csv": -1, "run/job.bin": "12", "run/program.tbp": None}


def no_list(shown: Shown) -> None:
    shown.job["result_files"] = {"a": 1}


def endless_list(shown: Shown) -> None:
    shown.job["result_files"] = ["file-0"] * 2000


def strange_job(shown: Shown) -> None:
    shown.job |= {"method": [], "hyperparameters": "auto", "seed": {}, "status": ["x"] * 9}


def deep_job(shown: Shown) -> None:
    shown.job["metadata"] = json.loads("[" * 90 + "]" * 90)


def strange_events(shown: Shown) -> None:
    shown.events[1]["data"] |= {"step": 1 << 70, "train_loss": "1e999", "head": "zz"}


def strange_heads(shown: Shown) -> None:
    shown.events[1]["data"]["head"] = "00"


def no_events(shown: Shown) -> None:
    shown.events[0] = {"type": 3, "data": [[]], "has_more": True}
    shown.job["trained_tokens"] = "\x1b[2J"


def strange_files(shown: Shown) -> None:
    shown.files |= dict.fromkeys(["adapter/certificate.json", "run/records.bin", "metrics.csv"], b"\xff\x00" * 99)


HOSTILE = (
    hostile_names, states_too_large, wrong_sizes, no_list, endless_list, strange_job, deep_job, strange_events,
    strange_heads, no_events, strange_files,
)  # fmt: skip


@pytest.mark.parametrize("lie", HOSTILE, ids=lambda lie: lie.__name__)
def test_a_hostile_service_can_do_nothing_else(
    customer: Customer, lie: Callable[[Shown], None], tmp_path: Path
) -> None:
    """No traceback, no file elsewhere, and no verdict but convicted or unchecked."""
    shown = customer.honest
    lie(shown)
    before = {*tmp_path.rglob("*")}
    with serving(shown) as url:
        given = ["receipt", "check", "--service", url, "--job", "../x", "--output", tmp_path / "o"]
        arguments = [str(one) for one in given]
        assert run(tiebreak, arguments) in (2, 3)
    assert all(path.is_relative_to(tmp_path / "o") for path in {*tmp_path.rglob("*")} - before)


def test_a_service_that_is_away_or_knows_no_key_is_unchecked(
    customer: Customer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-other")
    assert "expected status 200 of the service, got 404" in customer.check(customer.honest, code=3)["unchecked"][0]
    command = customer.command
    out, _ = command.printed("receipt", "check", "--service", "http://127.0.0.1:9", "--job", "j", code=3)
    assert "expected an answer of the service" in out
    assert "http(s) URL" in command.error("receipt", "check", "--service", "ftp://x", "--job", "j")
    assert "--service with --job, or --folder" in command.error("receipt", "check", "--job", "j")
    (customer.here / "order.json").write_text("[]")
    assert "order.json: expected an object" in command.error(
        "receipt", "check", "--service", "http://127.0.0.1:9", "--job", "j", "--order", customer.here / "order.json"
    )


def test_without_the_extra_the_rest_is_checked(customer: Customer, monkeypatch: pytest.MonkeyPatch) -> None:
    found = api.__getattr__

    def without_peft(name: str) -> object:
        if name == "ordered_jobs":
            raise ModuleNotFoundError(name="peft")
        return found(name)

    monkeypatch.delitem(api.__dict__, "ordered_jobs", raising=False)
    monkeypatch.setattr(api, "__getattr__", without_peft)
    report = customer.check(customer.honest, code=3, full=True)
    assert report["unchecked"] == ["peft is not installed: pip install 'tiebreak[finetune]'"]


def test_other_versions_of_libraries_convict_nobody(customer: Customer, monkeypatch: pytest.MonkeyPatch) -> None:
    write(customer.here / "chat.jsonl", rows()[::-1])
    with monkeypatch.context() as patch:
        patch.setattr("tiebreak.api.machine.environment.describe", lambda: (("torch", "1.0"), ("tiebreak", "0")))
        found = customer.check(customer.honest, code=3, full=True)
    assert "the service says that it used" in found["unchecked"][0]
    assert "(here 1.0)" in found["unchecked"][0]


# ------------------------------------------------------------------ other training than was ordered


def dropped(customer: Customer) -> Path:
    return write(customer.here / "dropped.jsonl", rows()[:-2])


def doubled(customer: Customer) -> Path:
    return write(customer.here / "doubled.jsonl", rows()[:6] * 2)


def reversed_rows(customer: Customer) -> Path:
    return write(customer.here / "reversed.jsonl", rows()[::-1])


def other_file(customer: Customer) -> Path:
    return write(customer.here / "other.jsonl", [{"text": text} for text in texts(20, 9)])


CHEATS: dict[str, tuple[dict[str, Any], str]] = {
    "fewer steps": ({"epochs": 2.0}, "steps"),
    "another base": ({"base": "other"}, "initial_state_root"),
    "another file": ({"data": other_file}, "data_root"),
    "dropped examples": ({"data": dropped}, "data_root"),
    "doubled examples": ({"data": doubled}, "data_root"),
    "another order of examples": ({"data": reversed_rows}, "data_root"),
    "another seed": ({"seed": 6}, "initial_state_root"),
    "lower rank": ({"lora": 4}, "program_root"),
    "another rate": ({"rate": 1e-4}, "data_root"),
    "another scale": ({"alpha": 64}, "program_root"),
}


@pytest.mark.parametrize("name", slow_except(CHEATS, nightly=("another seed", "another rate", "another scale")))
def test_training_something_else_convicts(customer: Customer, name: str) -> None:
    changes, root = CHEATS[name]
    if "data" in changes:
        changes = {"data": changes["data"](customer)}
    said = customer.convicts(customer.trained("cheat", **changes), full=True)
    assert f"another job than the order's was trained: expected {root} " in said or f"; {root}" in said, said
    assert root in said


def test_a_bill_for_more_tokens_or_another_template_convicts(customer: Customer) -> None:
    shown = customer.honest
    shown.job["trained_tokens"] += 1
    assert "got a bill for" in customer.convicts(shown, "--replay", 0, full=True)
    adapter = customer.here / "out" / "adapter"
    (adapter / "chat_template.jinja").write_text("{{ 'Buy more.' }}")
    config = json.loads((adapter / "adapter_config.json").read_text())
    (adapter / "adapter_config.json").write_text(json.dumps(config | {"lora_alpha": 1}))
    certify(customer.here / "out", customer.key)
    said = customer.convicts(customer.honest, "--replay", 0, full=True)
    assert "adapter/adapter_config.json: expected what the order makes of the base" in said
    assert "adapter/chat_template.jinja: expected what the order makes of the base" in said, "though it was signed"


def test_the_adapter_of_another_job_convicts(customer: Customer) -> None:
    other = customer.trained("other", seed=6)
    shown = customer.honest
    shown.files |= {name: data for name, data in other.files.items() if name.startswith("adapter/")}
    said = customer.convicts(shown)
    assert "records.bin: expected the signed root" in said
    mixed = customer.honest
    mixed.files["adapter/adapter_model.safetensors"] = other.files["adapter/adapter_model.safetensors"]
    assert "weights: expected tensors under state root" in customer.convicts(mixed), "a certificate for other weights"
    assert "another job than the order's was trained" in customer.convicts(other, full=True)


def test_a_checkpoint_sold_as_the_end_convicts(customer: Customer) -> None:
    out = customer.here / "out"
    honest = open_run(out / "run")
    half = shutil.copytree(out, customer.here / "half")
    fake_service.save_state(
        ORDER, customer.here / "models" / "base", customer.here / "chat.jsonl", honest, 15, half / "adapter"
    )
    shown = customer.honest
    shown.files["adapter/adapter_model.safetensors"] = (half / "adapter/adapter_model.safetensors").read_bytes()
    assert "weights: expected tensors under state root" in customer.convicts(shown)


# ------------------------------------------------------------------ results that nobody computed


def forge(customer: Customer, first: int, *, last: int) -> Shown:
    """The honest run, trained again from a made-up state of checkpoint `last`, counted from 1.

    The records from checkpoint `first` to the one before it have roots of no state.
    """
    out = shutil.copytree(customer.here / "out", customer.here / "forged")
    made = RunDirectory.open(out / "run")
    records, state, step = made.records(), made.state(15), made.job.last_step(last - 1)
    name = next(name for name in state if name.endswith("lora_B.default.weight"))
    state[name] = state[name] + 1
    (made.path / "records.bin").write_bytes(b"".join(record.encode() for record in records[: first - 1]))
    for path in (*(made.path / "heads").iterdir(), *(made.path / "checkpoints").iterdir()):
        if path.suffix == ".bin" or int(path.stem) >= made.job.first_step(first - 1):
            path.unlink()
    for record in records[first - 1 : last - 1]:
        made.append_record(replace(record, state_root=Digest(bytes([record.step]) * 32)))
    made.write_state(step, state)
    made.append_record(replace(records[last - 1], state_root=state_tree(identities(state)).root))
    head = Head(job_id=made.job.id, count=last, run_root=made.root())
    made.write_head(SignedHead.sign(head, made.agreement.domain, customer.key))
    train(ORDER, customer.here / "models" / "base", customer.here / "chat.jsonl", out, customer.key)
    return show(ORDER, out, customer.key)


def test_one_false_segment_is_found_by_replaying_it(customer: Customer) -> None:
    shown = forge(customer, 6, last=6)
    root = open_directory(customer.here / "forged" / "run").root()
    drawn = {seed: draw_segments(SEGMENTS, 2, seed.encode(), root) for seed in map(str, range(100))}
    hit = next(seed for seed, segments in drawn.items() if 5 in segments)
    miss = next(seed for seed, segments in drawn.items() if not {*segments} & {5, 6, 7, 8, 9})
    said = customer.convicts(shown, "--replay", 2, "--seed", hit, full=True)
    assert "steps 16 to 18 were not computed as was signed" in said
    customer.check(shown, "--replay", 2, "--seed", miss, full=True)
    share = sum(5 in segments for segments in drawn.values()) / len(drawn)
    assert share == pytest.approx(detection_probability(SEGMENTS, 2, 1), abs=0.12)


def test_a_run_that_nobody_computed_is_found_by_any_segment(customer: Customer) -> None:
    shown = forge(customer, 1, last=SEGMENTS)
    for seed in range(2):
        said = customer.convicts(shown, "--replay", 1, "--seed", seed, full=True)
        assert "were not computed as was signed" in said
    assert detection_probability(200, 10, 100) > 0.999, "5 % of the segments, when half of them are false"


def test_a_made_up_loss_between_checkpoints_is_found_by_its_replay(customer: Customer) -> None:
    shown = customer.honest
    lines = shown.files["metrics.csv"].decode().splitlines()
    shown.files["metrics.csv"] = "\n".join([*lines[:5], "5,0.5,", *lines[6:]]).encode()
    assert "metrics.csv, step 5: expected the loss" in customer.convicts(shown, "--replay", SEGMENTS, full=True)


def test_a_false_state_is_passed_over_and_a_link_is_refused(customer: Customer, tmp_path: Path) -> None:
    shown = customer.honest
    for name in [name for name in shown.files if "checkpoints" in name]:
        shown.files[name] = shown.files[name][:-1] + b"\x7f"
    found = customer.check(shown, "--seed", "x", "-o", tmp_path / "receipt", full=True)
    assert found["false"] == [], "the replay began before it"
    (tmp_path / "receipt" / "metrics.csv").unlink()
    (tmp_path / "receipt" / "metrics.csv").symlink_to("/etc/hostname")
    out, _ = customer.command.printed("receipt", "check", "--folder", tmp_path / "receipt", code=2)
    assert "a symbolic link" in out
