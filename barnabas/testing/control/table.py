"""Tables of routes: what a decorator has entered, and how a request finds its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec

from barnabas.controller.config.validators import ConfigError
from barnabas.runtime.http import HttpError
from barnabas.testing.contents import NoLeader
from barnabas.testing.control.http import JSON, Answer, Request
from barnabas.testing.control.messages import Failure
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

    def call(self, subject: Any, given: dict[str, str], request: Request) -> Any:
        """Call the handler with what the request has. HttpError where body or query are not as the route says."""
        arguments: dict[str, Any] = {**given}
        try:
            if self.body is not None:
                arguments["body"] = msgspec.json.decode(request.body or b"{}", type=self.body)
            if self.query is not None:
                arguments["query"] = msgspec.convert(request.query, type=self.query, strict=False)
        except (msgspec.ValidationError, msgspec.DecodeError) as error:
            raise HttpError(400, str(error)) from None
        return self.handler(subject, **arguments)


class Table(msgspec.Struct, frozen=True):
    """Routes of one kind: `failure` is the struct that errors are sent as."""

    failure: type[Any]
    content_type: str = JSON
    routes: list[Route] = []

    def route(
        self, method: str, path: str, summary: str, *, body: Any = None, query: Any = None, answer: Any = None
    ) -> Callable[[H], H]:
        """Enter the decorated function, whose first argument is what the routes work on."""

        def enter(handler: H) -> H:
            self.routes.append(Route(method, path, summary, handler, body, query, answer))
            return handler

        return enter

    def find(self, request: Request) -> tuple[Route, dict[str, str]]:
        """The route of a request, and what stands in its braces. HttpError."""
        candidates = [(each, each.arguments(request.path)) for each in self.routes]
        found = [(each, given) for each, given in candidates if given is not None]
        if not found:
            raise HttpError(404, f"there is no /{'/'.join(request.path)}; /openapi.json tells what there is")
        for each, given in found:
            if each.method == request.method:
                return each, given
        raise HttpError(
            405, f"/{'/'.join(request.path)} takes {', '.join(sorted(each.method for each, _ in found))}"
        )


CONTROLS: Final = Table(Failure)
route = CONTROLS.route


def answer(control: Any, request: Request) -> Answer:
    """Find the route of a control and call it. HttpError."""
    found, given = CONTROLS.find(request)
    try:
        result = found.call(control, given, request)
    except (ValueError, RequestFailed, ConfigError) as error:
        raise HttpError(400, str(error)) from None
    except LookupError as error:
        raise HttpError(404, str(error.args[0] if error.args else error)) from None
    except (AssertionError, TimeoutError, NoLeader) as error:
        raise HttpError(409, str(error)) from None
    return Answer(204) if found.answer is None else Answer(200, result)
