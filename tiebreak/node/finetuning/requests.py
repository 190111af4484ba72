"""Requests to a fine-tuning service: read within limits, and checked against `openapi.json`, which says what it offers.

What is not offered is refused by its name. The checks read the document's schemas, and a message says what was expected
in the words of their descriptions.
"""

import json
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Final

from jsonschema import Draft202012Validator, validators  # type: ignore[import-untyped]
from jsonschema.exceptions import ValidationError  # type: ignore[import-untyped]
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tiebreak.node.finetuning.service_store import Json
from tiebreak.node.pages.headers import HEADERS
from tiebreak.protocol.strict_json import parse_json

DOCUMENT: Final[Json] = json.loads(files(__package__).joinpath("openapi.json").read_text("utf-8"))
JSON: Final = "application/json"
FORM: Final = "multipart/form-data"
MAX_BODY_BYTES: Final = 1 << 16
MAX_FILE_BYTES: Final = 512 << 20
_MAX_FIELD_BYTES: Final = 1 << 12
_MAX_SHOWN: Final = 100
_CODES: Final = {
    "additionalProperties": "unknown_parameter", "required": "missing_required_parameter", "type": "invalid_type",
}  # fmt: skip
"""Keyword of a schema -> the code of an error that breaks it, unless that is `invalid_value`."""
_TYPES: Final = Draft202012Validator.TYPE_CHECKER.redefine("integer", lambda _checker, value: type(value) is int)
_Validator: Final = validators.extend(Draft202012Validator, type_checker=_TYPES)
_PAIR: Final = re.compile(r"(\w+)\[(.*)\]", re.DOTALL)


class ApiError(Exception):
    """A refusal, as OpenAI's interface words it. kind: its field `type`."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None,
        kind: str = "invalid_request_error", headers: Mapping[str, str] = HEADERS,
    ) -> None:  # fmt: skip
        super().__init__(message)
        self.status, self.headers = status, {**HEADERS, **headers}
        self.error = {"message": message, "type": kind, "param": param, "code": code}

    def response(self) -> Response:
        """The HTTP answer with this error, in the shape of OpenAI's."""
        return JSONResponse({"error": self.error}, self.status, self.headers)


def check(value: Json, schema: Json) -> None:
    """Raises `ApiError` with the name of the first value that a schema of the document does not allow."""
    for error in _Validator({**schema, "components": DOCUMENT["components"]}).iter_errors(value):
        raise _refusal(error)


def _refusal(error: ValidationError) -> ApiError:
    path, schema, got = list(map(str, error.absolute_path)), error.schema, repr(error.instance)
    expected = schema.get("description", "another value")
    if error.validator == "additionalProperties":
        path.append(min(error.instance.keys() - schema["properties"].keys()))
        expected, got = f"no parameter but {', '.join(schema['properties'])}", "one of this name"
    elif error.validator == "required":
        path.append(next(name for name in schema["required"] if name not in error.instance))
        expected, got = "a value", "none"
    param = ".".join(path)[:_MAX_SHOWN]
    got = got if len(got) <= _MAX_SHOWN else f"{got[:_MAX_SHOWN]}..."
    code = _CODES.get(error.validator, "invalid_value")
    return ApiError(400, f"{param or 'body'}: expected {expected}, got {got}", param=param or None, code=code)


def query_of(request: Request, operation: Json) -> Json:
    """The parameters of a request's query, each with its default if it is not there."""
    schemas = {one["name"]: one["schema"] for one in operation.get("parameters", ()) if one["in"] == "query"}
    found: Json = {}
    for name, text in request.query_params.multi_items():
        pair = _PAIR.fullmatch(name)
        place, key = (found.setdefault(pair[1], {}), pair[2]) if pair else (found, name)
        if not isinstance(place, dict) or key in place:
            raise ApiError(400, f"{name}: expected one value, got several", param=name, code="invalid_value")
        is_number = schemas.get(name, {}).get("type") == "integer" and re.fullmatch("[0-9]{1,9}", text)
        place[key] = int(text) if is_number else text
    check(found, {"type": "object", "properties": schemas, "additionalProperties": False})
    return {name: schema.get("default") for name, schema in schemas.items()} | found


async def json_of(request: Request, schema: Json) -> Json:
    """The JSON object that a request brings. Raises `ApiError`."""
    kind = request.headers.get("content-type", "none")
    if kind.partition(";")[0].strip().lower() != JSON:
        raise ApiError(415, f"expected the type {JSON}, got {kind[:_MAX_SHOWN]}", code="unsupported_media_type")
    body = bytearray()
    async for data in request.stream():
        body += data
        if len(body) > MAX_BODY_BYTES:
            raise ApiError(413, f"expected at most {MAX_BODY_BYTES} bytes, got more", code="request_too_large")
    try:
        found = parse_json(bytes(body), depth=16)
        json.dumps(found, ensure_ascii=False, allow_nan=False).encode()  # no half of a surrogate pair, no infinity
    except ValueError as error:
        raise ApiError(400, f"body: expected JSON, got something else: {error}", code="invalid_json") from error
    check(found, schema)
    return dict(found)


def size_of(request: Request) -> int:
    """The bytes that an upload says it has, which a server holds it to. Raises `ApiError` before anything is read."""
    text = request.headers.get("content-length", "")
    if not re.fullmatch("[0-9]{1,18}", text):
        raise ApiError(411, "expected a content-length, got none", code="length_required")
    if int(text) > MAX_FILE_BYTES:
        raise ApiError(413, f"expected at most {MAX_FILE_BYTES} bytes, got {text}", param="file", code="file_too_large")
    return int(text)


@asynccontextmanager
async def form_of(request: Request, schema: Json) -> AsyncIterator[Json]:
    """The fields of a form and its file, which lies on the disk until the block ends. Raises `ApiError`."""
    try:
        form = await request.form(max_files=1, max_fields=8, max_part_size=_MAX_FIELD_BYTES)
    except ValueError as error:  # of a charset that decodes nothing
        raise ApiError(400, "expected a form in UTF-8, got another", code="invalid_form") from error
    try:
        items = form.multi_items()
        values = {name: value for name, value in items if isinstance(value, str) != (name == "file")}
        if len({name for name, _ in items}) != len(items) or not all(name.isprintable() for name, _ in items):
            raise ApiError(400, "expected one field of each name, got others", code="invalid_form")
        check({name: value if isinstance(value, str) else value.filename for name, value in values.items()}, schema)
        yield values
    finally:
        await form.close()
