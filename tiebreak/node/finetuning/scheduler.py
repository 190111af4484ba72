"""The jobs of a fine-tuning service: which one is next, the processes that train them, and how each one ends.

A job's folder, `jobs/ID`, holds its files (hard links), the configuration of `tiebreak finetune`, and what that makes.
It is removed when the job is over; the files that the customer gets stay. The service may be killed at any instant.
What it has said of a job is in the store, under ids that follow from the job, so it says nothing twice; a job that the
store calls running and that has no process goes on from its last checkpoint, before all that are queued.
"""

import errno
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from threading import Event
from typing import Any, Final

from sqlalchemy.exc import SQLAlchemyError

from tiebreak.api.training.orders import settings_of
from tiebreak.api.training.reading import open_directory
from tiebreak.api.training.settings import TUNING, FineTuning, evaluations
from tiebreak.engine.data.disk import Folder, StorageError, make_folder, write_file
from tiebreak.engine.run import directory
from tiebreak.node.finetuning.service_store import JOB, PREFIXES, UNFINISHED, Json, ServiceStore
from tiebreak.node.log import Log
from tiebreak.node.parts import parts
from tiebreak.protocol.errors import ConfigurationError, StateError, TiebreakError, VerificationError, printable
from tiebreak.protocol.numbers.float32 import to_float

COMMAND: Final = (sys.executable, "-m", "tiebreak.node.finetuning.worker")
KEEP: Final = "all"
"""The checkpoints whose states are kept, and given to the customer, who can replay what lies between two of them."""
FILES: Final = {"training_file": "data.jsonl", "validation_file": "validation.jsonl"}
"""Field of a job that names a file -> the file's name in the folder of the job."""
UNSENT: Final = (directory.DATA, f"{directory.STATES}/{directory.state_name(0)}", directory.ORIGINS)
"""The parts of a run that its customer makes from the order, and what names the service's source files."""
TRIES: Final = 3
"""The number of times in a row that a job's process may die without a new checkpoint."""
POLL_SECONDS: Final = 0.5
GRACE_SECONDS: Final = 30.0
"""The time that a process has to finish the checkpoint in flight before it is killed."""
MAX_LOG_BYTES: Final = 1 << 20
MAX_WORDS: Final = 1000
FULL: Final = (errno.ENOSPC, errno.EDQUOT)


def next_job(waiting: Sequence[tuple[str, Json]], running: Mapping[str, int], turns: Mapping[str, int]) -> int:
    """The place of the job whose turn it is, among jobs with their keys, the oldest first.

    A job that was under way goes on first. Then comes the key with the fewest jobs under way, of these the one that was
    served longest ago, and of a key its oldest job. turns: the number of the turn in which a key was last served.
    """
    ranks = [(job["status"] != "running", running.get(key, 0), turns.get(key, 0)) for key, job in waiting]
    return ranks.index(min(ranks))


@dataclass(kw_only=True)
class Scheduler:
    """Trains the jobs of a store, one on each device at a time.

    models: the folder of folders of base models. key: the file of the trainer's key. command: see `worker`.
    """

    store: ServiceStore
    models: Path
    key: Path
    passphrase: str
    notes: Log
    devices: Sequence[str] = ("cpu",)
    threads: int | None = None
    command: Sequence[str] = COMMAND
    stopping: Event = field(default_factory=Event)

    def run(self) -> None:
        """Trains until `stopping` is set. Jobs that are under way then go on when this is called again."""
        make_folder(self.store.folder / "jobs")
        for folder in (self.store.folder / "jobs").iterdir():
            self.clear(folder.name)
        free, running, turns = list(self.devices), dict[str, str](), dict[str, int]()

        def train(owner: str, body: Json, device: str) -> None:
            try:
                JobTraining(self, owner, body, device).run()
            finally:
                del running[body["id"]]
                free.append(device)

        with ThreadPoolExecutor(len(self.devices)) as pool:
            while not self.stopping.wait(POLL_SECONDS):
                with suppress(SQLAlchemyError):  # a database that is away comes back
                    found = self.store.objects(None, JOB, statuses=UNFINISHED[:2], newest_first=False)
                    waiting = [one for one in found if one[1]["id"] not in running]
                    while free and waiting:
                        owner, body = waiting.pop(next_job(waiting, Counter(running.values()), turns))
                        running[body["id"]], turns[owner] = owner, 1 + max(turns.values(), default=0)
                        pool.submit(train, owner, body, free.pop(0))

    def clear(self, job: str) -> None:
        """Removes the folder of a job that is over."""
        if (self.store.get(None, JOB, job) or {}).get("status") not in UNFINISHED:
            shutil.rmtree(self.store.folder / "jobs" / job, ignore_errors=True)


