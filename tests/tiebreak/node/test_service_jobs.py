"""The scheduler of a fine-tuning service: whole jobs, their failures, and what survives a kill."""

import json
import os
import random
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from openai.types import FileObject, Model
from openai.types.fine_tuning import FineTuningJob, FineTuningJobEvent
from openai.types.fine_tuning.jobs import FineTuningJobCheckpoint

from tests.source_tree import ROOT
from tests.tiebreak.parties import PASSPHRASE, Commands, Once
from tests.waiting import free_port, until
from tiebreak import open_run
from tiebreak.api.certification.certificates import verify, verify_lineage
from tiebreak.api.certification.lineage import registered
from tiebreak.api.provenance.source import metrics_in
from tiebreak.api.signing import keys
from tiebreak.api.training.orders import settings_of
from tiebreak.cli.options import PASSPHRASE_VARIABLE
from tiebreak.engine.data.disk import Folder
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.node.finetuning import scheduler
from tiebreak.node.finetuning.scheduler import JOB, MAX_LOG_BYTES, MAX_WORDS, TRIES, Scheduler, next_job
from tiebreak.node.finetuning.service_store import Json, ServiceStore
from tiebreak.node.log import Log
from tiebreak.protocol.commitments.job import SignedHead
from tiebreak.protocol.errors import StateError

KEY = "a customer"
QUICK = (sys.executable, "-m", "tests.tiebreak.node.quick_worker")
WAIT = 300
"""Seconds after which something has gone wrong, however loaded the machine is."""
ROWS = "".join(
    json.dumps({"messages": [{"role": "user", "content": f"Which digits of {n} are right?"},
                             {"role": "assistant", "content": f"All of {n}, and anyone can check that."}]}) + "\n"
    for n in range(12)
)  # fmt: skip


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks often, because stand-ins end at once, and gives them little time to end."""
    monkeypatch.setattr(scheduler, "POLL_SECONDS", 0.02)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


class Service:
    """A store with a base model, and a scheduler whose processes run a program of the test's."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.store = folder, ServiceStore(folder / "service")
        self.models = folder / "models"
        if not self.models.exists():
            (self.models / "tiny").mkdir(parents=True)
            (self.models / "tiny" / "config.json").write_text("{}")

    def upload(self, rows: str = ROWS, owner: str = KEY) -> str:
        body = {"object": "file", "bytes": len(rows), "filename": "chat.jsonl", "purpose": "fine-tune"}
        made = self.store.add(owner, {**body, "status": "processed"}, amount=len(rows))
        self.store.path(made["id"]).write_text(rows)
        return str(made["id"])

    def order(self, *, owner: str = KEY, epochs: int = 10, **more: Any) -> str:
        hyperparameters = {"n_epochs": epochs, "batch_size": 1, "learning_rate_multiplier": 1.0}
        body = {
            "object": JOB, "status": "queued", "model": "tiny", "seed": 3, "hyperparameters": hyperparameters,
            "organization_id": owner, "result_files": [], "training_file": None, "validation_file": None, **more,
        }  # fmt: skip
        body["training_file"] = body["training_file"] or self.upload(owner=owner)
        return str(self.store.add(owner, body)["id"])

    @contextmanager
    def running(self, *command: str, **more: Any) -> Iterator[Scheduler]:
        made = Scheduler(
            store=self.store, models=self.models, key=self.folder / "key.pem", passphrase=PASSPHRASE,
            notes=Log("service"), command=command, **more,
        )  # fmt: skip
        thread = Thread(target=made.run)
        thread.start()
        try:
            yield made
        finally:
            made.stopping.set()
            thread.join()

    def job(self, job: str) -> Json:
        found = self.store.get(None, JOB, job)
        assert found is not None
        return found

    def ends(self, job: str, *statuses: str) -> Json:
        until(lambda: self.job(job)["status"] in statuses, WAIT)
        until(lambda: statuses == ("paused",) or not (self.folder / "service" / "jobs" / job).exists(), WAIT)
        return self.job(job)

    def of(self, job: str, kind: str) -> list[Json]:
        return [one for _, one in self.store.objects(None, f"{JOB}.{kind}", of=job, newest_first=False)]

    def metrics(self, job: str) -> list[Json]:
        return [one["data"] for one in self.of(job, "event") if one["type"] == "metrics"]

    def files(self, job: str) -> dict[str, Path]:
        found = [self.store.get(KEY, "file", one) for one in self.job(job)["result_files"]]
        return {one["filename"]: self.store.path(one["id"]) for one in found if one is not None}


