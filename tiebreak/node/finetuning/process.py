"""Runs a fine-tuning service: the server of its interface, and the scheduler of its jobs."""

from contextlib import suppress
from signal import SIGTERM, default_int_handler, signal
from threading import Thread
from typing import Final

import uvicorn

from tiebreak.engine.data.disk import Folder
from tiebreak.node.finetuning.app import make_app
from tiebreak.node.finetuning.scheduler import Scheduler

CONNECTIONS: Final = 1024
"""Requests that may be under way at a time; those beyond are refused (503)."""


def run_service(scheduler: Scheduler, *, trainer: str, host: str, port: int) -> None:
    """Serves until SIGINT or SIGTERM. Raises `StateError` if another service works in this folder."""
    app = make_app(scheduler.store, scheduler.models, trainer=trainer)
    config = uvicorn.Config(
        app, host=host, port=port, ws="none", loop="asyncio", log_level="warning", access_log=False,
        server_header=False, proxy_headers=False, limit_concurrency=CONNECTIONS, timeout_graceful_shutdown=2,
    )  # fmt: skip
    signal(SIGTERM, default_int_handler)  # the server raises the signal that ended it once more
    jobs = Thread(target=scheduler.run, name="jobs")
    with Folder(scheduler.store.folder, to_write=True) as folder, folder.lock(), suppress(KeyboardInterrupt):
        jobs.start()
        try:
            uvicorn.Server(config).run()
        finally:
            scheduler.stopping.set()
            jobs.join()
