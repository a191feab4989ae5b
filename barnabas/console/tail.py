"""The live tail: what is appended to a topic, as server-sent events, for as long as the browser listens.

It reads every POLL_S. Of a topic that grows faster than it shows records, it skips to the end and says how many were left out. An
event's id is the position in each partition, with which a browser continues after it has lost its connection.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from barnabas.console.messages import PARTITIONS_MAX, Page, Wanted, read
from barnabas.runtime.http import HttpError
from barnabas.runtime.procedures import Procedure, pause

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from barnabas.console.cluster import Cluster
    from barnabas.runtime.http_server import HttpRequest

EVENT_STREAM: Final = "text/event-stream"
POLL_S: Final = 0.3
SILENT_POLLS_MAX: Final = 50  # then a comment, by which a connection without a client is noticed
BEHIND_MAX: Final = 1000  # records of a partition; then all but the last are skipped
LASTS_S: Final = 3600.0  # then the browser connects again
TAILS_MAX: Final = 16  # at a time


class Event(msgspec.Struct):
    page: Page
    skipped: int


class Tails:
    """The tails that are open."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._open: dict[HttpRequest, Procedure] = {}

    def begin(
        self,
        request: HttpRequest,
        wanted: Wanted,
        positions: Coroutine[Any, Any, dict[int, int]],
        headers: str,
        failed: Callable[[Exception], object],
    ) -> None:
        """Open one, from the positions on that the procedure finds. `headers`: of the response; `failed(error)`: it could not begin.
        HttpError when too many are open."""
        if len(self._open) >= TAILS_MAX:
            positions.close()
            raise HttpError(503, f"{TAILS_MAX} live tails are open already")

        async def follow() -> None:
            begin = await positions
            request.stream(EVENT_STREAM, headers, partial(self._end, request))
            await _tail(self._cluster, wanted, begin, request)

        def ended(error: Exception | None) -> None:
            self._open.pop(request, None)
            if error is not None:
                failed(error)
            request.end_stream()

        procedure = Procedure(follow(), ended)
        self._open[request] = procedure
        procedure.start()

    def close(self) -> None:
        for procedure in self._open.values():
            procedure.cancel()

    def _end(self, request: HttpRequest) -> None:
        procedure = self._open.pop(request, None)
        if procedure is not None:
            procedure.cancel()


async def _tail(cluster: Cluster, wanted: Wanted, positions: Mapping[int, int], request: HttpRequest) -> None:
    """Writes events to the request's stream. It ends when it is cancelled, or after LASTS_S."""
    deadline = cluster.runtime.monotonic() + LASTS_S
    positions = dict(positions)
    silent = SILENT_POLLS_MAX  # a first sign at once
    while cluster.runtime.monotonic() < deadline:
        if not request.is_congested:
            page = await read(cluster, wanted, positions)
            skipped = _catch_up(page, wanted.limit)
            positions |= page.positions
            silent += 1
            if page.records or skipped or page.problems:
                silent = 0
                body = msgspec.json.encode(Event(page, skipped))
                request.write(f"id: {format_positions(positions)}\ndata: ".encode() + body + b"\n\n")
            elif silent >= SILENT_POLLS_MAX:
                silent = 0
                request.write(b": it is quiet\n\n")
        await pause(cluster.runtime, POLL_S)


def _catch_up(page: Page, limit: int) -> int:
    """Moves the positions of partitions that are far behind; how many records are skipped."""
    skipped = 0
    for index, end in page.ends.items():
        if end - page.positions[index] > BEHIND_MAX:
            skipped += end - limit - page.positions[index]
            page.positions[index] = end - limit
    return skipped


def format_positions(positions: Mapping[int, int]) -> str:
    """Positions by partition, as `0:12,1:40`."""
    return ",".join(f"{index}:{offset}" for index, offset in positions.items())


def parse_positions(text: str) -> dict[int, int]:
    """The inverse. HttpError."""
    found = {}
    for each in text.split(",")[:PARTITIONS_MAX]:
        index, _, offset = each.partition(":")
        if not (index.isascii() and index.isdigit() and offset.isascii() and offset.isdigit()):
            raise HttpError(400, "positions look like 0:12,1:40")
        if len(index) > 9 or len(offset) > 18:
            raise HttpError(400, "a position is out of range")
        found[int(index)] = int(offset)
    return found
