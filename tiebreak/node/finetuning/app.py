"""The interface of a fine-tuning service over HTTP, for OpenAI's clients as they are, with a page for people.

`openapi.json` in this folder describes it: each operation there is a method here, of its `operationId`. All that a key
reads or changes is its own; an id of another key is answered as one that does not exist. A job waits in the store with
the status `queued` for the scheduler, which shares nothing else with this module.
"""

import asyncio
import re
import secrets
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping
from functools import partial, partialmethod
from importlib.resources import files
from itertools import repeat
from pathlib import Path, PurePosixPath
from typing import Any, Final

from sqlalchemy.exc import SQLAlchemyError
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

from tiebreak.api.training import orders, rows
from tiebreak.engine.data.disk import Folder, StorageError, write_whole
from tiebreak.node.finetuning import requests
from tiebreak.node.finetuning.requests import ApiError
from tiebreak.node.finetuning.service_store import JOB, PREFIXES, UNFINISHED, AccessKey, Json, ServiceStore
from tiebreak.node.hub.limits import Buckets
from tiebreak.node.pages.headers import HEADERS

EVENT: Final = "fine_tuning.job.event"
KINDS: Final = ("file", JOB, EVENT, "fine_tuning.job.checkpoint")
ACTIONS: Final = {
    "cancel": (UNFINISHED, "cancelled"), "pause": (UNFINISHED[:2], "paused"), "resume": (("paused",), "queued"),
}  # fmt: skip
"""Action of a customer on a job -> the statuses in which it is allowed, and the status that it gives."""
CHECKS: Final = 4
"""Uploaded files that are checked at once, each of another key: so one key does not keep the others waiting."""
MAX_NAME: Final = 255
_PACKAGE, _PAGES = files("tiebreak.node.finetuning"), files("tiebreak.node.pages") / "static"
STATIC: Final = {
    "/": _PACKAGE / "static" / "index.html", "/static/service.js": _PACKAGE / "static" / "service.js",
    "/static/page.css": _PAGES / "page.css", "/static/inter.woff2": _PAGES / "inter.woff2",
    "/static/mark.svg": _PAGES / "mark.svg", "/openapi.json": _PACKAGE / "openapi.json",
}  # fmt: skip
"""Paths that are answered with a file, without a key."""
_ID: Final = re.compile(r"[A-Za-z0-9.:_-]{1,400}")
_MISSING: Final = {JOB: ("fine_tune_id", "fine_tune_not_found"), "model": ("model", "model_not_found")}
"""Kind of an object -> parameter and code of the error that there is none, unless these are `id` and null."""
_FAILURES: Final[dict[type[Exception], tuple[int, str]]] = {
    ClientDisconnect: (400, "expected a whole request, got a part of one"),
    SQLAlchemyError: (503, "expected a database that answers, got none; try again"),
    OSError: (503, "expected a disk with room, got none; try again"),
    StorageError: (503, "expected a disk with room, got none; try again"),
    Exception: (500, "expected a service without bugs, got one; its log says more"),
}


def make_app(store: ServiceStore, models: Path, *, trainer: str) -> Starlette:
    """The service as an ASGI application.

    models: the folder whose subfolders are the base models. trainer: the address that signs the certificates.
    """
    service = _Service(store, models, trainer)
    routes = [
        Route(path, service.endpoint(operation), methods=[method.upper()])
        for path, item in requests.DOCUMENT["paths"].items()
        for method, operation in item.items()
    ]
    routes += [Route(url, partial(_static, Path(str(path)))) for url, path in STATIC.items()]
    app = Starlette(routes=routes, exception_handlers=dict.fromkeys([ApiError, HTTPException, *_FAILURES], _refused))
    app.router.redirect_slashes = False
    return app


async def _static(path: Path, _request: Request) -> Response:
    return FileResponse(path, headers=HEADERS)


async def _refused(request: Request, error: Exception) -> Response:
    if isinstance(error, ApiError):
        return error.response()
    if isinstance(error, HTTPException):
        text = f"expected a URL of /openapi.json, got {request.method} {request.url.path[:200]}"
        text = text if error.status_code in (404, 405) else f"expected a form, got another: {error.detail}"
        return ApiError(error.status_code, text, headers=error.headers or {}).response()
    status, message = next(answer for kind, answer in _FAILURES.items() if isinstance(error, kind))
    return ApiError(status, message, kind="server_error" if status >= 500 else "invalid_request_error").response()