@pytest.fixture
def service(tmp_path: Path) -> Service:
    return Service(tmp_path)


def stand_in(code: str) -> tuple[str, ...]:
    """A program in the place of the worker. `folder` is the job's, `number` counts its starts from 1."""
    before = (
        "import os, signal, sys, time\nfrom pathlib import Path\nfolder = Path(sys.argv[1])\n"
        "number = len(list(folder.glob('start-*'))) + 1\n(folder / f'start-{number}').touch()\n"
    )
    return sys.executable, "-S", "-c", before + code


def test_turns_go_to_the_key_with_the_fewest_jobs_then_the_longest_unserved() -> None:
    jobs: list[tuple[str, Json]] = [(owner, {"id": n, "status": "queued"}) for n, owner in enumerate("aaabbc")]
    served, running, order = dict[str, int](), dict[str, int](), list[int]()
    for turn in range(1, 7):
        owner, body = jobs.pop(next_job(jobs, running, served))
        served[owner], order = turn, [*order, body["id"]]
    assert order == [0, 3, 5, 1, 4, 2], "one device: the keys take turns, each key's jobs by age"
    jobs = [("a", {"id": 1, "status": "queued"}), ("b", {"id": 2, "status": "queued"})]
    assert next_job(jobs, {"a": 1}, {"b": 9}) == 1, "fewest jobs under way comes before longest ago"
    assert next_job(jobs, {"a": 1, "b": 2}, {"a": 9}) == 0
    jobs.append(("a", {"id": 3, "status": "running"}))
    assert next_job(jobs, {"a": 5}, {"a": 9}) == 2, "what was under way when the service died goes on first"


@pytest.mark.slow
def test_one_key_with_many_jobs_does_not_keep_another_waiting(service: Service) -> None:
    many = [service.order(owner="many") for _ in range(4)]
    one = service.order(owner="one")
    began = service.folder / "began"
    with service.running(*stand_in(f"open({str(began)!r}, 'a').write(folder.name + ' ')\nsys.exit('Error: no')")):
        for job in (*many, one):
            service.ends(job, "failed")
    assert began.read_text().split() == [many[0], one, *many[1:]]


