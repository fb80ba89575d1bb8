"""The OpenAPI document, made from the declared endpoints and the types that check them.

The document cannot differ from the checks: both come from the same types.
"""

import inspect
import re
from collections.abc import Iterable
from typing import Any

import msgspec

from dovetail import __version__
from dovetail.console.web.endpoint import Endpoint
from dovetail.console.web.errors import ProblemAnswer

_REFS = "#/components/schemas/{name}"

#: What any request can meet, by status.
_PROBLEMS = {
    400: "What was asked does not fit; the message says what and why.",
    401: "Sign in first.",
    403: "A page of another site may not do this.",
    404: "It does not exist, or not any more.",
    409: "It exists already, or the store refused it.",
    421: "The Host header names another machine.",
    429: "A limit is reached; wait.",
    500: "A defect of the node.",
    503: "Try again later; kind Uncertain: it may or may not have happened.",
}
_BODY_PROBLEMS = {
    408: "The body did not come in time.",
    413: "The body is too large.",
    415: "The body is not JSON.",
}

_INTRODUCTION = """\
What the console shows and does. Times `*_ms` are milliseconds since the epoch; `null` means
unknown, never zero. With a token set (`http.token`), send it as `Authorization: Bearer TOKEN`.
Every change is written to the audit log.
"""

_LIVE = {
    "get": {
        "tags": ["live"],
        "operationId": "live",
        "summary": "Watch documents live",
        "description": "Server-sent events. `watch` names a document (`topics`, `topic:orders`, "
        "`group:billing`, `stream:LOG/ENVIRONMENT`, ...); it is sent whole at once, and again "
        "whenever it changed. Events: hello, the watch, trouble, bye.",
        "parameters": [
            {
                "name": "watch",
                "in": "query",
                "required": True,
                "description": "A document; repeat it for several.",
                "schema": {
                    "type": "array",
                    "items": {"type": "string", "maxLength": 600},
                    "minItems": 1,
                    "maxItems": 10,
                },
            }
        ],
    }
}


_BACKUP = {
    "post": {
        "tags": ["backup"],
        "operationId": "take_backup",
        "summary": "Take a backup of this node",
        "description": "Everything that the node holds, as of now: a tar file for "
        "`dovetail restore`. The list of its files is its last member; without it, the file is "
        "not whole. One at a time; 429 while another one is under way.",
        "parameters": [],
    }
}


def document(endpoints: Iterable[Endpoint]) -> dict[str, Any]:
    """The OpenAPI 3.1 document."""
    endpoints = list(endpoints)
    kinds: list[Any] = [ProblemAnswer]
    for endpoint in endpoints:
        kinds += [kind for kind in (endpoint.answer, endpoint.body) if kind is not None]
    _, schemas = msgspec.json.schema_components(kinds, ref_template=_REFS)
    paths: dict[str, Any] = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint)
    live = {"get": {**_LIVE["get"], "responses": _live_responses()}}
    backup = {"post": {**_BACKUP["post"], "responses": _backup_responses()}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Dovetail", "version": __version__, "description": _INTRODUCTION},
        "paths": {**paths, "/v1/live": live, "/v1/backup": backup},
        "components": {
            "schemas": schemas,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"token": []}],
    }


def _operation(endpoint: Endpoint) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "tags": [endpoint.tag],
        "operationId": endpoint.handler.__name__,
        "summary": endpoint.summary,
        "description": inspect.getdoc(endpoint.handler) or "",
        "parameters": [*_path_parameters(endpoint), *_query_parameters(endpoint)],
        "responses": _responses(endpoint),
    }
    if endpoint.body is not None:
        reference = {"$ref": _REFS.format(name=endpoint.body.__name__)}
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": reference}},
        }
    return operation


def _path_parameters(endpoint: Endpoint) -> list[dict[str, Any]]:
    parameters = []
    for name in re.findall(r"{(\w+)}", endpoint.path):
        schema: dict[str, Any] = {"type": "string", "minLength": 1}
        if name in endpoint.numbers:
            schema = {"type": "integer", "minimum": 0, "maximum": 10**18 - 1}
        parameters.append({"name": name, "in": "path", "required": True, "schema": schema})
    return parameters


def _query_parameters(endpoint: Endpoint) -> list[dict[str, Any]]:
    if endpoint.query is None:
        return []
    parameters = []
    for field in msgspec.structs.fields(endpoint.query):
        (schema,), _ = msgspec.json.schema_components([field.type], ref_template=_REFS)
        schema = _without_null(dict(schema))
        description = schema.pop("description", "")
        if field.default not in (msgspec.NODEFAULT, None):
            schema["default"] = field.default
        parameters.append(
            {
                "name": field.encode_name,
                "in": "query",
                "required": field.required,
                "description": description,
                "schema": schema,
            }
        )
    return parameters


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """A parameter is there or not; it is never null."""
    kinds = schema.get("anyOf")
    if kinds is None:
        return schema
    rest = [kind for kind in kinds if kind != {"type": "null"}]
    outer = {name: value for name, value in schema.items() if name != "anyOf"}
    if len(rest) == 1:
        return {**rest[0], **outer}
    return {**outer, "anyOf": rest}


def _responses(endpoint: Endpoint) -> dict[str, Any]:
    good: dict[str, Any] = {"description": "Done."}
    if endpoint.answer is not None:
        reference = {"$ref": _REFS.format(name=endpoint.answer.__name__)}
        good = {
            "description": (endpoint.answer.__doc__ or "Done.").strip().split("\n")[0],
            "content": {"application/json": {"schema": reference}},
        }
    problems = _PROBLEMS | (_BODY_PROBLEMS if endpoint.body is not None else {})
    return {str(endpoint.status): good} | _problem_responses(problems)


def _problem_responses(problems: dict[int, str]) -> dict[str, Any]:
    reference = {"$ref": _REFS.format(name="ProblemAnswer")}
    return {
        str(status): {
            "description": text,
            "content": {"application/json": {"schema": reference}},
        }
        for status, text in sorted(problems.items())
    }


def _live_responses() -> dict[str, Any]:
    stream = {
        "description": "Events, until either side closes.",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    }
    return {"200": stream} | _problem_responses(_PROBLEMS)


def _backup_responses() -> dict[str, Any]:
    file = {
        "description": "The backup.",
        "content": {"application/x-tar": {"schema": {"type": "string", "format": "binary"}}},
    }
    return {"200": file} | _problem_responses(_PROBLEMS)