class _Service:
    def __init__(self, store: ServiceStore, models: Path, trainer: str) -> None:
        self._store, self._models, self._trainer = store, models, trainer
        self._requests: Buckets[str] = Buckets(1, 60)
        self._checks, self._ordering = asyncio.Semaphore(CHECKS), threading.Lock()
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._arriving: Counter[str] = Counter()
        """The bytes that each key is sending."""

    def endpoint(self, operation: Json) -> Callable[[Request], Awaitable[Response]]:
        """Answers the requests of an operation with what its method returns."""
        method, is_open = getattr(self, operation["operationId"]), operation.get("security") == []
        content = operation.get("requestBody", {}).get("content", {})

        async def answer(request: Request) -> Response:
            keys = [] if is_open else [await self._key(request.headers.get("authorization", ""))]
            values = {**request.path_params, **requests.query_of(request, operation)}
            if requests.JSON in content:
                values |= await requests.json_of(request, content[requests.JSON]["schema"])
            if requests.FORM in content:
                return await self._upload(keys[0], request, content[requests.FORM]["schema"])
            found = await run_in_threadpool(method, *keys, **values)
            return found if isinstance(found, Response) else JSONResponse(found, headers=HEADERS)

        return answer

    async def _key(self, header: str) -> AccessKey:
        """The key of a request, which is charged for it here in the event loop: the buckets are not for threads."""
        scheme, _, secret = header.partition(" ")
        found = await run_in_threadpool(self._store.keys, secret=secret.strip())
        if scheme.lower() != "bearer" or not found or found[0].withdrawn:
            text = "authorization: expected `Bearer` and a key of this service, got none"
            raise ApiError(401, text, code="invalid_api_key", headers={"www-authenticate": "Bearer"})
        key, most = found[0], found[0].limits.requests
        cost = 60 / max(most, 1e-9)
        if not self._requests.take(key.id, cost):
            wait = {"retry-after": str(min(60, 1 + int(cost - self._requests.tokens(key.id))))}
            text = f"expected at most {most} requests a minute, got more"
            raise ApiError(429, text, code="rate_limit_exceeded", kind="requests", headers=wait)
        return key

    async def _upload(self, key: AccessKey, request: Request, schema: Json) -> Response:
        size = requests.size_of(request)
        self._arriving[key.id] += size
        try:
            used = await run_in_threadpool(self._store.used, key.id, "file")
            _expect_within("bytes of files", used + self._arriving[key.id], key.limits.bytes)
            async with requests.form_of(request, schema) as form, self._turns[key.id], self._checks:
                return JSONResponse(await run_in_threadpool(self.create_file, key, **form), headers=HEADERS)
        finally:
            self._arriving[key.id] -= size

    def _own(self, kind: str, key: AccessKey, object_id: str) -> Json:
        found = self._store.get(key.id, kind, object_id) if _ID.fullmatch(object_id) else None
        if found is None:
            param, code = _MISSING.get(kind, ("id", None))
            raise ApiError(404, f"{param}: expected a {kind} of yours, got {object_id[:200]}", param=param, code=code)
        return found

    def _delete(self, kind: str, key: AccessKey, object_id: str) -> Json:
        self._store.remove(self._own(kind, key, object_id)["id"])
        return {"id": object_id, "object": kind, "deleted": True}

    def _page(
        self, kind: str, key: AccessKey, *, after: str | None, limit: int, object_id: str | None = None,
        order: str = "desc", **wanted: Any,
    ) -> Json:  # fmt: skip
        """A page of a key's objects, or of those of a job. wanted: the values that fields of theirs must hold."""
        if after is not None:
            self._own(kind, key, after)
        of = None if object_id is None else self._own(JOB, key, object_id)["id"]
        filters = {name: value for name, value in wanted.items() if value is not None}
        most = None if filters else limit + 1
        found = self._store.objects(key.id, kind, of=of, after=after, limit=most, newest_first=order == "desc")
        data = [body for _, body in found if all(_holds(body.get(name), value) for name, value in filters.items())]
        ends = [one["id"] for one in data[:limit]] or [None]
        more = {"has_more": len(data) > limit, "first_id": ends[0], "last_id": ends[-1]}
        return {"object": "list", "data": data[:limit], **more}

    # ------------------------------------------------------------------ the operations of openapi.json

    list_files, list_jobs, list_events, list_checkpoints = map(partialmethod, repeat(_page), KINDS)
    retrieve_file, retrieve_job = map(partialmethod, repeat(_own), KINDS[:2])
    delete_file, delete_model = map(partialmethod, repeat(_delete), ("file", "model"))

    def show_health(self) -> Json:
        return {"status": "ok", "trainer": self._trainer}

    def create_file(self, key: AccessKey, *, file: UploadFile, purpose: str) -> Json:
        name = PurePosixPath((file.filename or "").replace("\\", "/")).name
        if not name.lower().endswith(".jsonl") or len(name) > MAX_NAME or not name.isprintable():
            text = f"file: expected a name that ends in .jsonl, got {name[:MAX_NAME]!r}"
            raise ApiError(400, text, param="file", code="invalid_file_name")
        path = self._store.path(PREFIXES["file"] + secrets.token_hex(12))
        try:
            with Folder(path.parent, to_write=True) as folder, folder.replacing(path.name) as target:
                while data := file.file.read(1 << 20):
                    write_whole(target, memoryview(data))
            if faults := rows.faults(path):
                raise ApiError(400, "\n".join(faults), param="file", code="invalid_training_file")
            size = path.stat().st_size
            body = {"object": "file", "id": path.name, "bytes": size, "filename": name, "purpose": purpose}
            return self._store.add(key.id, {**body, "status": "processed"}, amount=size)
        except BaseException:
            path.unlink(missing_ok=True)
            raise

    def retrieve_content(self, key: AccessKey, *, object_id: str) -> Response:
        path = self._store.path(self._own("file", key, object_id)["id"])
        if not path.is_file():
            raise ApiError(404, f"id: expected a file with content, got {object_id}", param="id")
        return FileResponse(path, media_type="application/octet-stream", stat_result=path.stat(), headers=HEADERS)

    def _base_models(self) -> dict[str, Json]:
        found = [(path.parent.name, path) for path in sorted(self._models.glob("*/config.json"))]
        return {
            name: {"id": name, "object": "model", "created": int(path.stat().st_mtime), "owned_by": "system"}
            for name, path in found
            if _ID.fullmatch(name) and ":" not in name and not path.is_symlink() and not path.parent.is_symlink()
        }

    def list_models(self, key: AccessKey) -> Json:
        own = [body for _, body in self._store.objects(key.id, "model")]
        return {"object": "list", "data": [*self._base_models().values(), *own]}

    def retrieve_model(self, key: AccessKey, *, object_id: str) -> Json:
        return self._base_models().get(object_id) or self._own("model", key, object_id)

    def create_job(self, key: AccessKey, **order: Any) -> Json:
        if order["model"] not in self._base_models():
            text = f"model: expected one of the base models of GET /v1/models, got {order['model'][:200]}"
            raise ApiError(400, text, param="model", code="model_not_available")
        for name in ("training_file", "validation_file"):
            if (file_id := order.get(name)) is not None:
                file = self._store.get(key.id, "file", file_id) if _ID.fullmatch(file_id) else None
                if file is None or file["purpose"] != "fine-tune":
                    text = f"{name}: expected a file of yours with the purpose fine-tune, got {file_id[:200]}"
                    raise ApiError(400, text, param=name, code="invalid_file_id")
        with self._ordering:
            unfinished = len(self._store.objects(key.id, JOB, statuses=UNFINISHED))
            _expect_within("jobs that are not over", unfinished + 1, key.limits.jobs)
            _expect_within("trained tokens", self._store.used(key.id, JOB) + 1, key.limits.tokens)
            job = self._store.add(key.id, _job(key, order))
        self._tell(key, job["id"], f"Created fine-tuning job: {job['id']}")
        return job

    def _tell(self, key: AccessKey, job_id: str, message: str) -> None:
        event = {"object": EVENT, "level": "info", "message": message, "type": "message", "data": {}}
        self._store.add(key.id, event, of=job_id)

    def _act(self, action: str, key: AccessKey, *, object_id: str) -> Json:
        (statuses, status), job = ACTIONS[action], self._own(JOB, key, object_id)
        end = {"finished_at": int(time.time())} if status == "cancelled" else {}
        if (changed := self._store.change(object_id, statuses, status=status, **end)) is None:
            text = f"expected a job to {action} that is {' or '.join(statuses)}, got one that is {job['status']}"
            raise ApiError(400, text, param="fine_tune_id", code="invalid_job_status")
        self._tell(key, object_id, f"The job is {status}")
        return changed

    cancel_job, pause_job, resume_job = map(partialmethod, repeat(_act), ACTIONS)


