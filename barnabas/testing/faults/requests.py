"""Recorded requests: the last ones of clients, with their answers and times; decoded when they are read.

A request is recorded when it arrives, its answer when it leaves. Requests between brokers (the fetches of followers) are not
recorded. `Requests` may be used from any thread.
"""

from __future__ import annotations

import threading  # noqa: TID251 - requests are read in any
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from barnabas.testing.faults.shapes import targets
from barnabas.testing.faults.waiting import WAIT_SECONDS, Changes
from barnabas.wire.headers import decode_request_header, decode_response_header
from barnabas.wire.primitives import DecodeError
from barnabas.wire.registry import API_NAMES, request_type, response_type

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from barnabas.testing.faults.shapes import Topic

COUNT_MAX: Final = 10_000
BYTES_MAX: Final = 32 * 1024 * 1024  # of all frames together
ANSWER_BYTES_MAX: Final = (
    1024 * 1024
)  # of an answer with records from a file; of a larger one only the size is kept

_KEYS: Final = {name.lower(): key for key, name in API_NAMES.items()}


def api_key_of(api: str | int) -> int:
    """The key of an API, by its name in Kafka's spelling, whatever the case, such as "Produce". ValueError."""
    if isinstance(api, int):
        if api not in API_NAMES:
            raise ValueError(f"there is no API {api}")
        return api
    key = _KEYS.get(api.replace("_", "").lower())
    if key is None:
        from barnabas.testing.faults.conditions import nearest

        hint = (
            nearest(api, API_NAMES.values()) or "; the names are Kafka's, such as Produce, Fetch, JoinGroup"
        )
        raise ValueError(f"there is no API {api!r}{hint}")
    return key


class Recorded:
    """One request. `received_ms` and `answered_ms` are milliseconds since the epoch on the broker's clock."""

    __slots__ = (
        "answer_bytes", "answer_size", "answered_ms", "api_key", "client_host", "client_id", "correlation_id",
        "fault", "is_kept", "name_of", "node", "outcome", "received_ms", "request_bytes", "version",
    )  # fmt: skip

    def __init__(
        self,
        node: int,
        api_key: int,
        version: int,
        correlation_id: int,
        client_id: str | None,
        client_host: str,
        received_ms: int,
        request_bytes: bytes,
        name_of: Callable[[Topic], str | None],
    ) -> None:
        self.node = node
        self.api_key = api_key
        self.version = version
        self.correlation_id = correlation_id
        self.client_id = client_id
        self.client_host = client_host
        self.received_ms = received_ms
        self.request_bytes = request_bytes  # the frame without its size
        self.name_of = name_of  # of a topic that the request names by its id
        self.answered_ms: int | None = None
        self.answer_bytes: bytes | None = None  # with its size
        self.answer_size = 0  # bytes on the wire, the size field included
        self.outcome = (
            "waits"  # then: answered, unanswered (none was due), closed, dropped, truncated, refused
        )
        self.fault: str | None = None  # what a rule did to it
        self.is_kept = False  # among the requests that are kept

    @property
    def size(self) -> int:
        """Bytes of memory for its frames."""
        return len(self.request_bytes) + (0 if self.answer_bytes is None else len(self.answer_bytes))

    @property
    def api(self) -> str:
        """Kafka's name of the API, such as "Fetch"."""
        return API_NAMES.get(self.api_key, str(self.api_key))

    @property
    def request(self) -> Any:
        """The decoded request, a message of barnabas.wire.messages. DecodeError where it can't be read."""
        if self.api_key not in API_NAMES:
            raise DecodeError(f"there is no API {self.api_key}")
        _, start = decode_request_header(self.request_bytes)
        return request_type(self.api_key).decode(self.version, self.request_bytes, start)[0]

    @property
    def answer(self) -> Any:
        """The decoded answer; None when none was sent, or when it was too large to keep."""
        data = self.answer_bytes
        if data is None:
            return None
        _, start = decode_response_header(self.api_key, self.version, data, 4)
        return response_type(self.api_key).decode(self.version, data, start)[0]

    @property
    def topics(self) -> list[str]:
        """The names of the topics in the request. Ids of topics that were deleted have none."""
        try:
            asked = {topic for topic, _ in targets(self.request) if topic is not None}
        except DecodeError:
            return []
        return sorted({name for name in map(self.name_of, asked) if name is not None})

    def __repr__(self) -> str:
        took = "" if self.answered_ms is None else f" after {self.answered_ms - self.received_ms} ms"
        fault = "" if self.fault is None else f" [{self.fault}]"
        return f"<{self.api} {self.version} of {self.client_id!r} to node {self.node}: {self.outcome}{took}{fault}>"


