"""The descriptions that are checked in: services answer anything that fits them, or not, without a bug."""

import json
from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings

from tests.tiebreak.node.hubs import OFFER, library, running, settings
from tests.tiebreak.node.services import Service, order
from tiebreak.node.finetuning import requests
from tiebreak.node.hub.app import description
from tiebreak.protocol.commitments.blobs import blob_root, piece_digest

pytestmark = pytest.mark.slow
DOCUMENT = json.loads(description())
HUB = schemathesis.openapi.from_dict(
    {**DOCUMENT, "paths": {k: v for k, v in DOCUMENT["paths"].items() if k != "/stream"}}
)
"""The description of the hub without the stream, which never ends."""
FINETUNING = schemathesis.openapi.from_dict(requests.DOCUMENT)
STATUSES = ("status_code_conformance", "content_type_conformance", "response_schema_conformance")
CHECKS = [getattr(schemathesis.checks, name) for name in STATUSES]
FEW = hypothesis_settings(max_examples=6, suppress_health_check=list(HealthCheck), derandomize=True, database=None)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A hub that knows a job, and a blob of one byte for the root of the description's examples."""
    with running(settings(tmp_path_factory.mktemp("hub"), posts_per_minute=10**6)) as hub:
        hub.connect().post(OFFER)
        hub.connect().post(library([("a", blob_root(1, [piece_digest(b"a")]), 1)], 0))
        yield hub.url


@pytest.mark.filterwarnings("ignore")
@HUB.parametrize()
@FEW
def test_hub_responses_conform_to_the_openapi_document(case: schemathesis.Case, url: str) -> None:
    response = case.call(base_url=url)
    assert response.status_code < 500 or response.status_code in (503, 507), response.text
    case.validate_response(response, checks=CHECKS)


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with Service.of(tmp_path_factory.mktemp("fuzzed")) as made:
        made.key("fuzz", requests=10**6, jobs=10**6)
        yield made


@pytest.mark.filterwarnings("ignore")
@FINETUNING.parametrize()
@FEW
def test_answers_of_the_service_conform_to_its_description(case: schemathesis.Case, fuzzed: Service) -> None:
    """Each request as it was generated, and once more with ids that exist, which nobody guesses."""
    headers = {"authorization": f"Bearer {fuzzed.key('fuzz')}"}
    for is_real in (False, True):
        if is_real:
            job = order(fuzzed.client("fuzz"))
            ids = {"files": job["training_file"], "jobs": job["id"], "models": "tiny"}
            kind = next((kind for kind in ids if f"/{kind}/" in case.path), "")
            if kind and case.path_parameters:
                case.path_parameters["object_id"] = ids[kind]
            if isinstance(case.body, dict) and "training_file" in case.body:
                case.body |= {"model": "tiny", "training_file": ids["files"], "validation_file": None}
        response = case.call(headers=headers, app=fuzzed.app)
        assert response.status_code < 500, response.text
        case.validate_response(response, checks=CHECKS)
