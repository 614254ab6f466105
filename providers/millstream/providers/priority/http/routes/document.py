"""The OpenAPI 3.1 document, made from the table of routes.

Owns `document_of`. Invariants: the document contains only what the table contains, and is always
the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from inspect import cleandoc
from typing import Any

import msgspec

from millstream.providers.priority.http.forms.bodies import NoFields
from millstream.providers.priority.http.forms.problems import ProblemBody

from .leases import LEASE_HEADER
from .route import Route

__all__ = ["DOCUMENT_PATH", "document_of"]

DOCUMENT_PATH = "/openapi.json"
JSON, RAW, PROBLEM = "application/json", "application/octet-stream", "application/problem+json"
REF = "#/components/schemas/{name}"
WHY = {
    400: "a field is not valid: correct it",
    401: "the token is missing or wrong",
    404: "the queue, message, lease or path does not exist",
    405: "the path has other methods: see Allow",
    408: "the body did not arrive in time",
    409: "the state of the queue or message does not allow the request",
    410: "the lease is over: stop the work",
    413: "the body, or the payload, is too large",
    415: "the body has another content type, or an encoding",
    422: "the Idempotency-Key was used for another request",
    429: "a limit is reached: try again after Retry-After",
    500: "the server failed; its log has the error",
    503: "the cluster does not answer, or the queue is blocked: try again after Retry-After",
}
KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "A request with a key is carried out once. A repeat with the same key gets "
    "the stored answer, while the queue keeps it (`answers_kept_ms`). A request that changed "
    "nothing is carried out again.",
    "schema": {"type": "string", "minLength": 1, "maxLength": 256, "pattern": "^[!-~]+$"},
}


def document_of(routes: Sequence[Route[Any, Any]], version: str) -> dict[str, Any]:
    """The document of these routes."""
    schemas = Schemas(types_in(routes))
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = operation(route, schemas)
    paths[DOCUMENT_PATH] = {"get": own_operation()}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Millstream priority queues", "version": version},
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": schemas.components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def types_in(routes: Iterable[Route[Any, Any]]) -> list[type[Any]]:
    """Return all types that the routes name, each once."""
    named: list[type[Any]] = [ProblemBody]
    for route in routes:
        named += [one for one in (route.body, route.query, route.raw, route.answer) if one]
    return list(dict.fromkeys(one for one in named if one not in (bytes, NoFields)))


class Schemas:
    """The schemas of types, by name."""

    def __init__(self, types: Sequence[type[Any]]) -> None:
        refs, components = msgspec.json.schema_components(types, ref_template=REF)
        self._refs = dict(zip(types, refs, strict=True))
        self.components: dict[str, Any] = components
        for schema in self.components.values():
            if "description" in schema:
                # the docstring of the type, which Python below 3.13 does not dedent
                schema["description"] = cleandoc(schema["description"])

    def ref(self, kind: type[Any]) -> dict[str, Any]:
        return self._refs[kind]

    def fields(self, kind: type[Any] | None) -> list[dict[str, Any]]:
        """The fields of a query as parameters."""
        if kind is None or kind is NoFields:
            return []
        schema = self.components[kind.__name__]
        required = schema.get("required", ())
        return [
            {"name": name, "in": "query", "required": name in required, "schema": of}
            for name, of in schema["properties"].items()
        ]


def operation(route: Route[Any, Any], schemas: Schemas) -> dict[str, Any]:
    found: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.text,
        "parameters": parameters(route, schemas),
        "responses": responses(route, schemas),
    }
    if route.takes_body:
        found["requestBody"] = request_body(route, schemas)
    return found


def parameters(route: Route[Any, Any], schemas: Schemas) -> list[dict[str, Any]]:
    named = [part[1:-1] for part in route.segments if part.startswith("{")]
    text = {"type": "string", "minLength": 1, "maxLength": 256}
    token = {"type": "string", "pattern": "^[0-9]{1,15}[.][0-9]{1,15}$"}
    found = [
        {"name": one, "in": "path", "required": True, "schema": token if one == "token" else text}
        for one in named
    ]
    found += schemas.fields(route.query)
    for one in schemas.fields(route.raw):
        told = f"only with a body of {RAW}"
        found.append(one | {"required": False, "description": told})
    return [*found, KEY] if route.is_keyed else found


def request_body(route: Route[Any, Any], schemas: Schemas) -> dict[str, Any]:
    if route.body is NoFields:
        empty = {"type": "object", "additionalProperties": False}
        return {"required": False, "content": {JSON: {"schema": empty}}}
    content: dict[str, Any] = {JSON: {"schema": schemas.ref(route.body)}}
    if route.raw is not None:
        content[RAW] = {"schema": {"type": "string", "format": "binary"}}
    required = bool(schemas.components[route.body.__name__].get("required"))
    return {"required": required, "content": content}


def responses(route: Route[Any, Any], schemas: Schemas) -> dict[str, Any]:
    found = {str(status): success(route, status, schemas) for status in route.statuses}
    problem = {PROBLEM: {"schema": schemas.ref(ProblemBody)}}
    again = {"Retry-After": {"description": "seconds", "schema": {"type": "integer"}}}
    for status, why in WHY.items():
        if is_refused_with(route, status):
            found[str(status)] = {"description": why, "content": problem}
            if status in (429, 503):
                found[str(status)]["headers"] = again
    return found


def is_refused_with(route: Route[Any, Any], status: int) -> bool:
    if status == 422:
        return route.is_keyed
    if status == 405:
        return False  # another method is another operation
    return route.takes_body or status not in (408, 413, 415)


def success(route: Route[Any, Any], status: int, schemas: Schemas) -> dict[str, Any]:
    found: dict[str, Any] = {"description": route.text}
    binary = {"schema": {"type": "string", "format": "binary"}}
    if status == 204 or route.answer is None:
        return {"description": "done; no content"}
    if route.answer is bytes:
        return found | {"content": {RAW: binary}}
    found["content"] = {JSON: {"schema": schemas.ref(route.answer)}}
    if route.gives_raw:
        found["content"][RAW] = binary
        told = "the lease as JSON, if the body is the payload"
        found["headers"] = {LEASE_HEADER: {"description": told, "schema": {"type": "string"}}}
    if status == 201:
        place = {"description": "the path of the message", "schema": {"type": "string"}}
        found["headers"] = {"Location": place}
    return found


def own_operation() -> dict[str, Any]:
    problem = {PROBLEM: {"schema": {"$ref": REF.format(name=ProblemBody.__name__)}}}
    refusals = {
        str(status): {"description": WHY[status], "content": problem} for status in (400, 401, 500)
    }
    found = {
        "description": "the OpenAPI document",
        "content": {JSON: {"schema": {"type": "object"}}},
    }
    return {
        "operationId": "getDocument",
        "summary": "This document.",
        "responses": {"200": found, **refusals},
    }
