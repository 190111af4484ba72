"""Certificates and audit reports as artifacts of the W&B and MLflow runs to which `report_to` logged a training.

Which runs these are stands in the user's own state folder, under a mark of the job and of the path of its run. A run
directory may be a stranger's, and nothing in it says where anything is sent. The trackers' own clients do the logging;
no training, certificate or audit depends on it, so what fails is a warning.
"""

import json
import logging
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from tiebreak.api.machine.environment import own_folder, own_mark
from tiebreak.api.training.reading import open_directory
from tiebreak.engine.data.disk import read_file, write_file
from tiebreak.protocol.commitments.job import Job

_FOLDER: Final = "trackers"
_MAX_BYTES: Final = 1 << 16
_WANDB: Final = ("entity", "project", "run_id", "mode", "root_dir", "base_url")
"""The settings of W&B that say where a run is."""
_LOG: Final = logging.getLogger(__name__)


@contextmanager
def _warning(consequence: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # any: a tracker is somebody else's program
        _LOG.warning("%s: %s: %s", consequence, type(error).__name__, error)


def _path(run: Path, job: Job) -> Path:
    return own_folder() / _FOLDER / f"{own_mark(job.id.hex(), run)}.json"


def remember(run: Path, job: Job, callbacks: Iterable[object]) -> None:
    """Keeps in the user's own state folder which runs of trackers a trainer's callbacks have open."""
    kinds = {kind.__name__ for callback in callbacks for kind in type(callback).__mro__}
    found: dict[str, dict[str, Any]] = {}
    with _warning(f"certificates and audits of {run} will not be logged to its trackers"):
        if "WandbCallback" in kinds and (opened := sys.modules["wandb"].run) and not opened.disabled:
            found["wandb"] = {name: getattr(opened.settings, name) for name in _WANDB}
        if "MLflowCallback" in kinds and (active := (mlflow := sys.modules["mlflow"]).active_run()):
            found["mlflow"] = {"uri": mlflow.get_tracking_uri(), "run_id": active.info.run_id}
        if found:
            path = _path(run, job)
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)  # an address may hold a password
            write_file(path, json.dumps(found).encode())


def log_artifacts(run: str | Path, *files: str | Path, kind: str = "audit") -> list[str]:
    """Logs files as an artifact to the W&B and MLflow runs that the training of `run` reported to; says to which.

    These are known to the user for whom `tiebreak.hf.train` ran, on that machine, while the run is in the same folder;
    elsewhere nothing is logged. `tiebreak certify` and `tiebreak audit` call this. files: paths, of different names.
    kind: W&B's type of the artifact, MLflow's folder. What fails in a tracker is a warning of the log.
    """
    said = list[str]()
    job, known = open_directory(Path(run)).job, own_folder() / _FOLDER
    with _warning(f"expected to read where the training of {run} was logged"):
        if known.is_dir() and (path := _path(Path(run), job)).exists():
            for tracker, of in json.loads(read_file(path, _MAX_BYTES)).items():
                with _warning(f"{kind} not logged to {tracker} run {of['run_id']}"):
                    {"wandb": _to_wandb, "mlflow": _to_mlflow}[tracker](of, [str(file) for file in files], kind)
                    said.append(f"{kind} logged to {tracker} run {of['run_id']}")
    return said


def _to_mlflow(of: dict[str, Any], files: list[str], kind: str) -> None:
    client = import_module("mlflow").MlflowClient(of["uri"])
    for file in files:
        client.log_artifact(of["run_id"], file, kind)


def _to_wandb(of: dict[str, Any], files: list[str], kind: str) -> None:
    """Uses the run if this process has it open; else resumes it, without what W&B notes of a process."""
    wandb = import_module("wandb")
    artifact = wandb.Artifact(f"{kind}-{of['run_id']}", kind)
    for file in files:
        artifact.add_file(file)
    quiet = {"console": "off", "silent": True, "x_primary": False, "init_timeout": 30}
    resume = None if of["mode"] == "offline" else "allow"
    settings = wandb.Settings(**of, **quiet, resume=resume, reinit="create_new")
    is_open = wandb.run is not None and wandb.run.id == of["run_id"]
    with nullcontext(wandb.run) if is_open else wandb.init(settings=settings) as opened:
        opened.log_artifact(artifact)
