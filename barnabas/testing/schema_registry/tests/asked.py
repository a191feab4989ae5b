"""Asks a registry as over HTTP, without a socket."""

from __future__ import annotations

import json
from typing import Any, cast

import msgspec

from barnabas.testing.control.http import Request
from barnabas.testing.schema_registry.registry import SchemaRegistry
from barnabas.testing.schema_registry.routes import CONTENT_TYPE, PREFIX


class Asked:
    """A registry of its own."""

    def __init__(self) -> None:
        self.registry = SchemaRegistry(cast(Any, None))  # it does not listen

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Status and JSON."""
        path, _, query = path.partition("?")
        pairs = dict(each.split("=", 1) for each in query.split("&") if each)
        sent = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        parts = (PREFIX, *(each for each in path.split("/") if each))
        answer = self.registry.answer(Request(method, parts, pairs, sent))
        assert answer.content_type == CONTENT_TYPE
        return answer.status, json.loads(msgspec.json.encode(answer.value))

    def done(self, method: str, path: str, body: Any = None) -> Any:
        status, answer = self.ask(method, path, body)
        assert status == 200, answer
        return answer

    def refused(self, method: str, path: str, body: Any = None) -> tuple[int, int, str]:
        """Status, code and message of an error."""
        status, answer = self.ask(method, path, body)
        assert set(answer) == {"error_code", "message"}, answer
        return status, answer["error_code"], answer["message"]

    def register(self, subject: str, schema: Any, query: str = "", **more: Any) -> int:
        """The id."""
        found = self.done("POST", f"/subjects/{subject}/versions{query}", draft(schema, **more))
        return int(found["id"])


def draft(schema: Any, **more: Any) -> dict[str, Any]:
    """The body of a request."""
    return {"schema": schema if isinstance(schema, str) else json.dumps(schema), **more}


def record(*fields: Any, name: str = "R") -> dict[str, Any]:
    """An Avro record: of a field's name, or of a pair of name and default, which are of strings."""
    entries = [
        {"name": each, "type": "string"}
        if isinstance(each, str)
        else {"name": each[0], "type": "string", "default": each[1]}
        for each in fields
    ]
    return {"type": "record", "name": name, "fields": entries}