class JobTraining:
    """A job under way: its process, what is said of it, and its end."""

    def __init__(self, service: Scheduler, owner: str, body: Json, device: str) -> None:
        self._service, self._store, self._owner, self._body = service, service.store, owner, body
        self._id, self._device, self._folder = body["id"], device, service.store.folder.resolve() / "jobs" / body["id"]
        self._run: directory.RunDirectory | None = None
        self._told = 0
        """The number of checkpoints that the store has."""
        self._model = f"ft:{body['model']}::{body.get('user_provided_suffix') or ''}:{self._id[-8:]}"

    def run(self) -> None:
        """Trains until the job is over, or is not to be trained any more. What is wrong with a job ends it alone."""
        try:
            self._train()
        except Exception as error:
            self._note(error)
            if isinstance(error, StorageError) or getattr(error, "errno", 0) in FULL:
                words = "The service's disk is full, so the job is paused. Nothing is lost: resume it later."
                self._end("warn", words, status="paused")
            elif not isinstance(error, SQLAlchemyError):  # no fault of the job, which is begun again
                self._fail(str(error) if isinstance(error, TiebreakError) else "")
        self._service.clear(self._id)

    def _train(self) -> None:
        make_folder(self._folder)
        try:
            with Folder(self._folder, to_write=True) as files, files.lock():
                settings = self._prepared()
        except StateError:  # the process that a killed service began is about to end
            return
        if self._store.change(self._id, UNFINISHED[:2], status="running") is not None:
            self._say("info", "The training has started.", name="start")
        tries = 0
        while self._is_wanted():
            before, code = self._told, self._attempt(settings)
            *above, line = (self._folder / "log").read_text("utf-8", "replace").strip().split("\n")
            if not self._is_wanted():
                return
            if code == 0:
                self._finish(settings)
                return
            if any(os.strerror(number) in line for number in FULL):
                raise StorageError(line)
            if code in (1, 2) and line and not any(one.startswith("Traceback") for one in above):
                raise ConfigurationError(line.partition(": ")[2] or line)
            tries = 1 if self._told > before else tries + 1
            how = f"by signal {-code}; probably too little memory for this model" if code < 0 else f"with code {code}"
            if tries == TRIES:
                raise ConfigurationError(f"the training was ended {tries} times without a new checkpoint, last {how}")
            self._note(f"its process ended {how}: {line}")
            self._say("warn", f"The training was ended {how}. It goes on from its last checkpoint.")

    def _note(self, what: object) -> None:
        self._service.notes.error("job", f"{type(what).__name__}: {what}"[:MAX_WORDS], job=self._id)

    def _is_wanted(self) -> bool:
        found = self._store.get(None, JOB, self._id) or {}
        return found.get("status") == "running" and not self._service.stopping.is_set()

    def _prepared(self) -> FineTuning:
        """Puts the job's files into its folder, and returns its settings. Raises `ConfigurationError`."""
        models = self._service.models.resolve()
        model = models / self._body["model"]
        if model not in models.iterdir() or model.is_symlink() or not (model / "config.json").is_file():
            raise ConfigurationError(f"model: expected a model that this service has, got {self._body['model']}")
        for wanted, name in FILES.items():
            if (file := self._body.get(wanted)) and not (self._folder / name).exists():
                if self._store.get(self._owner, "file", file) is None or not self._store.path(file).is_file():
                    raise ConfigurationError(f"{wanted}: expected a file, got {file}, which was deleted")
                _link(self._store.path(file), self._folder / name)
        data, held = (self._folder / name if self._body.get(wanted) else None for wanted, name in FILES.items())
        return settings_of(self._body, model, data or self._folder, held)

    def _attempt(self, settings: FineTuning) -> int:
        """Runs the process to its end, or until the job is no longer wanted. Returns its exit code."""
        folder, end, log = self._folder, 0.0, self._folder / "log"
        if not (folder / "run" / TUNING).is_file():  # it was killed before the run was whole: nothing in it is signed
            shutil.rmtree(folder / "run", ignore_errors=True)
        shutil.rmtree(folder / "adapter", ignore_errors=True)
        given = {"output": folder, "key": self._service.key.resolve(), "keep": KEEP, "device": self._device}
        given |= asdict(settings) | {"model": self._body["model"], "threads": self._service.threads}
        command = [*self._service.command, str(folder), str(settings.model.parent), "finetune", "--json"]
        command += [f"--{name}={value}" for name, value in given.items() if value is not None]
        log.unlink(missing_ok=True)
        with log.open("ab") as errors, subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=errors, start_new_session=True, bufsize=0
        ) as process:  # fmt: skip
            assert process.stdin is not None  # it ends when this does, so nothing that happens here leaves it behind
            with suppress(BrokenPipeError):
                process.stdin.write(f"{self._service.passphrase}\n".encode())
            while process.poll() is None:
                if log.stat().st_size > MAX_LOG_BYTES:
                    os.truncate(log, 0)
                if self._is_wanted():
                    with suppress(VerificationError):  # a file that is being written
                        self._report(settings)
                elif not end:
                    end = time.monotonic() + GRACE_SECONDS
                    process.send_signal(signal.SIGINT)
                elif time.monotonic() > end:
                    process.kill()
                time.sleep(POLL_SECONDS)
        self._report(settings, is_over=True)
        return process.returncode

    def _report(self, settings: FineTuning, *, is_over: bool = False) -> None:
        """Writes an event and a checkpoint for each signed head that is new."""
        if not (self._folder / "run" / TUNING).is_file():
            return
        self._run = run = self._run or open_directory(self._folder / "run")
        recorded, held = run.recorded(), evaluations(run.path)
        for count in range(self._told + 1, recorded + 1):
            record, name = run.record_at(count - 1), directory.head_name(count)
            is_measured = settings.evaluation is None or record.step in held or count < recorded or is_over
            with run.folder(directory.HEADS) as heads:
                if not is_measured or not heads.holds(name):
                    return
                head = heads.read(name, directory.MAX_SIGNED_BYTES).hex()
            losses: Json = {"step": record.step, "train_loss": to_float(record.loss_bits)}
            losses |= {"full_valid_loss": held[record.step]} if record.step in held else {}
            text = f"Step {record.step}/{run.job.steps}: training loss={losses['train_loss']:.4f}"
            data = losses | {"total_steps": run.job.steps, "head": head}
            self._say("info", text, name=f"step {record.step}", type="metrics", data=data)
            made: Json = {"fine_tuned_model_checkpoint": f"{self._model}:ckpt-step-{record.step}", "metrics": losses}
            made |= {"fine_tuning_job_id": self._id, "step_number": record.step}
            self._add(f"{JOB}.checkpoint", name, of=self._id, **made)
            self._store.change(self._id, amount=record.step * settings.batch * settings.length)
            self._told = count

    def _say(self, level: str, message: str, *, name: str = "", **more: Any) -> None:
        """Adds an event. name: of one that is added once, however often it is said."""
        more = {"level": level, "message": message, "type": "message", **more}
        self._add(f"{JOB}.event", name or str(time.time_ns()), of=self._id, **more)

    def _add(self, kind: str, name: str, *, of: str | None = None, amount: int = 0, **body: Any) -> None:
        """Adds an object, if it is not there: unless it has an id, that follows from the job and the name."""
        body = {"object": kind, "id": self._new_id(kind, name), **body}
        if self._store.get(None, kind, body["id"]) is None:
            self._store.add(self._owner, body, of=of, amount=amount)

    def _new_id(self, kind: str, name: str) -> str:
        return PREFIXES[kind] + sha256(f"{self._id} {kind} {name}".encode()).hexdigest()[:24]

    def _finish(self, settings: FineTuning) -> None:
        """Gives the customer the result files and the model, and ends the job, unless it was cancelled meanwhile."""
        run, metrics = self._run or open_directory(self._folder / "run"), self._folder / "metrics.csv"
        held, lines = evaluations(run.path), ["step,train_loss,valid_loss\n"]
        lines += [f"{one['step']},{one['loss']!r},{held.get(int(one['step']), '')}\n" for one in run.metrics()]
        write_file(metrics, "".join(lines).encode())
        sent = [part.name for part in parts(run, run.job.checkpoints, states=True) if part.name not in UNSENT]
        files = {f"adapter/{path.name}": path for path in sorted((self._folder / "adapter").iterdir())}
        files |= {metrics.name: metrics} | {f"run/{name}": run.path / name for name in sent}
        ids = {name: self._new_id("file", name) for name in files}
        for name, path in files.items():
            _link(path, self._store.path(ids[name]))
            more = {"filename": name, "purpose": "fine-tune-results", "status": "processed"}
            self._add("file", name, amount=path.stat().st_size, bytes=path.stat().st_size, **more)
        now, tokens = int(time.time()), run.job.steps * settings.batch * settings.length
        self._add("model", "", id=self._model, created=now, owned_by=self._owner)
        changes = {"status": "succeeded", "finished_at": now, "trained_tokens": tokens, "result_files": [*ids.values()]}
        words = "The job has succeeded."
        if not self._end("info", words, amount=tokens, fine_tuned_model=self._model, **changes):
            for made in (*ids.values(), self._model):
                self._store.remove(made)

    def _fail(self, text: str) -> None:
        """Ends the job with what is wrong in words, in which no path of this machine occurs."""
        names = {self._folder / name: wanted for wanted, name in FILES.items()}
        for path, name in (names | {self._folder: "job", self._service.models.resolve(): "models"}).items():
            text = text.replace(str(path), name)
        text = re.sub(r"(?<![\w.])/[\w.+-]+/[^\s:,;'\"]*", "(a path of the service)", printable(text))[:MAX_WORDS]
        param = next((name for name in (*FILES, "model") if text.startswith(name)), None)
        code = f"invalid_{param}" if param else "job_failed" if text else "server_error"
        error = {"code": code, "message": text or "the service failed, not the order", "param": param}
        words = f"The job has failed: {error['message']}"
        self._end("error", words, status="failed", finished_at=int(time.time()), error=error)

    def _end(self, level: str, message: str, **changes: Any) -> bool:
        """Changes the status of the job, unless that was changed by its customer, and says so."""
        if is_changed := self._store.change(self._id, UNFINISHED[:2], **changes) is not None:
            self._say(level, message)
        return is_changed


def _link(source: Path, target: Path) -> None:
    """Gives a file a second name, durably; copies it where there are no hard links."""
    part = target.with_name(f".{target.name}.part")
    part.unlink(missing_ok=True)
    try:
        os.link(source, part)
    except OSError:
        shutil.copyfile(source, part)
    with Folder(target.parent, to_write=True) as folder:
        folder.rename(part.name, target.name)
        folder.remove(part.name)  # it stays if both were names of one file
