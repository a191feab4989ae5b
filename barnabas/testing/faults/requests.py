"""The last requests of clients and their answers, with times; decoded when they are read.

A request is there from its arrival, its answer as soon as it left. Requests of brokers among themselves (the fetches of
followers) are not. `Requests` may be used from any thread.
"""

from __future__ import annotations

import asyncio  # noqa: TID251 - for tests that wait in a loop of their own
import threading  # noqa: TID251 - for those that wait in a thread
import time  # noqa: TID251 - and for how long
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from barnabas.testing.faults.shapes import targets
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
)  # of an answer whose records lie in a file; of a larger one only the size is kept
WAIT_SECONDS: Final = 30.0

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


def refuse_in_loop(instead: str) -> None:
    """RuntimeError where waiting would stop a loop that has to go on."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError(f"this blocks the loop that runs now: await {instead}(...) instead")


def setter(changed: asyncio.Event, loop: asyncio.AbstractEventLoop) -> Callable[[], object]:
    """Sets an event of that loop, from any thread; nothing happens where the loop has ended meanwhile."""

    def tell() -> None:
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(changed.set)

    return tell


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
        """Bytes that are kept of it."""
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
        """The names of the topics that the request names, by name or by id; of the latter those that there are still."""
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
        self._waiting: list[Callable[[], object]] = []

    # -- the broker's side

    def add(self, recorded: Recorded) -> None:
        """It came; perhaps it is answered already."""
        with self._lock:
            recorded.is_kept = True
            self._recorded.append(recorded)
            self._bytes += recorded.size
            if self._bytes > BYTES_MAX or len(self._recorded) > COUNT_MAX:
                self._make_room()
        if self._waiting:
            self._tell()

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
        if self._waiting:
            self._tell()

    def _make_room(self) -> None:
        while self._recorded and (len(self._recorded) > COUNT_MAX or self._bytes > BYTES_MAX):
            oldest = self._recorded.popleft()
            oldest.is_kept = False
            self._bytes -= oldest.size

    def _tell(self) -> None:
        for waiting in tuple(self._waiting):
            waiting()

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
        """Those of one API that meet all of the conditions, in the order in which they came."""
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
        with what there was, after `timeout` seconds. RuntimeError in a coroutine: see `arrived`."""
        refuse_in_loop("arrived")
        deadline = time.monotonic() + timeout
        changed = threading.Event()
        self._waiting.append(changed.set)
        try:
            while True:
                found = self._found(api, answered, conditions)
                if len(found) >= count:
                    return found
                if not changed.wait(max(0.0, deadline - time.monotonic())):
                    raise AssertionError(self._missing(api, count, len(found), timeout))
                changed.clear()
        finally:
            self._waiting.remove(changed.set)

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
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        changed = asyncio.Event()

        tell = setter(changed, loop)
        self._waiting.append(tell)
        try:
            while True:
                found = self._found(api, answered, conditions)
                if len(found) >= count:
                    return found
                try:
                    await asyncio.wait_for(changed.wait(), max(0.0, deadline - loop.time()))
                except TimeoutError:
                    raise AssertionError(self._missing(api, count, len(found), timeout)) from None
                changed.clear()
        finally:
            self._waiting.remove(tell)

    def _found(self, api: str | int, answered: bool, conditions: dict[str, Any]) -> list[Recorded]:
        found = self.of(api, **conditions)
        return [each for each in found if each.outcome != "waits"] if answered else found

    def _missing(self, api: str | int, count: int, found: int, timeout: float) -> str:
        lines = "\n".join(self.transcript()[-30:])
        return f"{found} of {count} requests of {api} came within {timeout:g} s; the last of all:\n{lines}"

    def transcript(self) -> list[str]:
        """A line for each request: when it came, who asked what of which node, and what became of it."""
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


def _clock(at_ms: int) -> str:
    seconds = at_ms // 1000 % 86400
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{at_ms % 1000:03}"