def test_errors_of_finetune_fail_the_job_in_words_without_paths(service: Service) -> None:
    job, other = service.order(), service.order()
    line = "f'ConfigurationError: {folder}/data.jsonl, line 3: expected JSON, got x; see /etc/x/y.toml ' + 'y' * 2000"
    with service.running(*stand_in(f"print('a warning', file=sys.stderr)\nsys.exit({line})"), devices=("cpu", "cpu")):
        error = service.ends(job, "failed")["error"]
        service.ends(other, "failed")
    assert error["message"].startswith("training_file, line 3: expected JSON, got x; see (a path of the service)")
    assert len(error["message"]) == MAX_WORDS
    assert (error["code"], error["param"]) == ("invalid_training_file", "training_file")
    (event,) = [one for one in service.of(job, "event") if one["level"] == "error"]
    assert error["message"] in event["message"]
    assert str(service.folder) not in json.dumps([service.job(job), service.of(job, "event")])
    FineTuningJob.model_validate(service.job(job), strict=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "how"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "by signal 9; probably too little memory for this model"),
        ("raise ValueError('a secret')", "with code 1"),
        ("sys.exit(137)", "with code 137"),
    ],
)
def test_processes_that_die_are_started_again_until_they_make_no_progress(
    service: Service, code: str, how: str
) -> None:
    job, other = service.order(), service.order()
    with service.running(*stand_in(f"if number < {TRIES}: print(number)\n{code}")):
        error = service.ends(job, "failed")["error"]
        service.ends(other, "failed")
    assert error["message"] == f"the training was ended {TRIES} times without a new checkpoint, last {how}"
    assert [one["level"] for one in service.of(job, "event")] == ["info", *["warn"] * (TRIES - 1), "error"]
    assert "secret" not in json.dumps(service.of(job, "event"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "line",
    [
        "StorageError: cannot write x: [Errno 28] No space left on device",
        "Disk quota exceeded: x; free space or choose another folder",
        "Traceback (most recent call last):\\n  x\\nSafetensorError: I/O error: No space left on device (os error 28)",
    ],
)
def test_full_disk_pauses_the_job_which_can_be_resumed(service: Service, line: str) -> None:
    job = service.order()
    with service.running(*stand_in(f"sys.exit('{line}' if number == 1 else 'Error: the second time')")):
        service.ends(job, "paused")
        assert "error" not in service.job(job)
        until(lambda: "Nothing is lost" in service.of(job, "event")[-1]["message"], WAIT)
        service.store.change(job, {"paused"}, status="queued")
        assert service.ends(job, "failed")["error"]["message"] == "the second time"


def test_missing_models_and_files_fail_the_job_and_name_the_parameter(service: Service) -> None:
    (service.models / "link").symlink_to(service.models / "tiny")
    (service.folder / "config.json").write_text("{}")
    for name, content in (("list", "[]"), ("garbage", "{")):
        (service.models / name).mkdir()
        (service.models / name / "config.json").write_text(content)
    gone, foreign = service.upload(), service.upload(owner="another customer")
    service.store.remove(gone)
    jobs = {
        service.order(model="gone"): ("invalid_model", "model"),
        service.order(model="link"): ("invalid_model", "model"),
        service.order(model=".."): ("invalid_model", "model"),
        service.order(model="list"): ("job_failed", None),
        service.order(model="garbage"): ("job_failed", None),
        service.order(training_file=gone): ("invalid_training_file", "training_file"),
        service.order(training_file=foreign): ("invalid_training_file", "training_file"),
        service.order(training_file="../../key.pem"): ("invalid_training_file", "training_file"),
        service.order(validation_file=gone): ("invalid_validation_file", "validation_file"),
        service.order(): ("job_failed", None),
    }
    with service.running(*stand_in("sys.exit('Error: this one was started')")):
        for job, expected in jobs.items():
            error = service.ends(job, "failed")["error"]
            assert (error["code"], error["param"]) == expected
            assert str(service.folder) not in error["message"]


@pytest.mark.slow
def test_damaged_run_folder_fails_its_job_alone(service: Service) -> None:
    job, other = service.order(owner="a"), service.order(owner="b")
    code = "(folder / 'run').mkdir()\n(folder / 'run' / 'finetune.json').touch()\n(folder / 'run' / 'job.bin').touch()"
    with service.running(*stand_in(code)):
        for one in (job, other):
            error = service.ends(one, "failed")["error"]
            assert error["code"] == "job_failed"
            assert str(service.folder) not in error["message"]


@pytest.mark.slow
def test_cancelled_and_paused_jobs_end_their_process(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "GRACE_SECONDS", 0.2)
    job, deaf = service.order(), service.order()
    wait = (
        "if number == 1:\n    signal.signal(signal.SIGINT, {})\n    (folder / 'ready').touch()\n    time.sleep(1000)\n"
    )
    polite, rude = "lambda *_: sys.exit(130)", "signal.SIG_IGN"
    folder = service.folder / "service" / "jobs"
    with service.running(*stand_in(wait.format(polite) + "sys.exit('Error: again')")):
        until((folder / job / "ready").exists, WAIT)
        service.store.change(job, {"running"}, status="paused")
        until((folder / deaf / "ready").exists, WAIT)
        assert (folder / job).exists(), "a paused job keeps what it has"
        service.store.change(deaf, {"running"}, status="cancelled")
        service.ends(deaf, "cancelled")
        service.store.change(job, {"paused"}, status="queued")
        assert service.ends(job, "failed")["error"]["message"] == "again"
    job = service.order()
    with service.running(*stand_in(wait.format(rude))):
        until((folder / job / "ready").exists, WAIT)
        service.store.change(job, {"running"}, status="cancelled")
        service.ends(job, "cancelled")
    assert service.of(job, "event")[-1]["level"] == "info", "an interruption is no failure"


@pytest.mark.slow
def test_what_a_process_complains_of_takes_little_room(service: Service) -> None:
    job, log = service.order(), service.folder / "service" / "jobs"
    with service.running(*stand_in(f"while True: sys.stderr.write('x' * {MAX_LOG_BYTES // 4}), time.sleep(0.001)")):
        until(lambda: service.job(job)["status"] == "running" and (log / job / "log").exists(), WAIT)
        sizes = []
        for _ in range(50):
            sizes.append((log / job / "log").stat().st_size)
            time.sleep(0.02)
        service.store.change(job, {"running"}, status="cancelled")
        service.ends(job, "cancelled")
    assert any(after < before for before, after in pairwise(sizes))


@pytest.mark.slow
def test_stopped_service_leaves_its_jobs_to_the_next_one(service: Service) -> None:
    job, later = service.order(), service.order()
    with service.running(*stand_in("time.sleep(1000)")):
        until(lambda: service.job(job)["status"] == "running", WAIT)
    assert (service.job(job)["status"], service.job(later)["status"]) == ("running", "queued")
    orphan = service.folder / "service" / "jobs" / "ftjob-of-nobody"
    orphan.mkdir()
    with service.running(*stand_in("sys.exit('Error: over')")):
        service.ends(job, "failed")
        service.ends(later, "failed")
    assert not orphan.exists()
    assert len(service.of(job, "event")) == 2, "it has begun once"


@pytest.mark.slow
def test_process_of_a_killed_service_is_waited_for(service: Service) -> None:
    """Two processes in one folder would take each other's files away."""
    job = service.order()
    folder = service.folder / "service" / "jobs" / job
    folder.mkdir(parents=True)
    held = "import sys, time; from pathlib import Path; from tiebreak.engine.data.disk import Folder\n"
    held += "with Folder(Path(sys.argv[1]), to_write=True) as f, f.lock(): print('held', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", held, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as old:
        assert old.stdout is not None
        assert old.stdin is not None
        assert old.stdout.readline() == "held\n"
        with service.running(*stand_in("sys.exit('Error: it was begun')")):
            time.sleep(0.3)
            assert service.job(job)["status"] == "queued"
            old.stdin.close()
            assert service.ends(job, "failed")["error"]["message"] == "it was begun"


def test_keys_are_made_limited_and_withdrawn_by_name(tmp_path: Path, command: Commands) -> None:
    folder = tmp_path / "service"
    made = command.tell("serve", folder, "--new-key", "alice", "--limit", "jobs=3")
    store = ServiceStore(folder)
    (key,) = store.keys(secret=made["secret"])
    assert (made["name"], key.limits.jobs) == ("alice", 3)
    store.add("alice", {"object": "file"}, amount=7)
    command("serve", folder, "--limit-key", "alice", "--limit", "tokens=5", "--limit", "bytes=9")
    (shown,) = command.tell("serve", folder, "--list-keys")
    assert {
        "name": "alice",
        "jobs": 3,
        "tokens": 5,
        "bytes": 9,
        "bytes used": 7,
        "withdrawn": False,
    }.items() <= shown.items()
    (shown,) = command.tell("serve", folder, "--withdraw-key", "alice")
    assert shown["withdrawn"]
    (shown,) = command.tell("serve", folder, "--limit-key", "alice")
    assert shown["withdrawn"], "new limits do not bring a key back"
    assert "of which there is a key" in command.error("serve", folder, "--new-key", "alice")
    assert "expected the name of a key, got 'bob'" in command.error("serve", folder, "--withdraw-key", "bob")
    assert "expected NAME=NUMBER" in command.error("serve", folder, "--new-key", "bob", "--limit", "jobs=many")
    assert "expected --models" in command.error("serve", folder)


@pytest.mark.slow
def test_second_service_in_a_folder_is_refused(
    service: Service, command: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PASSPHRASE_VARIABLE, PASSPHRASE)
    with Folder(service.store.folder, to_write=True) as folder, folder.lock():
        given = ["serve", service.store.folder, "--models", service.models, "--port", free_port()]
        assert "another process is working in this folder" in command(*given, code=1)
    assert stat.S_IMODE((service.store.folder / "key.pem").stat().st_mode) == 0o600


def make_service(folder: Path) -> None:
    """A base model in BF16 and a key; then a run of the job's order by hand."""
    import torch  # noqa: PLC0415  # the tests with stand-ins need none

    from tests.tiebreak.hf_cases import llama, tokenizer  # noqa: PLC0415

    model, words = llama(torch.bfloat16), tokenizer()
    model.config.max_position_embeddings = 64
    model.save_pretrained(folder / "models" / "tiny")
    words.save_pretrained(folder / "models" / "tiny")
    keys.save_key(keys.new_key(), folder / "key.pem", PASSPHRASE)


@pytest.fixture
def real(once: Once, tmp_path: Path) -> Service:
    """A service with a model that can be trained."""
    made = once("service", make_service)
    (tmp_path / "models").symlink_to(made / "models")
    (tmp_path / "key.pem").symlink_to(made / "key.pem")
    return Service(tmp_path)


def is_free(folder: Path) -> bool:
    """Whether no process trains in the folder of a job."""
    with suppress(StateError), Folder(folder, to_write=True) as files, files.lock():
        return True
    return False


def by_hand(service: Service, job: str, command: Commands, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The run that a customer makes of the same order."""
    data = service.folder / "chat.jsonl"
    data.write_text(ROWS)
    settings = asdict(settings_of(service.job(job), service.models / "tiny", data))
    given = [word for name, value in settings.items() if value is not None for word in (f"--{name}", value)]
    monkeypatch.setenv(PASSPHRASE_VARIABLE, PASSPHRASE)
    key = ["--key", service.folder / "key.pem"]
    return open_run(command.tell("finetune", *given, *key, "--output", service.folder / "hand", "--threads", 1)["run"])


def assert_complete(service: Service, job: str, root: str) -> None:
    """The job has succeeded with this run: each checkpoint was reported once, under a head, and all files are there."""
    found, metrics, checkpoints = service.job(job), service.metrics(job), service.of(job, "checkpoint")
    assert found["status"] == "succeeded"
    files = service.files(job)
    assert len(files) == len(found["result_files"])
    assert {"adapter/adapter_model.safetensors", "adapter/certificate.json", "metrics.csv", "run/job.bin"} <= {*files}
    assert not {"run/data.safetensors", "run/checkpoints/000000000000.safetensors"} & {*files}
    heads = [SignedHead.decode(bytes.fromhex(one["head"])).head for one in metrics]
    assert [head.count for head in heads] == [*range(1, len(metrics) + 1)]
    assert heads[-1].run_root.hex() == root
    assert [one["step_number"] for one in checkpoints] == [one["step"] for one in metrics]
    steps = metrics[-1]["total_steps"]
    assert metrics[-1]["step"] == steps
    lines = files["metrics.csv"].read_text().splitlines()
    losses = dict(line.split(",")[:2] for line in lines[1:])
    assert [*losses] == [str(step) for step in range(1, steps + 1)]
    assert [float(losses[str(one["step"])]) for one in metrics] == [one["train_loss"] for one in metrics]
    assert found["trained_tokens"] == service.store.used(KEY, JOB) > 0
    assert not (service.folder / "service" / "jobs" / job).exists()
    assert len(service.store.objects(KEY, "model")) == 1


@pytest.mark.slow
def test_job_succeeds_with_the_run_that_its_order_makes_by_hand(
    real: Service, command: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, file = real.upload(), real.upload()
    job = real.order(validation_file=held, training_file=file, user_provided_suffix="mine", epochs=20)
    with real.running(*QUICK, threads=1):
        until(lambda: real.metrics(job) != [], WAIT)
        real.store.remove(file)
        assert real.store.change(job, {"running"}, status="paused") is not None
        until(lambda: is_free(real.folder / "service" / "jobs" / job), WAIT)
        assert 0 < len(real.metrics(job)) < 10, "the process ended before the training did"
        assert real.store.used(KEY, JOB) > 0, "tokens count as they are trained"
        real.store.change(job, {"paused"}, status="queued")
        real.ends(job, "succeeded", "failed")
    run = by_hand(real, job, command, monkeypatch)
    assert_complete(real, job, run.root)
    measured = [one["step"] for one in real.metrics(job) if one.get("full_valid_loss", 0) > 0]
    assert 10 <= len(measured) < 20
    assert measured[-1] == run.steps
    body, files = real.job(job), real.files(job)
    assert body["trained_tokens"] == run.steps * 64
    adapter, scores = real.folder / "adapter", real.folder / "evaluation"
    for folder in (adapter, scores):
        folder.mkdir()
    for name, path in files.items():
        if name.startswith(("adapter/", "evaluation/")):
            (real.folder / name).write_bytes(path.read_bytes())
    verify(adapter, adapter / "certificate.json", base=real.models / "tiny")
    given = [adapter, real.models / "tiny"], [adapter / "certificate.json"]
    links = verify_lineage(scores, scores / "certificate.json", *given)
    assert registered(links), "the job named its evaluation"
    assert metrics_in(scores)["loss"] == pytest.approx(real.metrics(job)[-1]["full_valid_loss"], rel=1e-5)
    downloaded = real.folder / "hand"
    for name, path in files.items():  # over the customer's own program, data and first state
        if name.startswith("run/") and name != "run/job.bin":
            (downloaded / name).write_bytes(path.read_bytes())
    assert RunDirectory.open(downloaded / "run").root().hex() == run.root
    places = [str(real.folder.resolve()).encode(), str(real.models.resolve()).encode(), str(ROOT).encode()]
    assert [name for name, path in files.items() for place in places if place in path.read_bytes()] == []
    FineTuningJob.model_validate(body, strict=True)
    for one in real.of(job, "event"):
        FineTuningJobEvent.model_validate(one, strict=True)
    for one in real.of(job, "checkpoint"):
        FineTuningJobCheckpoint.model_validate(one, strict=True)
    for id_ in body["result_files"]:
        FileObject.model_validate(found := real.store.get(KEY, "file", id_), strict=True)
        assert found is not None
        assert found["bytes"] == real.store.path(id_).stat().st_size
    (model,) = [one for _, one in real.store.objects(KEY, "model")]
    Model.model_validate(model, strict=True)
    assert model["id"] == body["fine_tuned_model"] == f"ft:tiny::mine:{job[-8:]}"


@pytest.mark.slow
def test_server_ends_by_sigterm_and_leaves_no_process(service: Service) -> None:
    """As under systemd: the process of the job under way is ended before the server is, and the exit code is 0."""
    job, ready = service.order(), service.folder / "service" / "jobs"
    keys.save_key(keys.new_key(), service.folder / "key.pem", PASSPHRASE)
    code = RUN.format(command=stand_in("(folder / str(os.getpid())).touch()\ntime.sleep(1000)"))
    server = subprocess.Popen([sys.executable, "-c", code, str(service.folder), str(free_port())])
    until(lambda: any(one.name.isdigit() for one in (ready / job).glob("*")), WAIT)
    (child,) = [int(one.name) for one in (ready / job).glob("*") if one.name.isdigit()]
    server.terminate()
    assert server.wait(WAIT) == 0
    assert not Path(f"/proc/{child}").exists()
    assert service.job(job)["status"] == "running"


RUN = """
import sys
from pathlib import Path
from tests.tiebreak.node.test_service_jobs import PASSPHRASE, Service
from tiebreak.node.finetuning import process
from tiebreak.node.log import Log
own = Service(Path(sys.argv[1]))
made = process.Scheduler(store=own.store, models=own.models, key=own.folder / "key.pem", passphrase=PASSPHRASE,
                         notes=Log("service"), command={command!r})
process.run_service(made, trainer="0x", host="127.0.0.1", port=int(sys.argv[2]))
"""


SERVE = """
import sys
from pathlib import Path
from tests.tiebreak.node.test_service_jobs import QUICK, Service
folder = Path(sys.argv[1])
with Service(folder).running(*QUICK, threads=1):
    sys.stdin.read()
"""


def begin(service: Service) -> subprocess.Popen[bytes]:
    with (service.folder / "service.log").open("ab") as log:
        return subprocess.Popen([sys.executable, "-c", SERVE, str(service.folder)], stdin=subprocess.PIPE, stderr=log)


def ends_with_its_service(process: subprocess.Popen[bytes]) -> Callable[[], bool]:
    """Whether no process that this one began is left."""
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, check=False)
    children = [int(one) for one in listed.stdout.split()]

    def is_gone() -> bool:
        return not any(Path(f"/proc/{child}").exists() for child in children)

    return is_gone


def killed_at(service: Service, moments: int, seed: int) -> str:
    """A job's id, after a service that was killed so often, each time somewhere else, has ended it."""
    drawn, job = random.Random(seed), service.order(epochs=30)
    paused = drawn.randrange(moments)
    for moment in range(moments):
        process, wanted = begin(service), drawn.randrange(10)
        until(lambda: len(service.metrics(job)) >= wanted or service.job(job)["status"] == "succeeded", WAIT)  # noqa: B023
        time.sleep(drawn.uniform(0, 2))
        if moment == paused:
            service.store.change(job, {"running"}, status="paused")
        is_gone = ends_with_its_service(process)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        until(is_gone, 60)
        service.store.change(job, {"paused"}, status="queued")
    process = begin(service)
    service.ends(job, "succeeded", "failed")
    process.communicate()
    return job


@pytest.mark.nightly
def test_killed_service_goes_on_to_the_same_root_and_says_nothing_twice(
    real: Service, command: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = killed_at(real, 3, 1)
    assert_complete(real, job, by_hand(real, job, command, monkeypatch).root)


@pytest.mark.nightly
def test_service_killed_at_twenty_moments_goes_on_to_the_same_root(
    real: Service, command: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = killed_at(real, 20, 2)
    assert_complete(real, job, by_hand(real, job, command, monkeypatch).root)