class Requests:
    """See the module."""

    def __init__(self) -> None:
        self.is_recording = True
        self._recorded: deque[Recorded] = deque()
        self._bytes = 0
        self._lock = threading.Lock()
        self._changes = Changes()

    # -- the broker's side

    def add(self, recorded: Recorded) -> None:
        """Record a request that has arrived; it may be answered already."""
        with self._lock:
            recorded.is_kept = True
            self._recorded.append(recorded)
            self._bytes += recorded.size
            if self._bytes > BYTES_MAX or len(self._recorded) > COUNT_MAX:
                self._make_room()
        self._changes.notify()

    def answered(self, recorded: Recorded, outcome: str, at_ms: int, answer: bytes | None, size: int) -> None:
        """`answer`: the frame with its size; None when it is not kept."""
        with self._lock:
            recorded.outcome = outcome
            recorded.answered_ms = at_ms
            recorded.answer_size = size
            if answer is not None:
                recorded.answer_bytes = answer
                if recorded.is_kept:
                    self._bytes += len(answer)
                    if self._bytes > BYTES_MAX:
                        self._make_room()
        self._changes.notify()

    def _make_room(self) -> None:
        while self._recorded and (len(self._recorded) > COUNT_MAX or self._bytes > BYTES_MAX):
            oldest = self._recorded.popleft()
            oldest.is_kept = False
            self._bytes -= oldest.size

    # -- the test's side

    def __iter__(self) -> Iterator[Recorded]:
        with self._lock:
            return iter(tuple(self._recorded))

    def __len__(self) -> int:
        return len(self._recorded)

    def clear(self) -> None:
        """Forget all."""
        with self._lock:
            for recorded in self._recorded:
                recorded.is_kept = False
            self._recorded.clear()
            self._bytes = 0

    def of(
        self,
        api: str | int,
        *,
        client_id: str | None = None,
        topic: str | None = None,
        node: int | None = None,
        where: Callable[[Recorded], bool] | None = None,
    ) -> list[Recorded]:
        """Those of one API that meet all of the conditions, in the order of their arrival."""
        key = api_key_of(api)
        return [
            each
            for each in self
            if each.api_key == key
            and (client_id is None or each.client_id == client_id)
            and (node is None or each.node == node)
            and (topic is None or topic in each.topics)
            and (where is None or where(each))
        ]

    def wait_for(
        self,
        api: str | int,
        *,
        count: int = 1,
        answered: bool = False,
        timeout: float = WAIT_SECONDS,
        **conditions: Any,
    ) -> list[Recorded]:
        """Wait until there are `count` of them (as `of`; `answered`: that were answered) and return them. AssertionError,
        with the last requests, after `timeout` seconds. RuntimeError in a coroutine: see `arrived`."""
        search = _Search(self, api, count, answered, conditions)
        if not self._changes.wait(search.is_complete, timeout, instead="arrived"):
            raise AssertionError(search.missing(timeout))
        return search.found

    async def arrived(
        self,
        api: str | int,
        *,
        count: int = 1,
        answered: bool = False,
        timeout: float = WAIT_SECONDS,
        **conditions: Any,
    ) -> list[Recorded]:
        """As `wait_for`, for coroutines."""
        search = _Search(self, api, count, answered, conditions)
        if not await self._changes.wait_async(search.is_complete, timeout):
            raise AssertionError(search.missing(timeout))
        return search.found

    def transcript(self) -> list[str]:
        """A line for each request: time, node, client, API, topics and outcome."""
        lines = []
        for each in self:
            took = "" if each.answered_ms is None else f" {each.answered_ms - each.received_ms} ms"
            topics = ",".join(each.topics)
            fault = f" [{each.fault}]" if each.fault else ""
            lines.append(
                f"{_clock(each.received_ms)} node {each.node} {each.client_id or '-'} {each.api} v{each.version} "
                f"{topics + ' ' if topics else ''}-> {each.outcome}, {each.answer_size} bytes{took}{fault}"
            )
        return lines


class _Search:
    """The requests that a test waits for."""

    def __init__(
        self, requests: Requests, api: str | int, count: int, answered: bool, conditions: dict[str, Any]
    ) -> None:
        self.found: list[Recorded] = []
        self._requests = requests
        self._api = api
        self._count = count
        self._answered = answered
        self._conditions = conditions

    def is_complete(self) -> bool:
        found = self._requests.of(self._api, **self._conditions)
        self.found = [each for each in found if each.outcome != "waits"] if self._answered else found
        return len(self.found) >= self._count

    def missing(self, timeout: float) -> str:
        lines = "\n".join(self._requests.transcript()[-30:])
        return (
            f"{len(self.found)} of {self._count} requests of {self._api} came within {timeout:g} s; "
            f"the last of all:\n{lines}"
        )


def _clock(at_ms: int) -> str:
    seconds = at_ms // 1000 % 86400
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{at_ms % 1000:03}"
