"""A fine-tuning service for tests of its receipts: jobs that a real run trains, shown over HTTP, and its lies."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tiebreak.api.certification import issuance
from tiebreak.api.machine import Machine
from tiebreak.api.training import orders
from tiebreak.api.training.finetuning import finetune, save, task_of, windows
from tiebreak.api.training.reading import open_directory
from tiebreak.api.training.runs import Run
from tiebreak.api.training.settings import TUNING
from tiebreak.engine.run.directory import DATA, RunDirectory
from tiebreak.node.parts import parts
from tiebreak.protocol.commitments.job import Head, SignedHead
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.numbers import float32

KEY = "sk-test"
Json = dict[str, Any]


@dataclass
class Shown:
    """What a service shows of a job. Tests change it as a cheat would."""

    job: Json
    events: list[Json] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
    sizes: dict[str, Any] = field(default_factory=dict)
    """Sizes that it states, where they are not those of the files."""

    def answer(self, path: str, query: Json) -> Any:
        """The body of an answer, as an object or bytes; None: there is no such thing."""
        ids = {f"file-{number}": name for number, name in enumerate(self.files)}
        match path.strip("/").split("/"):
            case ["v1", "fine_tuning", "jobs", _]:
                return {"result_files": list(ids), **self.job}
            case ["v1", "fine_tuning", "jobs", _, "events"]:
                events = [{"id": f"ftevent-{number}", **event} for number, event in enumerate(self.events)][::-1]
                names = [event["id"] for event in events]
                at = names.index(query["after"][0]) + 1 if "after" in query else 0
                part = events[at : at + int(query["limit"][0])]
                return {"object": "list", "data": part, "has_more": at + len(part) < len(events)}
            case ["v1", "files", name] if name in ids:
                size = self.sizes.get(ids[name], len(self.files[ids[name]]))
                return {"id": name, "filename": ids[name], "bytes": size}
            case ["v1", "files", name, "content"] if name in ids:
                return self.files[ids[name]]
        return None


@contextmanager
def serving(shown: Shown) -> Iterator[str]:
    """The URL of a service that shows this."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            is_known = self.headers["Authorization"] == f"Bearer {KEY}"
            found = shown.answer(parts.path, parse_qs(parts.query)) if is_known else None
            body = found if isinstance(found, bytes) else json.dumps(found).encode()
            self.send_response(404 if found is None else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def train(order: Json, base: Path, data: Path, out: Path, key: PrivateKey, threads: int = 1, **changes: Any) -> None:
    """Trains an order, or what a cheat makes of it, and certifies the adapter. changes: of the settings."""
    settings = replace(orders.settings_of(order, base, data), **changes)
    prepared = settings.check(out / "run")
    run, model, *_ = finetune(
        prepared, out / "run", key=key, machine=Machine(threads=threads), progress=False, keep="every:5"
    )
    save(settings, model, out / "adapter")
    certify(out, key)
    assert run.finished


def save_state(order: Json, base: Path, data: Path, run: Run, step: int, folder: Path) -> None:
    """Saves the adapter that a run had after a step."""
    settings = orders.settings_of(order, base, data)
    model = task_of(settings, windows(settings, settings.check(folder).training)).model
    model.load_state_dict(run.state_dict(step))
    save(settings, model, folder)


def certify(out: Path, key: PrivateKey) -> None:
    """Certifies the adapter of a folder."""
    adapter = out / "adapter"
    (adapter / "certificate.json").unlink(missing_ok=True)
    issuance.certify(open_directory(out / "run"), adapter, adapter / "certificate.json", key)
    (adapter / "README.md").write_text("# Adapters\n")


def show(order: Json, out: Path, key: PrivateKey) -> Shown:
    """What an honest service shows of the job of an order that was trained in a folder."""
    run = open_directory(out / "run")
    job, domain, tuning = run.job, run.agreement.domain, json.loads((out / "run" / TUNING).read_text())
    method: Json = {"type": "supervised", "supervised": {"hyperparameters": orders.hyperparameters(order)}}
    files = {f"adapter/{path.name}": path.read_bytes() for path in sorted((out / "adapter").iterdir())}
    lines = [f"{line['step']},{line['loss']!r}," for line in run.metrics()]
    files["metrics.csv"] = "\n".join(["step,train_loss,valid_loss", *lines]).encode()
    kept = [part for part in parts(run, job.checkpoints, states=True) if part.name not in (DATA, first(run))]
    files |= {f"run/{part.name}": (run.path / part.name).read_bytes()[: part.size] for part in kept}
    events: list[Json] = [
        {"object": "fine_tuning.job.event", "type": "message", "message": "The job has begun.", "data": None}
    ]
    for count, record in enumerate(run.records(), 1):
        head = SignedHead.sign(Head(job_id=job.id, count=count, run_root=run.root(count)), domain, key)
        data: Json = {"step": record.step, "total_steps": job.steps, "train_loss": float32.to_float(record.loss_bits)}
        events.append({"type": "metrics", "message": "", "data": {**data, "head": head.encode().hex()}})
    body = {
        "id": "ftjob-1", "object": "fine_tuning.job", "model": order["model"], "seed": order["seed"],
        "hyperparameters": orders.hyperparameters(order), "method": method, "status": "succeeded",
        "training_file": order["training_file"], "validation_file": None, "fine_tuned_model": "ft:tiny::x",
        "user_provided_suffix": order.get("suffix"), "trained_tokens": job.steps * tuning["batch"] * tuning["length"],
    }  # fmt: skip
    return Shown(job=body, events=events, files=files)


def first(run: RunDirectory) -> str:
    """The name of the first state, which a customer makes without the service."""
    return str(run.state_path(0).relative_to(run.path))