def _job(key: AccessKey, order: Mapping[str, Any]) -> Json:
    """A new job, with the values of its hyperparameters in place of `auto`."""
    found, method = orders.hyperparameters(order), order.get("method") or {"type": "supervised"}
    kind, seed = method["type"], order.get("seed")
    given = (method.get(kind) or {}).get("hyperparameters") or {}
    return {
        "object": JOB, "model": order["model"], "status": "queued", "training_file": order["training_file"],
        "validation_file": order.get("validation_file"),
        "hyperparameters": {name: value for name, value in found.items() if name != "beta"},
        "method": {"type": kind, kind: {"hyperparameters": given | found}},
        "seed": secrets.randbelow(1 << 31) if seed is None else seed, "organization_id": key.id,
        "user_provided_suffix": order.get("suffix"), "metadata": order.get("metadata"), "integrations": [],
        "result_files": [], "finished_at": None, "fine_tuned_model": None, "trained_tokens": None, "error": None,
        "estimated_finish": None,
    }  # fmt: skip


def _holds(value: Any, wanted: Any) -> bool:
    """Whether a field has a value, or all pairs of one."""
    return wanted.items() <= (value or {}).items() if isinstance(wanted, dict) else value == wanted


def _expect_within(what: str, wanted: int, most: int) -> None:
    """Raises the error after which a client does not try again."""
    if wanted > most:
        text, code = f"expected at most {most} {what} by this key, got {wanted}", "insufficient_quota"
        raise ApiError(429, text, code=code, kind=code, headers={"x-should-retry": "false"})
