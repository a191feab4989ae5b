"""The OpenAPI 3.1 description of the controls, made from the table of routes and the structs that go over the wire."""

from __future__ import annotations

import inspect
from typing import Any

import msgspec

from barnabas import __version__
from barnabas.testing.control.table import CONTROLS, Route, Table
from barnabas.testing.schema_registry.routes import REGISTRY

_REF = "#/components/schemas/{name}"


def description(url: str) -> dict[str, Any]:
    """The document, as what JSON can say. `url` is where the controls are served."""
    tables = (CONTROLS, REGISTRY)
    routes = [(each, table) for table in tables for each in table.routes]
    types = [each.failure for each in tables]
    types += [each for route, _ in routes for each in (route.body, route.query, route.answer) if each]
    shapes, schemas = msgspec.json.schema_components(types, ref_template=_REF)
    by_type = {str(each): shape for each, shape in zip(types, shapes, strict=True)}
    paths: dict[str, Any] = {}
    for each, table in routes:
        paths.setdefault(each.path, {})[each.method.lower()] = _operation(each, table, by_type, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Barnabas test broker",
            "version": __version__,
            "description": "Makes a test broker do what it otherwise would not.",
        },
        "servers": [{"url": url}],
        "paths": paths,
        "components": {"schemas": schemas},
    }


def _operation(
    route: Route, table: Table, by_type: dict[str, Any], schemas: dict[str, Any]
) -> dict[str, Any]:
    def content(sent: Any) -> dict[str, Any]:
        return {table.content_type: {"schema": by_type[str(sent)]}}

    operation: dict[str, Any] = {"operationId": route.handler.__name__, "summary": route.summary}
    about = inspect.getdoc(route.handler)
    if about:
        operation["description"] = about
    parameters = [
        {"name": part[1:-1], "in": "path", "required": True, "schema": {"type": "string"}}
        for part in route.parts
        if part.startswith("{")
    ]
    if route.query is not None:
        for name, schema in schemas[route.query.__name__]["properties"].items():
            parameters.append({"name": name, "in": "query", "required": False, "schema": schema})
    if parameters:
        operation["parameters"] = parameters
    if route.body is not None:
        operation["requestBody"] = {"required": True, "content": content(route.body)}
    success = (
        {"204": {"description": "Done."}}
        if route.answer is None
        else {"200": {"description": "Done.", "content": content(route.answer)}}
    )
    failure = {"description": "Why not.", "content": content(table.failure)}
    operation["responses"] = {**success, "default": failure}
    return operation
