"""Rules: faults of requests that meet conditions.

`faults.on("Produce", topic="orders", nth=2).error("NOT_LEADER_OR_FOLLOWER")`. A rule is in force from its first action
until it is removed (`remove()`, the end of a `with`) or has acted `times` times. Of several rules that match a request, the
oldest that may still act does, so rules in a row make a script.

`served` in the actions says whether the broker serves the request before the fault: a produce that was `close`d with
served=True is in the log, and the producer does not know.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from barnabas.testing.faults.conditions import check_amount, check_count, check_probability, nearest
from barnabas.testing.faults.waiting import WAIT_SECONDS, Changes
from barnabas.wire.errors import ErrorCode
from barnabas.wire.registry import API_NAMES
from barnabas.wire.uuids import uuid_from_string

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from barnabas.testing.faults.call import Call
    from barnabas.testing.faults.conditions import Conditions

ANY: Final = "*"


class Held(NamedTuple):
    """A request, or its answer, that waits for `release`."""

    call: Call
    resume: Callable[[], object]


class Rule:
    """See the module. Made by `Faults.on`; its methods may be called from any thread. It counts the requests that meet its
    conditions, and acts on them from the `nth` on, `times` times, each with this probability."""

    def __init__(
        self,
        conditions: Conditions,
        *,
        nth: int | None = None,
        times: int | None = None,
        probability: float | None = None,
        begin: Callable[[Rule], object],
        end: Callable[[Rule], object],
        release: Callable[[Rule, int | None], object],
    ) -> None:
        if nth is not None:
            check_count("nth", nth, 1)
        if times is not None:
            check_count("times", times, 1)
        if probability is not None:
            check_probability(probability)
        self.conditions = conditions
        self.nth = nth
        self.times = 1 if nth is not None and times is None else times
        self.probability = probability
        self.calls = 0  # requests that met the conditions
        self.hits = 0  # those of them that it acted on
        self.number = 0  # given by the engine
        self.description = ""
        self._begin, self._end, self._release = begin, end, release
        self._is_deferred = False  # until all actions are given
        self._changes = Changes()
        self._held: tuple[Held, ...] = ()
        # What to do:
        self.delay_s = 0.0
        self.is_delay_served = False
        self.holds = False
        self.is_hold_served = False
        self.error_code: ErrorCode | None = None
        self.error_message: str | None = None
        self.is_error_served = False
        self.error_depth: int | None = None
        self.closes = False
        self.drops = False
        self.is_end_served = False  # of a close or a drop
        self.truncate_bytes: int | None = None
        self.answering: Callable[[Call], Any] | None = None  # None as its result: the broker answers
        self.rewriting: Callable[[Call, Any], Any] | None = None

    @property
    def api(self) -> str:
        """Kafka's name of its API, or "*"."""
        key = self.conditions.api_key
        return ANY if key is None else API_NAMES[key]

    def __repr__(self) -> str:
        counts = {"nth": self.nth, "times": self.times, "probability": self.probability}
        given = {**msgspec.structs.asdict(self.conditions), **counts}
        del given["api_key"]
        texts = [repr(self.api), *(f"{name}={value!r}" for name, value in given.items() if value is not None)]
        what = f"on({', '.join(texts)}): {self.description or 'nothing yet'}"
        return f"<Rule {self.number} {what}; {self.hits} of {self.calls} calls>"

    # -- actions; each returns the rule

    def error(
        self, error: str | int, *, message: str | None = None, served: bool = False, whole: bool | None = None
    ) -> Rule:
        """Answer with this error (Kafka's name or number), for the topics and partitions of the rule where the API's
        answer has an error for each; the others are served. `whole`: the answer as a whole fails (True), or its
        innermost elements (False), instead of what Kafka does with this error. `served`: the broker serves what fails, too."""
        self.error_code = error_code_of(error)
        self.error_message = message
        self.is_error_served = served
        self.error_depth = None if whole is None else 0 if whole else -1
        return self._act(f"error {self.error_code.name}")

    def delay(self, seconds: float, *, served: bool = False) -> Rule:
        """Serve the request after so many seconds; `served`: serve it at once, and answer later. May be combined with another action."""
        check_amount("a delay in seconds", seconds)
        self.delay_s = seconds
        self.is_delay_served = served
        return self._act(f"delay {seconds:g} s")

    def hold(self, *, served: bool = False) -> Rule:
        """Serve the request at `release`; `served`: serve it at once, and answer at `release`."""
        self.holds = True
        self.is_hold_served = served
        return self._act("hold")

    def drop_answer(self, *, served: bool = True) -> Rule:
        """Never answer. Answers leave in order, so later requests of the connection are not answered either, until the client
        closes it. `served=False`: the request is lost, not the answer."""
        self.drops = True
        self.is_end_served = served
        return self._act("drop the answer")

    def close(self, *, served: bool = False) -> Rule:
        """Close the connection instead of answering."""
        self.closes = True
        self.is_end_served = served
        return self._act("close")

    def truncate(self, count: int) -> Rule:
        """Send the first `count` bytes of the answer (its size field among them), then close the connection."""
        check_count("the count of bytes", count, 0)
        self.truncate_bytes = count
        return self._act(f"truncate to {count} bytes")

    def answer(self, function: Callable[[Call], Any]) -> Rule:
        """`function(call)` gives the answer, a response message of barnabas.wire.messages, or None: the broker serves
        it. It runs on the broker's thread; an exception closes the connection."""
        self.answering = function
        return self._act("answer")

    def rewrite(self, function: Callable[[Call, Any], Any]) -> Rule:
        """`function(call, answer)` gives the answer in place of the broker's, which it may change."""
        self.rewriting = function
        return self._act("rewrite")

    @contextmanager
    def together(self) -> Iterator[Rule]:
        """The rule is in force when all of its actions are given, however many requests come meanwhile:
        `with broker.on("Produce").together() as rule: rule.delay(1).error("NOT_COORDINATOR")`."""
        self._is_deferred = True
        yield self
        self._is_deferred = False
        if self.description:
            self._begin(self)

    def _act(self, what: str) -> Rule:
        is_first = not self.description
        self.description += what if is_first else f", {what}"
        if is_first and not self._is_deferred:
            self._begin(self)
        return self

    # -- end

    def remove(self) -> None:
        """End the rule and release what it holds."""
        self._end(self)

    def __enter__(self) -> Rule:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def release(self, count: int | None = None) -> None:
        """Release the oldest `count` of the held requests; None: all of them, and the rule ends."""
        self._release(self, count)

    def wait_held(self, count: int = 1, timeout: float = WAIT_SECONDS) -> None:
        """Wait until so many requests are held. AssertionError after `timeout` seconds; RuntimeError in a coroutine: see
        `held_async`."""
        if not self._changes.wait(lambda: self.held >= count, timeout, instead="held_async"):
            raise AssertionError(self._not_held(count, timeout))

    async def held_async(self, count: int = 1, timeout: float = WAIT_SECONDS) -> None:
        """As `wait_held`, for coroutines."""
        if not await self._changes.wait_async(lambda: self.held >= count, timeout):
            raise AssertionError(self._not_held(count, timeout))

    def _not_held(self, count: int, timeout: float) -> str:
        return f"{self.held} of {count} requests are held after {timeout:g} s"

    @property
    def held(self) -> int:
        """Requests that wait for `release`, of clients that are still connected."""
        return sum(not each.call.closed for each in self._held)

    def set_held(self, held: Iterable[Held]) -> None:
        """Called by the engine."""
        self._held = tuple(held)
        self._changes.notify()

    # -- matching

    @property
    def is_spent(self) -> bool:
        return self.times is not None and self.hits >= self.times

    def counts(self, draw: Callable[[], float]) -> bool:
        """Count a request that meets the conditions; whether to act on it."""
        self.calls += 1
        if self.nth is not None and self.calls < self.nth:
            return False
        if self.probability is not None and draw() >= self.probability:
            return False
        self.hits += 1
        return True


def topic_id_of(topic_id: str | bytes) -> bytes:
    """The 16 bytes of an id in Kafka's text form, or as it is. ValueError."""
    found = uuid_from_string(topic_id) if isinstance(topic_id, str) else topic_id
    if not isinstance(found, bytes) or len(found) != 16:
        raise ValueError(f"a topic's id is 16 bytes, or their text in base64, and not {topic_id!r}")
    return found


def error_code_of(error: str | int) -> ErrorCode:
    """ValueError where Kafka has no such error."""
    try:
        return ErrorCode[error.upper()] if isinstance(error, str) else ErrorCode(error)
    except (KeyError, ValueError):
        near = nearest(error, ErrorCode.__members__) if isinstance(error, str) else ""
        hint = near or "; the names are those of the protocol guide"
        raise ValueError(f"Kafka has no error {error!r}{hint}") from None
