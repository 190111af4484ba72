"""The interface of the fine-tuning service, through OpenAI's client as it is and through what nobody's client sends.

The tests play the scheduler: they change jobs in the store, as it does.
"""

import http.client
import json
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import openai
import pytest
import sqlalchemy
from openai.types import FileDeleted, FileObject, Model, ModelDeleted
from openai.types.fine_tuning import FineTuningJob, FineTuningJobEvent
from openai.types.fine_tuning.jobs import FineTuningJobCheckpoint
from starlette.routing import Route
from starlette.testclient import TestClient

from tests.tiebreak.node.services import ROWS, TRAINER, Service, order, running, upload
from tests.waiting import until
from tiebreak.node.finetuning import app as interface
from tiebreak.node.finetuning import requests
from tiebreak.node.finetuning.app import make_app
from tiebreak.node.finetuning.service_store import KeyLimits

JOBS = "/v1/fine_tuning/jobs"
BOUNDARY = "b0"
FORM = "multipart/form-data"


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with Service.of(tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Service, str]]:
    """A service behind uvicorn, and its URL."""
    with Service.of(tmp_path_factory.mktemp("served")) as made, running(made.app) as url:
        yield made, url


def client_of(served: tuple[Service, str], name: str) -> openai.OpenAI:
    service, url = served
    return openai.OpenAI(base_url=f"{url}/v1", api_key=service.key(name), max_retries=0)


def strict(model: type, value: Any) -> Any:
    """The client's own type, which the client itself fills without checks."""
    return model.model_validate_json(json.dumps(value.model_dump(mode="json")), strict=True)


# ---------------------------------------------------------------- through the client


def test_client_orders_follows_and_fetches_a_job(served: tuple[Service, str]) -> None:
    client, store = client_of(served, "ann"), served[0].store
    file = client.files.create(file=("chat.jsonl", BytesIO(ROWS)), purpose="fine-tune")
    assert strict(FileObject, file).bytes == len(ROWS)
    assert (file.filename, file.purpose, file.status) == ("chat.jsonl", "fine-tune", "processed")
    assert client.files.content(file.id).read() == ROWS
    assert [one.id for one in client.files.list(purpose="fine-tune")] == [file.id]
    assert list(client.files.list(purpose="fine-tune-results")) == []  # type: ignore[arg-type]
    assert [strict(Model, one).id for one in client.models.list()] == ["tiny", "tiny-2"]
    assert client.models.retrieve("tiny").owned_by == "system"

    jobs = client.fine_tuning.jobs
    job = jobs.create(
        model="tiny", training_file=file.id, validation_file=file.id, seed=7, suffix="mine", metadata={"team": "a"},
        method={"type": "supervised", "supervised": {"hyperparameters": {"n_epochs": 2, "batch_size": "auto"}}},
    )  # fmt: skip
    found = strict(FineTuningJob, job)
    assert (found.status, found.seed, found.model, found.validation_file) == ("queued", 7, "tiny", file.id)
    assert found.hyperparameters.model_dump() == {"n_epochs": 2, "batch_size": 1, "learning_rate_multiplier": 1.0}
    assert found.method.supervised.hyperparameters.model_dump() == found.hyperparameters.model_dump()
    assert job.user_provided_suffix == "mine"  # type: ignore[attr-defined]
    assert [one.id for one in jobs.list()] == [one.id for one in jobs.list(metadata={"team": "a"})] == [job.id]
    assert list(jobs.list(metadata={"team": "b"})) == []
    assert jobs.pause(job.id).status == "paused"  # type: ignore[comparison-overlap]
    assert jobs.resume(job.id).status == "queued"

    store.change(job.id, status="running")
    for step in range(1, 24):
        event = {"object": "fine_tuning.job.event", "level": "info", "message": f"Step {step}", "type": "metrics"}
        store.add("ann", {**event, "data": {"step": step, "train_loss": 1 / step}}, of=job.id)
        point = {"object": "fine_tuning.job.checkpoint", "fine_tuned_model_checkpoint": "x", "step_number": step}
        metrics = {"step": step, "train_loss": 1 / step}
        store.add("ann", {**point, "fine_tuning_job_id": job.id, "metrics": metrics}, of=job.id)
    events = [strict(FineTuningJobEvent, one) for one in jobs.list_events(job.id, limit=5)]
    assert [one.data["step"] for one in events[:23]] == list(range(23, 0, -1))
    assert [one.message for one in events[23:]] == [
        "The job is queued", "The job is paused", f"Created fine-tuning job: {job.id}"
    ]  # fmt: skip
    points = [strict(FineTuningJobCheckpoint, one) for one in jobs.checkpoints.list(job.id)]
    assert [one.step_number for one in points] == list(range(23, 0, -1))

    result = store.add("ann", {"object": "file", "filename": "metrics.csv", "bytes": 4, "purpose": "fine-tune-results",
                               "status": "processed"}, amount=4)  # fmt: skip
    store.path(result["id"]).write_bytes(b"step")
    tuned = store.add("ann", {"object": "model", "id": "ft:tiny::mine:abcd", "created": 1, "owned_by": "ann"})
    store.change(job.id, status="succeeded", fine_tuned_model=tuned["id"], result_files=[result["id"]], finished_at=9,
                 trained_tokens=64)  # fmt: skip
    done = strict(FineTuningJob, jobs.retrieve(job.id))
    assert (done.status, done.result_files, done.trained_tokens) == ("succeeded", [result["id"]], 64)
    assert client.files.content(done.result_files[0]).read() == b"step"
    assert strict(Model, client.models.retrieve(tuned["id"])).id == tuned["id"]
    assert strict(ModelDeleted, client.models.delete(tuned["id"])).deleted
    assert strict(FileDeleted, client.files.delete(file.id)).deleted
    assert not store.path(file.id).exists()
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(file.id)
    with pytest.raises(openai.BadRequestError, match="queued or running or paused, got one that is succeeded"):
        jobs.cancel(job.id)


