"""The table of routes: what `@route` has entered, and how a request finds its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec

from barnabas.controller.config.validators import ConfigError
from barnabas.runtime.http import HttpError
from barnabas.testing.contents import NoLeader
from barnabas.testing.control.http import Request
from barnabas.testing.operations import RequestFailed

H = TypeVar("H", bound=Callable[..., Any])


class Route(msgspec.Struct, frozen=True):
    """One method of one path. Parts of the path in braces are arguments of the handler by that name; `body` and `query`
    are structs that the handler gets under these names; `answer` is what it returns, None where nothing is sent."""

    method: str
    path: str
    summary: str
    handler: Callable[..., Any]
    body: Any
    query: Any
    answer: Any

    @property
    def parts(self) -> tuple[str, ...]:
        return tuple(part for part in self.path.split("/") if part)

    def arguments(self, path: tuple[str, ...]) -> dict[str, str] | None:
        """What stands in the braces; None when the path is another."""
        if len(path) != len(self.parts):
            return None
        found = {}
        for mine, given in zip(self.parts, path, strict=True):
            if mine.startswith("{"):
                found[mine[1:-1]] = given
            elif mine != given:
                return None
        return found


ROUTES: Final[list[Route]] = []


def route(
    method: str, path: str, summary: str, *, body: Any = None, query: Any = None, answer: Any = None
) -> Callable[[H], H]:
    """Enter the decorated function, whose first argument is the control, into the table."""

    def enter(handler: H) -> H:
        ROUTES.append(Route(method, path, summary, handler, body, query, answer))
        return handler

    return enter


def answer(control: Any, request: Request) -> tuple[int, Any]:
    """Find the route of a request and call it. HttpError."""
    candidates = [(each, each.arguments(request.path)) for each in ROUTES]
    found = [(each, given) for each, given in candidates if given is not None]
    if not found:
        raise HttpError(404, f"there is no /{'/'.join(request.path)}; /openapi.json tells what there is")
    for each, given in found:
        if each.method == request.method:
            return _call(control, each, given or {}, request)
    raise HttpError(
        405, f"/{'/'.join(request.path)} takes {', '.join(sorted(each.method for each, _ in found))}"
    )


def _call(control: Any, found: Route, given: dict[str, str], request: Request) -> tuple[int, Any]:
    arguments: dict[str, Any] = {**given}
    try:
        if found.body is not None:
            arguments["body"] = msgspec.json.decode(request.body or b"{}", type=found.body)
        if found.query is not None:
            arguments["query"] = msgspec.convert(request.query, type=found.query, strict=False)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise HttpError(400, str(error)) from None
    try:
        result = found.handler(control, **arguments)
    except (ValueError, RequestFailed, ConfigError) as error:
        raise HttpError(400, str(error)) from None
    except LookupError as error:
        raise HttpError(404, str(error.args[0] if error.args else error)) from None
    except (AssertionError, TimeoutError, NoLeader) as error:
        raise HttpError(409, str(error)) from None
    return (204, None) if found.answer is None else (200, result)
