"""The console over HTTP: the page's files, views as JSON, and a live tail as server-sent events.

It serves reads alone. Who reaches the listener sees everything, so pages of other sites must not: requests have to name this
machine (by an address, as localhost, or by a name of one of the broker's listeners, because any other site's name may lead here:
DNS rebinding), and no header lets another site read an answer. The page runs its own scripts only (Content-Security-Policy).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, urlsplit

import msgspec

from barnabas.broker.metrics.process import EventLoopLag
from barnabas.console.cluster import TEXT_MAX, Cluster, Unanswered, page_of, run
from barnabas.console.groups import group_page, group_view
from barnabas.console.messages import RECORDS_MAX, Wanted, first_positions, read, read_one
from barnabas.console.tail import Tails, parse_positions
from barnabas.console.topics import ClusterCounts, topic_configs, topic_page, topic_view
from barnabas.runtime.http import Head, HttpError, host_of, is_address, is_loopback, reason
from barnabas.runtime.http_server import Bounds
from barnabas.runtime.procedures import in_thread

if TYPE_CHECKING:
    from barnabas.broker.extension import ExtensionHost
    from barnabas.runtime.http_server import HttpRequest
    from barnabas.runtime.interface import Runtime

log = logging.getLogger("barnabas.console")

BOUNDS: Final = Bounds(
    connections=96, unfinished=32, head_bytes=16 * 1024, request_s=5.0, idle_s=5.0, answer_s=30.0
)
ROWS: Final = 100  # of a page, unless it asks for another number
ROWS_MAX: Final = 500
JSON: Final = "application/json"
TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
PAGE: Final = Path(__file__).parent / "page"
_HEADERS: Final = "".join(
    f"{name}: {value}\r\n"
    for name, value in {
        "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        "X-Content-Type-Options": "nosniff",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-store",
    }.items()
)
# Of a request that a browser sends for a page: where that page is from
_OWN_SITES: Final = ("same-origin", "none")


class ReportPage(msgspec.Struct):
    rows: list[Mapping[str, Any]]
    total: int  # that match
    has_more: bool


class Query:
    """The parameters of a request, as text from a client. HttpError where one is missing or wrong."""

    def __init__(self, text: str) -> None:
        try:
            self._given = dict(parse_qsl(text, keep_blank_values=True, max_num_fields=32))
        except ValueError:
            raise HttpError(400, "too many parameters") from None

    def text(self, name: str, default: str | None = "") -> str:
        found = self._given.get(name, default)
        if found is None:
            raise HttpError(400, f"{name} is missing")
        return found

    def number(self, name: str, default: int, highest: int = 2**63 - 1) -> int:
        """An integer from 0 on."""
        text = self._given.get(name, "")
        if not text:
            return default
        if not (text.isascii() and text.isdigit() and len(text) < 20):
            raise HttpError(400, f"{name} must be a number")
        return min(int(text), highest)

    def optional(self, name: str) -> int | None:
        found = self.number(name, -1)
        return None if found < 0 else found

    def flag(self, name: str) -> bool:
        return self._given.get(name) == "true"

    @property
    def limit(self) -> int:
        return max(1, self.number("limit", ROWS, ROWS_MAX))


View = Callable[[Query], Coroutine[Any, Any, Any]]


class Console:
    """The Service of an HTTP server (barnabas/runtime/http_server.py)."""

    def __init__(
        self,
        runtime: Runtime,
        host: Callable[[], ExtensionHost | None],
        is_own: Callable[[str], bool],
        *,
        base: str = "/",
        test_state: Callable[[], Any] | None = None,
    ) -> None:
        """`host()`: the broker whose view is shown; None while it does not run. `is_own(name)`: whether requests may
        name it so, beside addresses and the names of its listeners. `base`: the path of the page. `test_state`: of a test broker, called in a thread."""
        self._runtime = runtime
        self._host = host
        self._is_own = is_own
        self._base = base
        self._test_state = test_state
        self._files: dict[str, tuple[str, bytes]] = {}
        self._lag = EventLoopLag(runtime)
        self._cluster = Cluster(runtime, host)
        self._tails = Tails(self._cluster)
        counts = ClusterCounts(self._cluster, self._lag, is_test_broker=test_state is not None)
        self._views: dict[str, View] = {
            "overview": lambda _: counts.overview(),
            "topics": self._topics,
            "topic": self._topic,
            "configs": lambda query: topic_configs(self._cluster, query.text("topic", None)),
            "messages": self._messages,
            "message": self._message,
            "groups": self._groups,
            "group": lambda query: group_view(self._cluster, query.text("group", None)),
            "report": self._report,
            "test": self._test,
        }
        self._lag.start()

    def close(self) -> None:
        self._lag.stop()
        self._tails.close()

    # -- the HTTP server's service

    def check(self, head: Head) -> None:
        host = host_of(head.headers.get("host", ""))
        if not (is_loopback(host) or is_address(host) or self._is_own(host) or host in self._advertised()):
            raise HttpError(
                403, f"{host[:TEXT_MAX]!r} is not a name of this broker: use its address, or localhost"
            )
        origin = head.headers.get("origin")  # browsers send it with scripts of the page, too
        if origin is not None and origin.partition("://")[2] != head.headers.get("host"):
            raise HttpError(403, "a page of another site does not read this")
        if head.method != "GET":
            raise HttpError(405, "the console changes nothing: GET is all there is")

    def serve(self, request: HttpRequest) -> None:
        try:
            url = urlsplit(request.head.target)
        except ValueError:
            raise HttpError(400, "this is no address") from None
        if url.path == self._base.rstrip("/") != "":  # relative addresses in the page need the slash
            request.respond(308, TYPES[".html"], b"", f"Location: {self._base}\r\n{_HEADERS}")
            return
        path = url.path.removeprefix(self._base)
        if not path.startswith("api/"):
            self._serve_file(request, path or "index.html")
            return
        if request.head.headers.get("sec-fetch-site", "none") not in _OWN_SITES:
            raise HttpError(403, "a page of another site does not read this")
        query, name = Query(url.query), path.removeprefix("api/")
        if name == "tail":
            self._begin_tail(request, query)
            return
        view = self._views.get(name)
        if view is None:
            raise HttpError(404, f"there is no view {name[:TEXT_MAX]!r}")
        run(view(query), partial(self._respond, request), partial(self._failed, request))

    def refuse(self, request: HttpRequest, error: HttpError) -> None:
        body = msgspec.json.encode({"error": str(error) or reason(error.status)})
        allow = "Allow: GET\r\n" if error.status == 405 else ""
        request.respond(error.status, JSON, body, allow + _HEADERS)

    # -- responses

    def _respond(self, request: HttpRequest, view: object) -> None:
        request.respond(200, JSON, msgspec.json.encode(view), _HEADERS)

    def _failed(self, request: HttpRequest, error: Exception) -> None:
        if isinstance(error, Unanswered):
            error = HttpError(504, str(error))
        if not isinstance(error, HttpError):
            log.error("a view of the console failed", exc_info=error)
            error = HttpError(500, "the console failed; the broker's log says why")
        self.refuse(request, error)

    def _serve_file(self, request: HttpRequest, path: str) -> None:
        if not self._files:
            self._files = {
                each.name: (TYPES[each.suffix], each.read_bytes())
                for each in PAGE.iterdir()
                if each.suffix in TYPES
            }
        found = self._files.get(path)
        if found is None:
            raise HttpError(404, f"there is no {path[:TEXT_MAX]!r}")
        request.respond(200, *found, _HEADERS)

    def _advertised(self) -> set[str]:
        host = self._host()
        return set() if host is None else {each.host.lower() for each in host.endpoints.values()}

    # -- views

    async def _topics(self, query: Query) -> Any:
        internal = query.flag("internal")
        filtered, after = query.text("filter"), query.text("after")
        return await topic_page(self._cluster, filtered, after, query.limit, shows_internal=internal)

    async def _topic(self, query: Query) -> Any:
        return await topic_view(
            self._cluster, query.text("topic", None), query.number("first", 0), query.limit
        )

    async def _groups(self, query: Query) -> Any:
        return await group_page(self._cluster, query.text("filter"), query.text("after"), query.limit)

    async def _messages(self, query: Query) -> Any:
        wanted = _wanted(query)
        return await read(self._cluster, wanted, await self._positions(query, wanted, "end"))

    async def _message(self, query: Query) -> Any:
        partition, offset = query.number("partition", 0), query.number("offset", 0)
        return await read_one(self._cluster, query.text("topic", None), partition, offset)

    async def _report(self, query: Query) -> Any:
        name, host = query.text("name", None), self._cluster.host
        report = next((each for each in host.reports() if each.name == name), None)
        if report is None:
            raise HttpError(404, f"nothing here reports as {name[:TEXT_MAX]!r}")
        rows = ((f"{row.get('topic', number)}", row) for number, row in enumerate(report.rows))
        steps = page_of(rows, query.text("filter"), query.text("after"), query.limit)
        page = await self._cluster.in_slices(steps)
        return ReportPage([row for _, row in page.rows], page.total, page.has_more)

    async def _test(self, _query: Query) -> Any:
        if self._test_state is None:
            raise HttpError(404, "this is no test broker")
        return await in_thread(self._runtime, self._test_state)

    async def _positions(self, query: Query, wanted: Wanted, default: str) -> dict[int, int]:
        """Where a read begins in each partition."""
        given = query.text("positions")
        if given:
            return parse_positions(given)
        begin, at = query.text("from") or default, query.number("at", 0)
        return await first_positions(
            self._cluster, wanted.topic, query.optional("partition"), begin, at, wanted.limit
        )

    def _begin_tail(self, request: HttpRequest, query: Query) -> None:
        wanted = _wanted(query)
        given = request.head.headers.get("last-event-id", "")  # of a browser that has lost its connection

        async def positions() -> dict[int, int]:
            self._cluster.topic(wanted.topic)
            return parse_positions(given) if given else await self._positions(query, wanted, "tail")

        self._tails.begin(request, wanted, positions(), _HEADERS, partial(self._failed, request))


def _wanted(query: Query) -> Wanted:
    limit = min(query.limit, RECORDS_MAX)
    needle = query.text("filter").encode(errors="surrogateescape")
    return Wanted(query.text("topic", None), limit, needle, query.flag("committed"))