def test_client_sees_a_cancelled_job_and_its_errors(served: tuple[Service, str]) -> None:
    client = client_of(served, "bob")
    file = client.files.create(file=("a.jsonl", ROWS), purpose="fine-tune")
    job = client.fine_tuning.jobs.create(model="tiny", training_file=file.id, hyperparameters={"n_epochs": 3})
    assert 0 <= job.seed < 1 << 31
    other = client.fine_tuning.jobs.create(
        model="tiny", training_file=file.id, method={"type": "dpo", "dpo": {"hyperparameters": {"beta": 0.1}}}
    )
    assert strict(FineTuningJob, other).method.dpo.hyperparameters.beta == 0.1
    cancelled = strict(FineTuningJob, client.fine_tuning.jobs.cancel(job.id))
    assert cancelled.status == "cancelled"
    assert cancelled.finished_at is not None
    with pytest.raises(openai.BadRequestError) as refused:
        client.fine_tuning.jobs.create(model="tiny", training_file=file.id, integrations=[
            {"type": "wandb", "wandb": {"project": "p"}}])  # fmt: skip
    assert (refused.value.param, refused.value.code) == ("integrations", "invalid_value")
    wrong = openai.OpenAI(base_url=str(client.base_url), api_key="sk-wrong", max_retries=0)
    with pytest.raises(openai.AuthenticationError) as unknown:
        wrong.models.list()
    assert unknown.value.code == "invalid_api_key"


def test_upload_over_http_reads_nothing_of_a_body_that_is_too_long(served: tuple[Service, str]) -> None:
    service, url = served
    headers = {"authorization": f"Bearer {service.key('long')}", "content-type": f"{FORM}; boundary={BOUNDARY}"}
    for more, status in (({"content-length": str((512 << 20) + 1)}, 413), ({"transfer-encoding": "chunked"}, 411)):
        connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=20)
        connection.putrequest("POST", "/v1/files")
        for name, value in {**headers, **more}.items():
            connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        assert answer.status == status
        assert json.loads(answer.read())["error"]["message"].startswith("expected")
        connection.close()


# ---------------------------------------------------------------- whose what is


def operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Method, path and description of each operation of a key."""
    for path, item in requests.DOCUMENT["paths"].items():
        for method, operation in item.items():
            if "security" not in operation:
                yield method.upper(), path, operation


def test_every_operation_wants_a_key_that_is_not_withdrawn(service: Service, cases: Callable[[], None]) -> None:
    client, secret = TestClient(service.app), service.key("gone")
    service.store.change_key(replace(service.store.keys("gone")[0], withdrawn=True))
    for method, path, _ in operations():
        for header in ({}, {"authorization": "Bearer sk-x"}, {"authorization": f"Bearer {secret}"},
                       {"authorization": service.key("other")}, {"authorization": b"Bearer \xe9"}):  # fmt: skip
            answer = client.request(method, path.replace("{object_id}", "file-0"), headers=header, content=b"{")
            assert answer.status_code == 401, (method, path, header)
            assert answer.json()["error"]["code"] == "invalid_api_key"
            cases()
    assert client.get("/healthz").json() == {"status": "ok", "trainer": TRAINER}


def test_an_id_of_another_key_is_answered_as_one_that_does_not_exist(
    service: Service, cases: Callable[[], None]
) -> None:
    """For each operation with an id in its path, its query or its body, with objects of every kind."""
    owner, other = service.client("owner"), service.client("other")
    file = upload(owner).json()["id"]
    job = order(owner, file=file)["id"]
    model = service.store.add("owner", {"object": "model", "id": "ft:tiny::a:1", "created": 1, "owned_by": "owner"})
    event = service.store.objects("owner", "fine_tuning.job.event", of=job)[0][1]["id"]
    point = service.store.add("owner", {"object": "fine_tuning.job.checkpoint"}, of=job)["id"]
    real, own = [file, job, model["id"], event, point], order(other)["id"]
    before = [service.store.objects(None, kind) for kind in ("file", "fine_tuning.job", "model")]
    assert upload(other).status_code == 200

    def answers(send: Callable[[str], Any]) -> None:
        """What is answered to each id must be what is answered to one that nobody has."""
        for one in real:
            nobodys = one[:-1] + ("1" if one[-1] != "1" else "2")
            got, expected = send(one), send(nobodys)
            assert got.status_code in (400, 404), got.text
            assert got.status_code == expected.status_code
            assert got.text.replace(one, "ID") == expected.text.replace(nobodys, "ID")
            cases()

    for method, path, operation in operations():
        if "{object_id}" in path:
            answers(lambda one, m=method, p=path: other.request(m, p.replace("{object_id}", one)))  # type: ignore[misc]
        if "/jobs/{object_id}/" not in path and any(p["name"] == "after" for p in operation.get("parameters", ())):
            answers(lambda one, p=path: other.get(p, params={"after": one}))  # type: ignore[misc]
    for sub in ("events", "checkpoints"):
        answers(lambda one, s=sub: other.get(f"{JOBS}/{own}/{s}", params={"after": one}))  # type: ignore[misc]
    for field in ("model", "training_file", "validation_file"):
        body = {"model": "tiny", "training_file": upload(other).json()["id"]}
        answers(lambda one, f=field, b=body: other.post(JOBS, json={**b, f: one}))  # type: ignore[misc]
    for path in ("/v1/files", JOBS, "/v1/models"):
        assert not {one["id"] for one in other.get(path).json()["data"]} & set(real), path
    assert [service.store.objects("owner", kind) for kind in ("file", "fine_tuning.job", "model")] == [
        [row for row in rows if row[0] == "owner"] for rows in before
    ]
    assert owner.get(f"/v1/files/{file}").status_code == 200


def test_lists_come_in_pages_that_name_the_next(service: Service) -> None:
    client = service.client()
    files = [upload(client, name=f"{n}.jsonl").json()["id"] for n in range(5)]
    first = client.get("/v1/files", params={"limit": 2}).json()
    assert ([one["id"] for one in first["data"]], first["has_more"]) == (files[:2:-1], True)
    last = client.get("/v1/files", params={"limit": 3, "after": first["last_id"]}).json()
    assert ([one["id"] for one in last["data"]], last["has_more"]) == (files[2::-1], False)
    assert [one["id"] for one in client.get("/v1/files", params={"order": "asc"}).json()["data"]] == files
    jobs = [order(client, file=files[0], metadata={"n": str(n % 2)})["id"] for n in range(4)]
    odd = client.get(JOBS, params={"metadata[n]": "1", "limit": 1}).json()
    assert ([one["id"] for one in odd["data"]], odd["has_more"]) == ([jobs[3]], True)
    rest = client.get(JOBS, params={"metadata[n]": "1", "limit": 1, "after": jobs[3]}).json()
    assert ([one["id"] for one in rest["data"]], rest["has_more"]) == ([jobs[1]], False)
    empty = client.get(f"{JOBS}/{jobs[0]}/checkpoints").json()
    assert empty == {"object": "list", "data": [], "has_more": False, "first_id": None, "last_id": None}


# ---------------------------------------------------------------- what is not offered


@pytest.mark.parametrize(
    ("changed", "param", "code"),
    [
        ({"integrations": [{"type": "wandb", "wandb": {"project": "p"}}]}, "integrations", "invalid_value"),
        ({"method": {"type": "reinforcement"}}, "method.type", "invalid_value"),
        ({"method": {"type": "supervised", "reinforcement": {}}}, "method.reinforcement", "unknown_parameter"),
        ({"method": {"type": "supervised", "dpo": {}}}, "method.type", "invalid_value"),
        ({"method": {}}, "method.type", "missing_required_parameter"),
        ({"method": {"type": "supervised", "supervised": {"hyperparameters": {"beta": 1}}}},
         "method.supervised.hyperparameters.beta", "unknown_parameter"),
        ({"method": {"type": "dpo", "dpo": {"hyperparameters": {"beta": 0}}}}, "method.dpo.hyperparameters.beta",
         "invalid_value"),
        ({"method": {"type": "supervised"}, "hyperparameters": {"n_epochs": 2}}, "method", "invalid_value"),
        ({"tools": []}, "tools", "unknown_parameter"),
        ({"n_epochs": 3}, "n_epochs", "unknown_parameter"),
        ({"hyperparameters": {"n_epochs": 0}}, "hyperparameters.n_epochs", "invalid_value"),
        ({"hyperparameters": {"n_epochs": 51}}, "hyperparameters.n_epochs", "invalid_value"),
        ({"hyperparameters": {"n_epochs": 1.0}}, "hyperparameters.n_epochs", "invalid_value"),
        ({"hyperparameters": {"n_epochs": True}}, "hyperparameters.n_epochs", "invalid_value"),
        ({"hyperparameters": {"batch_size": 257}}, "hyperparameters.batch_size", "invalid_value"),
        ({"hyperparameters": {"learning_rate_multiplier": 0}}, "hyperparameters.learning_rate_multiplier",
         "invalid_value"),
        ({"hyperparameters": {"lora": 4}}, "hyperparameters.lora", "unknown_parameter"),
        ({"seed": -1}, "seed", "invalid_value"),
        ({"seed": 1 << 31}, "seed", "invalid_value"),
        ({"seed": "7"}, "seed", "invalid_type"),
        ({"suffix": "a" * 65}, "suffix", "invalid_value"),
        ({"suffix": "a/b"}, "suffix", "invalid_value"),
        ({"suffix": "a\n"}, "suffix", "invalid_value"),
        ({"metadata": {str(n): "" for n in range(17)}}, "metadata", "invalid_value"),
        ({"metadata": {"a" * 65: ""}}, "metadata", "invalid_value"),
        ({"metadata": {"a": "b" * 513}}, "metadata.a", "invalid_value"),
        ({"metadata": {"a": 1}}, "metadata.a", "invalid_type"),
        ({"model": "huge"}, "model", "model_not_available"),
        ({"model": "../tiny"}, "model", "model_not_available"),
        ({"model": 5}, "model", "invalid_type"),
        ({"training_file": "file-\u0000"}, "training_file", "invalid_file_id"),
        ({"training_file": None}, "training_file", "invalid_type"),
    ],
)  # fmt: skip
def test_what_is_not_offered_is_refused_by_its_name(
    tmp_path_factory: pytest.TempPathFactory, changed: dict[str, Any], param: str, code: str
) -> None:
    with Service.of(tmp_path_factory.mktemp("refused")) as service:
        client = service.client()
        file = upload(client).json()["id"]
        answer = client.post(JOBS, json={"model": "tiny", "training_file": file, **changed})
        error = answer.json()["error"]
        assert (answer.status_code, error["param"], error["code"]) == (400, param, code)
        assert error["type"] == "invalid_request_error"
        assert re.match(rf"{re.escape(param)}: expected .*, got ", error["message"], re.DOTALL)
        assert service.store.objects(None, "fine_tuning.job") == []


def test_values_at_the_limits_are_taken(service: Service) -> None:
    client = service.client()
    for changed in (
        {"hyperparameters": {"n_epochs": 1, "batch_size": 1, "learning_rate_multiplier": 0.001}, "seed": 0},
        {
            "hyperparameters": {"n_epochs": 50, "batch_size": 256, "learning_rate_multiplier": 1000},
            "seed": (1 << 31) - 1,
        },
        {"suffix": "a" * 64, "metadata": {str(n) * 32: "b" * 512 for n in range(10, 26)}, "integrations": []},
        {"suffix": None, "metadata": None, "integrations": None, "seed": None, "validation_file": None},
        {"method": {"type": "dpo", "dpo": {"hyperparameters": {"beta": "auto"}}}},
    ):
        job = order(client, **changed)
        assert job["status"] == "queued", job
        assert {**job["hyperparameters"], **changed.get("hyperparameters", {})} == job["hyperparameters"]  # type: ignore[dict-item]


def test_query_refuses_what_it_does_not_know(service: Service) -> None:
    client = service.client()
    for path, query, param in (
        ("/v1/files", "purpose=vision", "purpose"), ("/v1/files", "limit=0", "limit"), (JOBS, "limit=101", "limit"),
        (JOBS, "limit=1e3", "limit"), (JOBS, "limit=" + "9" * 5000, "limit"), (JOBS, "order=asc", "order"),
        (JOBS, "metadata=1", "metadata"), (JOBS, "metadata[a]=1&metadata[a]=2", "metadata[a]"),
        (JOBS, "limit=1&limit=2", "limit"), (JOBS, "after[x]=1", "after"), ("/v1/models", "limit=1", "limit"),
    ):  # fmt: skip
        answer = client.get(f"{path}?{query}")
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), query


def test_only_whole_folders_of_models_are_base_models(service: Service) -> None:
    models = service.models
    for name in ("a b", "ft:x", "empty", "linked-config"):
        (models / name).mkdir()
    (models / "a b" / "config.json").write_text("{}")
    (models / "ft:x" / "config.json").write_text("{}")
    (models / "linked-config" / "config.json").symlink_to(models / "tiny" / "config.json")
    (models / "linked").symlink_to(models / "tiny")
    client = service.client()
    assert [one["id"] for one in client.get("/v1/models").json()["data"]] == ["tiny", "tiny-2"]
    for name in ("linked", "linked-config", "a b", "ft:x", "empty", "..%2fmodels%2ftiny", "..", "%00"):
        assert client.get(f"/v1/models/{name}").status_code in (307, 404), name
    assert client.delete("/v1/models/tiny").status_code == 404
    assert (models / "tiny" / "config.json").exists()


# ---------------------------------------------------------------- what a key may use up


def test_requests_beyond_the_limit_wait_as_long_as_is_said(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    buckets = interface.Buckets
    monkeypatch.setattr(interface, "Buckets", lambda *given: buckets(*given, clock=lambda: clock[0]))
    service.app = make_app(service.store, service.models, trainer=TRAINER)
    client, other = service.client(requests=4), service.client("other")
    assert [client.get("/v1/models").status_code for _ in range(5)] == [200] * 4 + [429]
    refused = client.get("/v1/models")
    assert refused.json()["error"]["code"] == "rate_limit_exceeded"
    assert refused.headers["retry-after"] == "16"
    assert other.get("/v1/models").status_code == 200
    clock[0] += 15
    assert [client.get("/v1/models").status_code for _ in range(2)] == [200, 429]
    service.store.change_key(replace(service.store.keys("ann")[0], limits=KeyLimits(requests=0)))
    clock[0] += 60
    assert client.get("/v1/models").status_code == 429


def test_budgets_refuse_what_is_beyond_them(service: Service) -> None:
    client = service.client(bytes=3 * len(ROWS), jobs=2, tokens=100)
    file = upload(client).json()["id"]
    assert upload(client).status_code == 200
    refused = upload(client)
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "insufficient_quota")
    assert refused.headers["x-should-retry"] == "false"
    client.delete(f"/v1/files/{client.get('/v1/files').json()['data'][0]['id']}")
    assert upload(client).status_code == 200
    jobs = [order(client, file=file) for _ in range(3)]
    assert "2 jobs that are not over by this key, got 3" in jobs[2]["error"]["message"]
    client.post(f"{JOBS}/{jobs[0]['id']}/pause")
    assert "error" in order(client, file=file)
    service.store.change(jobs[0]["id"], status="succeeded", amount=99)
    assert order(client, file=file)["status"] == "queued"
    service.store.change(jobs[1]["id"], status="failed", amount=1)
    assert "100 trained tokens by this key, got 101" in order(client, file=file)["error"]["message"]


def test_uploads_at_once_share_the_budget(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second one is refused while the first one is still checked, and taken once that one has failed."""
    client, more = service.client(bytes=len(ROWS) + 1000), []

    def faults(_path: Path) -> list[str]:
        monkeypatch.setattr(interface.rows, "faults", lambda _path: [])
        more.append(upload(service.client()).status_code)
        return ["line 1: expected another, got this"]

    monkeypatch.setattr(interface.rows, "faults", faults)
    assert upload(client).status_code == 400
    assert more == [429]
    assert upload(client).status_code == 200


