"""Fine-tuning services for tests: a store, a folder of models, and the interface over them."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.testclient import TestClient

from tests.waiting import until
from tiebreak.node.finetuning.app import make_app
from tiebreak.node.finetuning.service_store import Json, KeyLimits, ServiceStore

ROWS = b"".join(
    json.dumps({"messages": [{"role": "user", "content": f"{n}?"}, {"role": "assistant", "content": "yes"}]}).encode()
    + b"\n"
    for n in range(8)
)
TRAINER = "0x" + "ab" * 20


@dataclass
class Service:
    """A service in a folder, with two base models."""

    store: ServiceStore
    models: Path
    app: Starlette
    secrets: dict[str, str] = field(default_factory=dict)

    @classmethod
    @contextmanager
    def of(cls, folder: Path) -> Iterator["Service"]:
        models = folder / "models"
        for name in ("tiny", "tiny-2"):
            (models / name).mkdir(parents=True)
            (models / name / "config.json").write_text("{}")
        store = ServiceStore(folder / "service")
        yield cls(store, models, make_app(store, models, trainer=TRAINER))
        store.close()

    def key(self, name: str, **limits: int) -> str:
        """The secret of the key of this name, which is made if it is not there."""
        if name not in self.secrets:
            self.secrets[name] = self.store.add_key(name, KeyLimits(**limits))
        return self.secrets[name]

    def client(self, name: str = "ann", **limits: int) -> TestClient:
        """A client without a socket, with the key of this name."""
        headers = {"authorization": f"Bearer {self.key(name, **limits)}"}
        return TestClient(self.app, headers=headers, raise_server_exceptions=False)


def upload(client: TestClient, content: bytes = ROWS, name: str = "chat.jsonl", **fields: str) -> Any:
    """Uploads a training file."""
    return client.post("/v1/files", files={"file": (name, content)}, data={"purpose": "fine-tune"} | fields)


def order(client: TestClient, **changed: Any) -> Json:
    """Orders a job on a file that is uploaded for it."""
    body = {"model": "tiny", "training_file": changed.pop("file", None) or upload(client).json()["id"]} | changed
    found: Json = client.post("/v1/fine_tuning/jobs", json=body).json()
    return found


@contextmanager
def running(app: Starlette) -> Iterator[str]:
    """Serves an application with uvicorn on this machine. Yields its URL."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=0.1))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
        thread.start()
        until(lambda: server.started)
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"
        server.should_exit = True
        thread.join(10)
