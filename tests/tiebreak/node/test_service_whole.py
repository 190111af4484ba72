"""The service as its owner starts it, ordered from by OpenAI's client, killed once, and checked by its customer."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest
from openai import OpenAI

from tests.tiebreak import test_finetune
from tests.tiebreak.parties import PASSPHRASE
from tests.waiting import free_port, until
from tiebreak.cli.key import PASSPHRASE_VARIABLE

pytestmark = pytest.mark.slow

TIEBREAK = [sys.executable, "-m", "tiebreak"]
WAIT = 600
PAUSE = 0.2
"""Seconds between two questions, each of which the service works on."""


@contextmanager
def serving(folder: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """`tiebreak serve`, killed at the end."""
    more = ["--models", "models", "--key", "trainer.pem", "--port", str(port), "--threads", "1"]
    with subprocess.Popen([*TIEBREAK, "serve", "shop", *more], cwd=folder) as process:
        until(lambda: answers(port), WAIT, PAUSE)
        yield process
        process.kill()


def answers(port: int) -> bool:
    try:
        return httpx2.get(f"http://127.0.0.1:{port}/healthz").is_success
    except httpx2.TransportError:
        return False


def test_what_a_killed_service_trained_is_what_was_ordered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PASSPHRASE_VARIABLE, PASSPHRASE)
    (tmp_path / "models").mkdir()
    test_finetune.make(tmp_path)
    (tmp_path / "model").rename(tmp_path / "models" / "tiny")
    row = {
        "input": {"messages": test_finetune.SAID[:1]}, "preferred_output": test_finetune.BETTER,
        "non_preferred_output": test_finetune.WORSE,
    }  # fmt: skip
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({**row, "id": n}) + "\n" for n in range(8)))
    made = subprocess.run(
        [*TIEBREAK, "serve", "shop", "--new-key", "ann", "--json"], cwd=tmp_path, check=True, capture_output=True
    )
    port, secret = free_port(), json.loads(made.stdout)["secret"]
    client = OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key=secret)
    jobs = client.fine_tuning.jobs
    with serving(tmp_path, port):
        file = client.files.create(file=tmp_path / "rows.jsonl", purpose="fine-tune")
        method = {"type": "dpo", "dpo": {"hyperparameters": {"n_epochs": 3}}}
        order = {"model": "tiny", "training_file": file.id, "validation_file": file.id, "method": method}
        job = jobs.create(**order)  # type: ignore[arg-type]
        until(lambda: any(event.type == "metrics" for event in jobs.list_events(job.id)), WAIT, PAUSE)
    with serving(tmp_path, port):
        until(lambda: jobs.retrieve(job.id).status in ("succeeded", "failed"), WAIT, PAUSE)
        (tmp_path / "order.json").write_text(json.dumps(order))
        check = [*TIEBREAK, "receipt", "check", "--service", f"http://127.0.0.1:{port}", "--job", job.id, "--json"]
        check += ["--order", "order.json", "--data", "rows.jsonl", "--base", "models/tiny", "--threads", "1"]
        environment = {**os.environ, "OPENAI_API_KEY": secret}
        told = [event.data["step"] for event in jobs.list_events(job.id) if event.type == "metrics"]  # type: ignore[index]
        found = subprocess.run(check, cwd=tmp_path, env=environment, check=False, capture_output=True)
    document = json.loads(found.stdout)
    assert (document["false"], document["unchecked"], found.returncode) == ([], [], 0)
    assert told == sorted(set(told), reverse=True), "each checkpoint is told once, though the service was killed"
