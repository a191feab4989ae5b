"""The cluster, as the console asks it: Kafka's requests to any broker, with a time limit, and long work in slices."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import msgspec

from barnabas.runtime.http import HttpError
from barnabas.runtime.procedures import Call, Procedure
from barnabas.runtime.slices import Steps, run_steps
from barnabas.wire.errors import ErrorCode

if TYPE_CHECKING:
    from barnabas.broker.extension import ExtensionHost
    from barnabas.controller.metadata.image import MetadataImage, TopicImage
    from barnabas.runtime.interface import Runtime

T = TypeVar("T")

ANSWER_S: Final = 10.0  # of a broker, for one request
READS_AT_ONCE: Final = 2  # of records; each may hold an answer of another broker and a decompressed batch
NAMES_BETWEEN_PAUSES: Final = 500
TEXT_MAX: Final = 500  # characters of a text from a client, such as a group's name


class Unanswered(Exception):
    """A broker has not answered a request, or with an error."""


class Places:
    """Lets so many procedures go on at a time, in the order in which they come: `async with places:`."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: deque[Callable[[bool, None], object]] = deque()

    async def __aenter__(self) -> None:
        if self._free:
            self._free -= 1
            return
        waiting: list[Callable[[bool, None], object]] = []

        def begin(done: Callable[[bool, None], object]) -> None:
            waiting.append(done)
            self._waiting.append(done)

        try:
            await Call(begin)
        except BaseException:  # it was cancelled while it waited
            self._waiting.remove(waiting[0])
            raise

    async def __aexit__(self, *_: object) -> None:
        if self._waiting:
            self._waiting.popleft()(True, None)
        else:
            self._free += 1


class Cluster:
    """The cluster, as the broker of `host()` sees it; None: that broker does not run. All calls on the loop's thread."""

    def __init__(self, runtime: Runtime, host: Callable[[], ExtensionHost | None]) -> None:
        self.runtime = runtime
        self._host = host
        self.reads = Places(READS_AT_ONCE)

    @property
    def host(self) -> ExtensionHost:
        """HttpError when the broker does not run."""
        host = self._host()
        if host is None:
            raise HttpError(503, "the broker does not run")
        return host

    @property
    def image(self) -> MetadataImage:
        return self.host.controller.image

    def topic(self, name: str) -> TopicImage:
        """HttpError when there is no such topic."""
        found = self.image.topics.get(name)
        if found is None:
            raise HttpError(404, f"there is no topic {name[:TEXT_MAX]!r}")
        return found

    def brokers(self) -> list[int]:
        """The ids of those that serve."""
        return self.image.usable_brokers()

    # -- what a procedure awaits

    def ask(self, node_id: int, api_key: int, version: int, request: msgspec.Struct) -> Call[Any]:
        """The response. Unanswered where there is none."""

        def begin(done: Callable[[Any, Exception | None], object]) -> None:
            late = Unanswered(f"broker {node_id} has not answered within {ANSWER_S:g} s")
            timer = self.runtime.call_later(ANSWER_S, lambda: done(None, late))

            def answered(response: Any, error: ErrorCode) -> None:
                timer.cancel()
                if response is None:
                    done(None, Unanswered(f"broker {node_id} has not answered: {error.name}"))
                else:
                    done(response, None)

            self.host.ask(node_id, api_key, version, request, answered)

        return Call(begin)

    def all(self, calls: Sequence[Call[T]]) -> Call[list[T | Unanswered]]:
        """The results of calls that run at the same time, in their order. Other errors are raised."""

        def begin(done: Callable[[Any, BaseException | None], object]) -> None:
            results: list[Any] = [None] * len(calls)
            missing = len(calls)

            def ended(index: int, result: Any, error: BaseException | None) -> None:
                nonlocal missing
                if error is not None and not isinstance(error, Unanswered):
                    done(None, error)
                    return
                results[index] = result if error is None else error
                missing -= 1
                if not missing:
                    done(results, None)

            if not calls:
                done(results, None)
            for index, call in enumerate(calls):
                _begin(call, partial(ended, index))

        return Call(begin)

    def in_slices(self, steps: Steps[T]) -> Call[T]:
        """The result of long work."""
        return Call(lambda done: run_steps(self.runtime, steps, done))


def _begin(call: Call[Any], done: Callable[[Any, BaseException | None], object]) -> None:
    """Begins a call, whose result counts once."""
    is_done = False

    def once(result: Any, error: BaseException | None) -> None:
        nonlocal is_done
        if not is_done:
            is_done = True
            done(result, error)

    try:
        call.begin(once)
    except Exception as error:  # noqa: BLE001 - passed on
        once(None, error)


def run(
    procedure: Coroutine[Any, Any, T],
    done: Callable[[T], object],
    failed: Callable[[Exception], object],
) -> Procedure:
    """Runs a procedure that has a result; one of the callbacks is called, perhaps at once."""
    results: list[T] = []

    async def keep() -> None:
        results.append(await procedure)

    made = Procedure(keep(), lambda error: done(results[0]) if error is None else failed(error))
    made.start()
    return made


def error_name(code: int) -> str:
    return ErrorCode.of(code).name


class RowPage(msgspec.Struct, Generic[T]):
    """Rows behind their names. `total`: how many match; `has_more`: whether some follow."""

    rows: list[tuple[str, T]]
    total: int
    has_more: bool


def page_of(rows: Iterable[tuple[str, T]], contained: str, after: str, limit: int) -> Steps[RowPage[T]]:
    """Of rows in any order: the first `limit` in order of their names that contain a text, in any case, and come after another."""
    contained = contained.lower()
    found: list[tuple[str, T]] = []
    total = 0
    for number, row in enumerate(rows, 1):
        if contained in row[0].lower():
            total += 1
            if row[0] > after:
                found.append(row)
        if not number % NAMES_BETWEEN_PAUSES:
            found = sorted(found, key=_name)[: limit + 1]
            yield None
    found = sorted(found, key=_name)
    return RowPage(found[:limit], total, len(found) > limit)


def _name(row: tuple[str, object]) -> str:
    return row[0]
