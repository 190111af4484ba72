"""Certificates and audit reports in the W&B and MLflow runs to which `report_to` logged a training."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import mlflow
import pytest

import tiebreak
from tests.tiebreak.hf_scripts import plain
from tests.tiebreak.parties import Commands, Parties
from tiebreak.api.training.trackers import remember
from tiebreak.cli.key import load_key

Artifacts = dict[str, dict[str, bytes]]
"""Kind of an artifact -> name of a file -> its bytes, as a tracker's own client reads them."""


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders of this test, so that other tests' audits of the same runs log nothing."""
    for name in ("XDG_STATE_HOME", "WANDB_DIR", "WANDB_DATA_DIR", "WANDB_CACHE_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{tmp_path}/ml")


def in_mlflow(uri: str, run: str, to: Path) -> Artifacts:
    shutil.rmtree(to, ignore_errors=True)
    folder = Path(mlflow.artifacts.download_artifacts(run_id=run, tracking_uri=uri, dst_path=str(to)))
    return {kind.name: {file.name: file.read_bytes() for file in kind.iterdir()} for kind in folder.iterdir()}


def in_wandb(folder: Path) -> Artifacts:
    """What the offline runs in a folder, which must have one id, hold for `wandb sync`."""
    store, proto = map(import_module, ("wandb.sdk.internal.datastore", "wandb.proto.wandb_internal_pb2"))
    found, runs = Artifacts(), set[str]()
    for file in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        scan = store.DataStore()
        scan.open_for_scan(str(file))
        while (data := scan.scan_data()) is not None:
            if (record := proto.Record.FromString(data)).HasField("artifact"):
                files = {one.path: Path(one.local_path).read_bytes() for one in record.artifact.manifest.contents}
                found.setdefault(record.artifact.type, {}).update(files)
                runs.add(record.artifact.run_id)
    assert len(runs) == 1
    return found


def verdicts(found: Artifacts) -> list[str]:
    return sorted(json.loads(report)["verdict"] for report in found["audit"].values())


@contextmanager
def server(folder: Path) -> Iterator[str]:
    """MLflow's own server, with a database."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    stores = ["--backend-store-uri", f"sqlite:///{folder}/ml.db", "--artifacts-destination", f"file://{folder}/ml"]
    arguments = [sys.executable, "-m", "mlflow", "server", *stores, "--port", str(port), "--workers", "1"]
    without_jobs = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    process = subprocess.Popen(arguments, env=without_jobs, start_new_session=True)
    try:
        while process.poll() is None:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_mlflow_gets_certificates_and_audits_only_of_runs_trained_here(
    parties: Parties, tmp_path: Path, command: Commands, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    run, weights, certificate = (tmp_path / name for name in ("run", "model.safetensors", "certificate.json"))
    copy, cheating = parties.trained(tmp_path / "copy"), parties.cheating(tmp_path / "cheating", 5)
    callback = type("MLflowCallback", (), {})()
    with mlflow.start_run() as active:
        for folder in (parties.trained(run), cheating):
            remember(folder, tiebreak.open_run(folder).job, [callback])
        with monkeypatch.context() as full:
            full.setenv("XDG_STATE_HOME", __file__)
            remember(copy, tiebreak.open_run(copy).job, [callback])
    assert f"certificates and audits of {copy} will not be logged" in caplog.text
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{tmp_path}/another")
    command("weights", run, "-o", weights)
    certify = ["certify", "--weights", weights, "--key", parties.path("trainer.pem"), "-o", certificate]
    command(*certify, run, "--for", "receipt")
    for more in (["--sample", 1, "--seed", "1"], ["--forward", "--sample", 1]):
        assert "audit logged to mlflow run" in command.printed("audit", run, *more, "--threads", 1)[1]
        assert command.printed("audit", copy, *more, "--threads", 1)[1].count("logged") == 0, "a copy is a stranger's"
    command("audit", cheating, "-o", tmp_path / "replay", "--threads", 1, code=2)
    found = in_mlflow(f"file:{tmp_path}/ml", active.info.run_id, tmp_path / "read")
    receipt = "tiebreak.receipt.json"
    assert found["certificate"] == {name: (tmp_path / name).read_bytes() for name in (certificate.name, receipt)}
    assert verdicts(found) == ["agrees", "agrees", "fraud"]
    command("verify", weights, tmp_path / "read/certificate" / certificate.name)

    shutil.rmtree(tmp_path / "ml")
    (tmp_path / "ml").touch()
    before = certificate.read_bytes()
    assert "final_state" in command(*certify, run)
    assert certificate.read_bytes() == before
    assert f"certificate not logged to mlflow run {active.info.run_id}: " in caplog.text


@pytest.mark.slow
def test_report_to_runs_hold_certificates_and_audits(
    parties: Parties, tmp_path: Path, command: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MLflow's by its server, where that is installed, W&B's offline; read back by their own clients."""
    key, weights, run = parties.path("trainer.pem"), tmp_path / "saved", tmp_path / "out/run"
    kinds = ["mlflow", *(["wandb"] if find_spec("wandb") else [])]
    with server(tmp_path) if find_spec("flask_cors") else nullcontext(f"file:{tmp_path}/ml") as uri:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
        trainer = plain(tmp_path / "out", max_steps=4, report_to=kinds)
        tiebreak.hf.train(trainer, key=load_key(key))
        trainer.save_model(str(weights))
        assert len(tiebreak.hf.log_artifacts(run, __file__, kind="source")) == len(kinds)
        reported = mlflow.last_active_run().info.run_id
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{tmp_path}/another")
        if "wandb" in kinds:
            wandb = import_module("wandb")
            folder = Path(wandb.run.settings.root_dir)  # that of the first test of this process which used W&B
            wandb.finish()
        names = ("certificate.json", "README.md")
        command("certify", run, "--weights", weights, "--key", key, "-o", weights / names[0], "--for", "hub")
        command("audit", run, "-o", tmp_path / "replay")
        read = in_mlflow(uri, reported, tmp_path / "read")
    assert read["certificate"] == {name: (weights / name).read_bytes() for name in names}
    assert read["source"] == {Path(__file__).name: Path(__file__).read_bytes()}
    assert verdicts(read) == ["agrees"]
    assert "wandb" not in kinds or in_wandb(folder) == read
    for name in names:
        (weights / name).unlink()
    shutil.copytree(tmp_path / "read/certificate", weights, dirs_exist_ok=True)
    command("verify", weights, weights / names[0])