def test_uploads_of_one_key_keep_no_other_key_waiting(
    served: tuple[Service, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, inside = threading.Event(), list[Path]()

    def faults(path: Path) -> list[str]:
        if path.stat().st_size > len(ROWS):
            inside.append(path)
            assert gate.wait(20)
        return []

    monkeypatch.setattr(interface.rows, "faults", faults)
    slow, other = client_of(served, "slow"), client_of(served, "other")
    with ThreadPoolExecutor(6) as threads:
        waiting = [threads.submit(slow.files.create, file=("a.jsonl", ROWS * 2), purpose="fine-tune") for _ in range(6)]
        until(lambda: len(inside) == 1)
        assert other.files.create(file=("b.jsonl", ROWS), purpose="fine-tune").bytes == len(ROWS)
        assert len(inside) == 1
        gate.set()
        assert len({one.result().id for one in waiting}) == len(inside) == 6


# ---------------------------------------------------------------- hostile bytes


def test_upload_says_all_faults_at_once_and_keeps_nothing(service: Service) -> None:
    client = service.client()
    bad = b'{"messages": []}\n' + ROWS + b'[]\n{"text": 5}\n{"a":\n' + b"[" * 9999 + b"\n"
    refused = upload(client, bad)
    lines = refused.json()["error"]["message"].split("\n")
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "file")
    assert [re.match(r"line (\d+): |line (\d+), ", one)[0] for one in lines] == [  # type: ignore[index]
        "line 1, ", "line 10: ", "line 11, ", "line 12: ", "line 13: "
    ]  # fmt: skip
    assert all("expected" in one and "got" in one for one in lines)
    many = upload(client, b"1\n" * 5000).json()["error"]["message"].split("\n")
    assert (len(many), many[-1].partition(",")[0]) == (101, "after line 100: expected at most 100 faults")
    assert upload(client, b"\n\n").status_code == 400
    assert upload(client, b"").status_code == 400
    assert upload(client, b"\xff\xfe\n").status_code == 400
    assert client.get("/v1/files").json()["data"] == []
    assert list((service.store.folder / "files").iterdir()) == []


@pytest.mark.parametrize("name", ["../../x.jsonl", "/etc/x.jsonl", "..\\..\\x.jsonl", "a/b/x.jsonl", "x.jsonl"])
def test_no_name_of_a_client_touches_the_file_system(service: Service, name: str) -> None:
    client = service.client()
    file = upload(client, name=name).json()
    assert file["filename"] == "x.jsonl"
    assert [
        path.name for path in service.store.folder.rglob("*") if path.is_file() and "service.db" not in path.name
    ] == [file["id"]]


@pytest.mark.parametrize("name", ["x.json", "x.jsonl.exe", "jsonl", "x\u202e.jsonl", "x" * 300 + ".jsonl"])
def test_names_that_are_none_of_a_training_file_are_refused(service: Service, name: str) -> None:
    answer = upload(service.client(), name=name)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_file_name")


def form(*parts: tuple[str, bytes], boundary: str = BOUNDARY) -> bytes:
    """A form's body of parts, each its headers and its content."""
    made = b"".join(f"--{boundary}\r\n{head}\r\n\r\n".encode("latin-1") + body + b"\r\n" for head, body in parts)
    return made + f"--{boundary}--\r\n".encode()


PURPOSE = ('Content-Disposition: form-data; name="purpose"', b"fine-tune")
CONTENT = ('Content-Disposition: form-data; name="file"; filename="x.jsonl"', ROWS)
UPLOADS = {
    "no boundary": (FORM, form(PURPOSE, CONTENT)),
    "another boundary": (f"{FORM}; boundary=other", form(PURPOSE, CONTENT)),
    "endless boundary": (f"{FORM}; boundary={'b' * 5000}", form(PURPOSE, CONTENT)),
    "cut": (f"{FORM}; boundary={BOUNDARY}", form(PURPOSE, CONTENT)[:-200]),
    "nothing": (f"{FORM}; boundary={BOUNDARY}", b""),
    "two files": (f"{FORM}; boundary={BOUNDARY}", form(PURPOSE, CONTENT, CONTENT)),
    "two purposes": (f"{FORM}; boundary={BOUNDARY}", form(PURPOSE, PURPOSE, CONTENT)),
    "many fields": (f"{FORM}; boundary={BOUNDARY}", form(*[PURPOSE] * 99, CONTENT)),
    "long field": (f"{FORM}; boundary={BOUNDARY}", form((PURPOSE[0], b"x" * 9999), CONTENT)),
    "long header": (f"{FORM}; boundary={BOUNDARY}", form(PURPOSE, (CONTENT[0] + "; x=" + "x" * 99_999, ROWS))),
    "no name": (f"{FORM}; boundary={BOUNDARY}", form(PURPOSE, ("Content-Type: text/plain", ROWS))),
    "file as text": (f"{FORM}; boundary={BOUNDARY}", form(
        PURPOSE, ('Content-Disposition: form-data; name="file"', b"x"))),
    "purpose as file": (f"{FORM}; boundary={BOUNDARY}", form(
        ('Content-Disposition: form-data; name="purpose"; filename="fine-tune"', b""), CONTENT)),
    "unknown field": (f"{FORM}; boundary={BOUNDARY}", form(PURPOSE, CONTENT, (
        'Content-Disposition: form-data; name="expires_after[anchor]"', b"created_at"))),
    "undefined charset": (f"{FORM}; boundary={BOUNDARY}; charset=undefined", form(PURPOSE, CONTENT)),
    "binary charset": (f"{FORM}; boundary={BOUNDARY}; charset=hex", form(PURPOSE, (CONTENT[0], b""))),
    "half of a pair": (f"{FORM}; boundary={BOUNDARY}; charset=unicode_escape", form(
        PURPOSE, CONTENT, ('Content-Disposition: form-data; name="\\\\ud800"', b"x"))),
    "not a form": ("application/json", b"{}"),
    "urlencoded": ("application/x-www-form-urlencoded", b"purpose=fine-tune&file=x"),
    "no type": ("", b"x"),
}  # fmt: skip


@pytest.mark.parametrize("case", UPLOADS)
def test_hostile_upload_is_refused_in_words(service: Service, case: str) -> None:
    kind, body = UPLOADS[case]
    answer = service.client().post("/v1/files", content=body, headers={"content-type": kind})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["message"].partition(": ")[2].startswith("expected") or answer.json()["error"][
        "message"
    ].startswith("expected")
    assert service.store.objects(None, "file") == []
    assert list((service.store.folder / "files").iterdir()) == []


def test_other_purposes_are_refused_by_name(service: Service) -> None:
    for purpose in ("assistants", "batch", "vision", "user_data", "evals", "fine-tune-results", ""):
        error = upload(service.client(), purpose=purpose).json()["error"]
        assert (error["param"], error["code"]) == ("purpose", "invalid_value")


def test_a_file_of_results_is_no_training_file(service: Service) -> None:
    made = service.store.add("ann", {"object": "file", "filename": "m.csv", "purpose": "fine-tune-results"})
    assert order(service.client(), file=made["id"])["error"]["param"] == "training_file"


BODIES = {
    "empty": b"", "no JSON": b"model", "cut": b'{"model": ', "list": b"[]", "null": b"null", "text": b'"x"',
    "deep": b'{"a":' * 5000 + b"1" + b"}" * 5000, "deep lists": b"[" * 60_000, "not UTF-8": b'{"model": "\xff"}',
    "NUL": b'{"model": "\x00"}', "twice": b'{"model": "a", "model": "b"}', "NaN": b'{"seed": NaN}',
    "infinity": b'{"hyperparameters": {"learning_rate_multiplier": 1e999}}',
    "digits": b'{"seed": ' + b"9" * 5000 + b"}",
    "long integer": b'{"model": "tiny", "training_file": "a", "seed": ' + b"9" * 4000 + b"}",
    "half of a pair": b'{"\\ud800": "\\udfff"}', "half as a value": b'{"model": "\\ud800", "training_file": "a"}',
    "UTF-16": '{"model": 1}'.encode("utf-16"), "BOM": b"\xef\xbb\xbf{}",
}  # fmt: skip


@pytest.mark.parametrize("case", BODIES)
def test_garbage_is_the_clients_fault(service: Service, case: str) -> None:
    answer = service.client().post(JOBS, content=BODIES[case], headers={"content-type": "application/json"})
    assert answer.status_code == 400, answer.text
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


def test_bodies_of_another_kind_or_size_are_refused(service: Service) -> None:
    client = service.client()
    for kind in ("text/plain", "", "application/x-www-form-urlencoded", "application/jsonp"):
        assert client.post(JOBS, content=b"{}", headers={"content-type": kind}).status_code == 415
    long = b'{"model": "' + b"a" * (1 << 16) + b'"}'
    assert client.post(JOBS, content=long, headers={"content-type": "application/json"}).status_code == 413
    json_of_charset = {"content-type": "application/json; charset=utf-8"}
    assert client.post(JOBS, content=b"{}", headers=json_of_charset).json()["error"]["param"] == "model"


def test_unknown_places_and_methods_are_answered_in_their_shape(service: Service) -> None:
    client = service.client()
    for method, path, status in (
        ("GET", "/v1/completions", 404), ("GET", "/v1/files/", 404), ("GET", "/static/../app.py", 404),
        ("GET", "/static/page.js", 404), ("PUT", "/v1/files", 405), ("POST", "/v1/fine_tuning/jobs/x", 405),
        ("GET", f"{JOBS}/%00/events", 404), ("POST", f"{JOBS}/{'x' * 3000}/cancel", 404),
        ("GET", "/v1/files/..%2f..%2fservice.db/content", 404), ("GET", "/v1/files/%2e%2e/content", 404),
    ):  # fmt: skip
        answer = client.request(method, path)
        assert answer.status_code == status, (path, answer.text)
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


def test_a_bug_or_a_broken_store_leaks_nothing(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    client = service.client()

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("secret")

    monkeypatch.setattr(service.store, "objects", broken)
    answer = client.get("/v1/files")
    assert (answer.status_code, answer.json()["error"]["type"]) == (500, "server_error")
    assert "secret" not in answer.text
    monkeypatch.undo()
    service.store._engine.dispose()
    service.store._engine = sqlalchemy.create_engine(f"sqlite:///{service.store.folder}")  # which is no file
    answer = client.get("/v1/models")
    assert (answer.status_code, answer.json()["error"]["type"]) == (503, "server_error")
    assert str(service.store.folder) not in answer.text


def test_upload_onto_a_full_disk_is_refused_and_leaves_nothing(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(interface, "write_whole", full)
    answer = upload(service.client())
    assert answer.status_code == 503
    assert str(service.store.folder) not in answer.text
    assert list((service.store.folder / "files").iterdir()) == []


def test_upload_is_on_the_disk_before_it_is_listed(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Content is written and synced under another name, then renamed, then the folder is synced, then it is listed."""
    done: list[str] = []
    system = interface.Folder.__init__.__globals__["system"]
    synced, add = system.synced, service.store.add
    monkeypatch.setattr(system, "synced", lambda handle: (done.append("sync"), synced(handle)))
    monkeypatch.setattr(service.store, "add", lambda *given, **more: (done.append("add"), add(*given, **more))[1])
    assert upload(service.client()).status_code == 200
    assert done == ["sync", "sync", "add"]


def test_deleted_content_is_not_found(service: Service) -> None:
    client = service.client()
    file = upload(client).json()["id"]
    service.store.path(file).unlink()
    assert client.get(f"/v1/files/{file}/content").status_code == 404
    ranged = client.get(f"/v1/files/{upload(client).json()['id']}/content", headers={"range": "bytes=0-9"})
    assert (ranged.status_code, ranged.content) == (206, ROWS[:10])


def test_actions_depend_on_the_status(service: Service, cases: Callable[[], None]) -> None:
    client = service.client(jobs=99)
    file = upload(client).json()["id"]
    allowed = {"queued": ("cancel", "pause"), "running": ("cancel", "pause"), "paused": ("cancel", "resume")}
    after = {"cancel": "cancelled", "pause": "paused", "resume": "queued"}
    for status in ("queued", "running", "paused", "succeeded", "failed", "cancelled"):
        for action, expected in after.items():
            job = order(client, file=file)["id"]
            service.store.change(job, status=status)
            answer = client.post(f"{JOBS}/{job}/{action}")
            is_allowed = action in allowed.get(status, ())
            assert answer.status_code == (200 if is_allowed else 400)
            now = client.get(f"{JOBS}/{job}").json()
            assert now["status"] == (expected if is_allowed else status)
            assert (now["finished_at"] is not None) == (is_allowed and action == "cancel")
            events = client.get(f"{JOBS}/{job}/events").json()["data"]
            assert len(events) == 1 + is_allowed
            service.store.change(job, status="cancelled")
            cases()


# ---------------------------------------------------------------- the description


def test_every_operation_has_a_route_and_an_id_of_its_own(service: Service) -> None:
    described = {(path, method.upper()) for path, item in requests.DOCUMENT["paths"].items() for method in item}
    routes = {(r.path, m) for r in service.app.routes if isinstance(r, Route) for m in r.methods or () if m != "HEAD"}
    assert described == {one for one in routes if one[0] not in interface.STATIC}
    ids = [operation["operationId"] for item in requests.DOCUMENT["paths"].values() for operation in item.values()]
    assert len(ids) == len(set(ids)) == len(described) > 15
    assert TestClient(service.app).get("/openapi.json").json() == requests.DOCUMENT
