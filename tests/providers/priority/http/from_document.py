"""Requests made from the OpenAPI document, and checks of answers against the document.

The module supports the parts of JSON Schema that the document uses, and fails on others.
"""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from hypothesis import strategies as st

__all__ = ["Call", "calls", "complaint"]

Strategy = st.SearchStrategy[Any]
KNOWN = {
    *("type", "title", "description", "default", "properties", "required", "items", "enum"),
    *("additionalProperties", "anyOf", "minimum", "maximum", "minLength", "maxLength", "pattern"),
    *("maxItems", "minItems", "maxProperties", "contentEncoding", "format", "$ref"),
}
KINDS: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
    "array": (list,),
    "object": (dict,),
}
FEW = st.sampled_from(["a", "b"])  # few names, so that they repeat


class Call(NamedTuple):
    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    operation: dict[str, Any]


def resolved(document: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    assert schema.keys() <= KNOWN, schema
    if "$ref" not in schema:
        return schema
    found: dict[str, Any] = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return found


def complaint(document: dict[str, Any], schema: dict[str, Any], value: object) -> str:
    """Return the fault of a value, or an empty text if the value fits the schema."""
    schema = resolved(document, schema)
    if "anyOf" in schema:
        found = [complaint(document, one, value) for one in schema["anyOf"]]
        return "" if "" in found else f"{value!r} is none of {schema['anyOf']}"
    if "enum" in schema:
        return "" if value in schema["enum"] else f"{value!r} is not of {schema['enum']}"
    kind = schema.get("type")
    is_bool = isinstance(value, bool) and kind != "boolean"
    if kind is not None and (is_bool or not isinstance(value, KINDS[kind])):
        return f"{value!r} is no {kind}"
    if isinstance(value, list):
        return next(filter(None, (complaint(document, schema["items"], one) for one in value)), "")
    return fields_complaint(document, schema, value) if isinstance(value, dict) else ""


def fields_complaint(document: dict[str, Any], schema: dict[str, Any], value: Any) -> str:
    properties, more = schema.get("properties", {}), schema.get("additionalProperties", True)
    missing = set(schema.get("required", ())) - value.keys()
    if missing:
        return f"{missing} is missing"
    for name, one in value.items():
        of = properties.get(name, more)
        if of is False:
            return f"{name} is unknown"
        if isinstance(of, dict) and (found := complaint(document, of, one)):
            return f"{name}: {found}"
    return ""


def values(document: dict[str, Any], schema: dict[str, Any]) -> Strategy:
    """Return a strategy for values that fit a schema."""
    schema = resolved(document, schema)
    if "anyOf" in schema:
        return st.one_of([values(document, one) for one in schema["anyOf"]])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    return MAKERS[schema["type"]](document, schema)


def texts(_: dict[str, Any], schema: dict[str, Any]) -> Strategy:
    if schema.get("contentEncoding") == "base64":
        return st.sampled_from(["", "eA==", "eHh4"])
    if "pattern" in schema:
        return st.from_regex(re.compile(schema["pattern"], re.A), fullmatch=True)
    least = schema.get("minLength", 0)
    return st.one_of(FEW, st.text(min_size=least, max_size=min(schema.get("maxLength", 30), 30)))


def integers(_: dict[str, Any], schema: dict[str, Any]) -> Strategy:
    least, most = schema.get("minimum"), schema.get("maximum")
    few = st.integers(least, most)
    return st.one_of(few, st.integers(max(least or 0, 0), min(most or 5, 5)))


def numbers(_: dict[str, Any], schema: dict[str, Any]) -> Strategy:
    least = schema.get("minimum")
    return st.floats(least, allow_nan=False, allow_infinity=False) | st.sampled_from([0, 0.001, 1])


def objects(document: dict[str, Any], schema: dict[str, Any]) -> Strategy:
    properties, more = schema.get("properties"), schema.get("additionalProperties")
    if not properties:
        if not isinstance(more, dict):
            return st.just({})
        most = schema.get("maxProperties", 3)
        return st.dictionaries(FEW, values(document, more), max_size=most)
    named = {name: values(document, one) for name, one in properties.items()}
    required = {name: named.pop(name) for name in schema.get("required", ())}
    return st.fixed_dictionaries(required, optional=named)


def arrays(document: dict[str, Any], schema: dict[str, Any]) -> Strategy:
    return st.lists(values(document, schema["items"]), max_size=3)


MAKERS = {
    "string": texts,
    "integer": integers,
    "number": numbers,
    "boolean": lambda *_: st.booleans(),
    "null": lambda *_: st.none(),
    "object": objects,
    "array": arrays,
}
ANYTHING: Strategy = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)


RAW = "application/octet-stream"
"""Requests with a raw payload have their other fields in the query."""


@st.composite
def calls(draw: st.DrawFn, document: dict[str, Any], *, is_right: bool) -> Call:
    """A call of any operation, either as the document says or with one wrong part."""
    path = draw(st.sampled_from(sorted(document["paths"])))
    method = draw(st.sampled_from(sorted(document["paths"][path])))
    operation = document["paths"][path][method]
    kinds = operation.get("requestBody", {}).get("content", {})
    kind = draw(st.sampled_from(sorted(kinds))) if kinds else ""
    query: list[tuple[str, str]] = []
    headers = {"Content-Type": kind} if kind else {}
    for one in operation.get("parameters", ()):
        if one["in"] == "path":
            text = draw(values(document, one["schema"]) if is_right else st.text(max_size=8))
            path = path.replace(f"{{{one['name']}}}", quote(text, safe=""))
        elif one["in"] == "header":
            if draw(st.booleans()):
                headers[one["name"]] = draw(st.from_regex("[!-~]{1,3}", fullmatch=True))
        elif ("description" not in one or kind == RAW) and draw(st.booleans()):
            query += said(draw, document, one, is_right)
    body = draw(bodies(document, kinds[kind]["schema"], is_right)) if kind else b""
    if not is_right and draw(st.booleans()):
        query.append((draw(st.text(max_size=4)), draw(st.text(max_size=4))))
    target = f"{path}?{urlencode(query)}" if query else path
    return Call(method.upper(), target, headers, body, operation)


def said(
    draw: st.DrawFn, document: dict[str, Any], parameter: dict[str, Any], is_right: bool
) -> list[tuple[str, str]]:
    name, schema = parameter["name"], parameter["schema"]
    if name in ("wanted", "metadata"):
        return [(name, f"{key}={key}") for key in draw(st.sets(FEW))]
    value = draw(values(document, schema) if is_right else ANYTHING)
    return [(name, value if isinstance(value, str) else json.dumps(value))]


def bodies(document: dict[str, Any], schema: dict[str, Any], is_right: bool) -> Strategy:
    if schema.get("format") == "binary":
        return st.binary(max_size=20)
    right = values(document, schema).map(lambda value: json.dumps(value).encode())
    if is_right:
        return right
    return st.one_of(
        right, ANYTHING.map(lambda value: json.dumps(value).encode()), st.binary(max_size=20)
    )
