"""The tables of docs/control-api.md: the routes of the test broker's controls, and the structs that they take and answer with."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any, Final, get_args

import msgspec

from barnabas.testing.control import routes, routes_faults, routes_security, routes_steering
from barnabas.testing.control.table import CONTROLS, Route
from barnabas.testing.schema_registry import routes as routes_registry
from barnabas.testing.schema_registry.routes import REGISTRY

PAGE: Final = "docs/control-api.md"
_ROUTES: Final = {
    "contents": routes,
    "faults": routes_faults,
    "steering": routes_steering,
    "security": routes_security,
    "schema-registry": routes_registry,
}


def _structs_in(kind: Any) -> Iterator[type[msgspec.Struct]]:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        yield kind
    for each in get_args(kind):
        yield from _structs_in(each)


def _structs() -> list[type[msgspec.Struct]]:
    """All that go over the wire, those in fields of others too, by name."""
    left = [each for table in (CONTROLS, REGISTRY) for each in (table.failure, *_kinds(table.routes))]
    found: dict[str, type[msgspec.Struct]] = {}
    while left:
        for struct in _structs_in(left.pop()):
            if struct.__name__ not in found:
                found[struct.__name__] = struct
                left += [field.type for field in msgspec.structs.fields(struct)]
    return [found[name] for name in sorted(found)]


def _kinds(all_routes: list[Route]) -> list[Any]:
    return [kind for each in all_routes for kind in (each.body, each.query, each.answer) if kind is not None]


def _linked(kind: Any) -> str:
    """The name of a type, with links to the structs in it."""
    if kind is None:
        return ""
    text = kind.__name__ if isinstance(kind, type) and not get_args(kind) else str(kind)
    names = {struct.__name__ for struct in _structs_in(kind)}
    text = re.sub(r"[\w.]*\.(\w+)", r"\1", text)
    return re.sub(
        r"\w+", lambda word: f"[{word[0]}](#{word[0].lower()})" if word[0] in names else word[0], text
    ).replace("|", "\\|")


def _routes(module: str, all_routes: list[Route]) -> str:
    rows = ["| request | what it does | query | body | answer |", "|---|---|---|---|---|"]
    for each in all_routes:
        if each.handler.__module__ == module:
            about = " ".join([each.summary, *(inspect.getdoc(each.handler) or "").split()])
            columns = (
                f"`{each.method} {each.path}`",
                about,
                *map(_linked, (each.query, each.body, each.answer)),
            )
            rows.append(f"| {' | '.join(columns)} |")
    assert len(rows) > 2, module
    return "\n".join(rows)


def _comment(lines: list[str]) -> str:
    """What stands behind `#` in the lines of a field."""
    found = [line.partition("  # ")[2] or line.partition(" # ")[2] for line in lines]
    return " ".join(filter(None, (each.strip() for each in found)))


def _struct(struct: type[msgspec.Struct]) -> str:
    source = textwrap.dedent(inspect.getsource(struct))
    lines = source.splitlines()
    (definition,) = ast.parse(source).body
    assert isinstance(definition, ast.ClassDef)
    rows = ["| field | type | default | |", "|---|---|---|---|"]
    for field in definition.body:
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            kind = ast.unparse(field.annotation)
            default = "" if field.value is None else f"`{ast.unparse(field.value)}`"
            note = _comment(lines[field.lineno - 1 : field.end_lineno])
            rows.append(
                f"| `{field.target.id}` | `{kind}` | {default} | {note} |".replace(" | None", " \\| None")
            )
    about = inspect.getdoc(struct) or ""
    return "\n".join([f"### {struct.__name__}", "", *([about, ""] if about else []), *rows, ""])


def tables() -> dict[str, str]:
    """Markdown by the name of its markers."""
    all_routes = [*CONTROLS.routes, *REGISTRY.routes]
    found = {name: _routes(module.__name__, all_routes) for name, module in _ROUTES.items()}
    listed = sum(text.count("\n") - 1 for text in found.values())
    assert listed == len(all_routes), "routes of a module that has no table"
    return {**found, "structs": "\n".join(map(_struct, _structs()))}
