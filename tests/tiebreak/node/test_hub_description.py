"""The description that is checked in is that of the hub, which answers anything that fits it, or not, without a bug."""

import json
from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings
from starlette.routing import Route

from tests.tiebreak.node.hubs import OFFER, library, running, settings
from tiebreak.node.hub.app import description, make_app
from tiebreak.protocol.commitments.blobs import blob_root, piece_digest

DOCUMENT = json.loads(description())
SCHEMA = schemathesis.openapi.from_dict(
    {**DOCUMENT, "paths": {k: v for k, v in DOCUMENT["paths"].items() if k != "/stream"}}
)
"""The description without the stream, which never ends."""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A hub that knows a job, and a blob of one byte for the root of the description's examples."""
    with running(settings(tmp_path_factory.mktemp("hub"), posts_per_minute=10**6)) as hub:
        hub.connect().post(OFFER)
        hub.connect().post(library([("a", blob_root(1, [piece_digest(b"a")]), 1)], 0))
        yield hub.url


def test_every_route_is_described_and_every_description_has_a_route(tmp_path_factory: pytest.TempPathFactory) -> None:
    app = make_app(settings(tmp_path_factory.mktemp("hub")))
    found = [route for route in app.routes if isinstance(route, Route)]
    routes = {(route.path, method.lower()) for route in found for method in route.methods or ()}
    described = {(path, method) for path, item in DOCUMENT["paths"].items() for method in item}
    described |= {(path, "head") for path, method in described if method == "get"}
    routes |= {(path, "head") for path, method in routes if method == "get"}
    assert described == routes
    assert len(described) > 10


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@SCHEMA.parametrize()
@hypothesis_settings(
    max_examples=15, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None
)
def test_hub_responses_conform_to_the_openapi_document(case: schemathesis.Case, url: str) -> None:
    response = case.call(base_url=url)
    assert response.status_code < 500 or response.status_code in (503, 507), response.text
    checks = ("status_code_conformance", "content_type_conformance", "response_schema_conformance")
    case.validate_response(response, checks=[getattr(schemathesis.checks, name) for name in checks])
