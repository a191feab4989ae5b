"""Rules: which requests something happens to, and what.

`faults.on("Produce", topic="orders", nth=2).error("NOT_LEADER_OR_FOLLOWER")`. A rule holds from its first action
until it is removed (`remove()`, the end of a `with`) or has happened `times` times. Of several that match, the
oldest counts that still has something to do, so rules in a row make a script.

`served` in the actions says whether the broker serves the request before the fault: a produce that was `close`d with
served=True stands in the log, and the producer does not know.
"""

from __future__ import annotations

import asyncio  # noqa: TID251 - a test waits for what is held
import threading  # noqa: TID251 - or waits in a thread
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final

from barnabas.testing.faults.conditions import (
    check_amount,
    check_count,
    check_names,
    check_probability,
    nearest,
)
from barnabas.testing.faults.requests import WAIT_SECONDS, api_key_of, refuse_in_loop, setter
from barnabas.wire.errors import ErrorCode
from barnabas.wire.primitives import uuid_from_string
from barnabas.wire.registry import API_NAMES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import TracebackType

    from barnabas.testing.faults.call import Call
    from barnabas.testing.faults.shapes import Topic

# (call) -> the answer, or None: the broker shall answer
Answering = "Callable[[Call], Any]"
# (call, the broker's answer) -> the answer
Rewriting = "Callable[[Call, Any], Any]"

ANY: Final = "*"


class Held:
    """A request that waits, or its answer."""

    __slots__ = ("call", "resume")

    def __init__(self, call: Call, resume: Callable[[], object]) -> None:
        self.call = call
        self.resume = resume


class Rule:
    """See the module. Made by `Faults.on`; its methods may be called from any thread."""

    def __init__(
        self,
        api: str | int,
        *,
        topic: str | None = None,
        topic_id: str | bytes | None = None,
        partition: int | None = None,
        group: str | None = None,
        client_id: str | None = None,
        node: int | None = None,
        nth: int | None = None,
        times: int | None = None,
        probability: float | None = None,
        begin: Callable[[Rule], object],
        end: Callable[[Rule], object],
        release: Callable[[Rule, int | None], object],
    ) -> None:
        self.api_key = None if api == ANY else api_key_of(api)
        if self.api_key is not None:
            check_names(self.api_key, topic if topic_id is None else "", partition, group)
        if nth is not None:
            check_count("nth", nth, 1)
        if times is not None:
            check_count("times", times, 1)
        if probability is not None:
            check_probability(probability)
        self.topic = topic
        self.topic_id = None if topic_id is None else topic_id_of(topic_id)
        self.partition = partition
        self.group = group
        self.client_id = client_id
        self.node = node
        self.nth = nth
        self.times = 1 if nth is not None and times is None else times
        self.probability = probability
        self.calls = 0  # requests that met the conditions
        self.hits = 0  # those of them that something was done to
        self.number = 0  # given by the engine
        self.description = ""
        self._begin, self._end, self._release = begin, end, release
        self._is_held_back = False  # until all actions have been said
        self._held = threading.Condition()
        self._tell: list[Callable[[], object]] = []  # who waits for them
        self._calls_held: tuple[Held, ...] = ()
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
        self.answering: Callable[[Call], Any] | None = None
        self.rewriting: Callable[[Call, Any], Any] | None = None

    def __repr__(self) -> str:
        api = ANY if self.api_key is None else API_NAMES[self.api_key]
        names = (
            "topic",
            "topic_id",
            "partition",
            "group",
            "client_id",
            "node",
            "nth",
            "times",
            "probability",
        )
        conditions = [f"{name}={value!r}" for name in names if (value := getattr(self, name)) is not None]
        told = f"on({', '.join([repr(api), *conditions])}): {self.description or 'nothing yet'}"
        return f"<Rule {self.number} {told}; {self.hits} of {self.calls} calls>"

    # -- actions; each returns the rule

    def error(
        self, error: str | int, *, message: str | None = None, served: bool = False, whole: bool | None = None
    ) -> Rule:
        """Answer with this error (Kafka's name or number), for the topics and partitions of the rule where the API's
        answer has an error for each; the others are served. `whole`: the answer as a whole fails (True), or its
        innermost elements (False), instead of what Kafka does with this error. `served`: what has failed was done, too."""
        self.error_code = error_code_of(error)
        self.error_message = message
        self.is_error_served = served
        self.error_depth = None if whole is None else 0 if whole else -1
        return self._act(f"error {self.error_code.name}")

    def delay(self, seconds: float, *, served: bool = False) -> Rule:
        """Serve the request so much later; `served`: serve it at once, and answer later. Goes with another action."""
        check_amount("a delay in seconds", seconds)
        self.delay_s = seconds
        self.is_delay_served = served
        return self._act(f"delay {seconds:g} s")

    def hold(self, *, served: bool = False) -> Rule:
        """As `delay`, until `release`."""
        self.holds = True
        self.is_hold_served = served
        return self._act("hold")

    def drop_answer(self, *, served: bool = True) -> Rule:
        """Never answer. As answers come in order, nothing that the connection asks later is answered either, until
        the client gives up and closes it. `served=False`: the request is lost, not the answer."""
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
        """`function(call)` gives the answer, a response message of barnabas.wire.messages, or None: the broker shall serve
        it. It runs on the broker's thread; an exception closes the connection."""
        self.answering = function
        return self._act("answer")

    def rewrite(self, function: Callable[[Call, Any], Any]) -> Rule:
        """`function(call, answer)` gives the answer in place of the broker's, which it may change."""
        self.rewriting = function
        return self._act("rewrite")

    @contextmanager
    def together(self) -> Iterator[Rule]:
        """It acts when all of its actions have been said, however many requests come meanwhile:
        `with broker.on("Produce").together() as rule: rule.delay(1).error("NOT_COORDINATOR")`."""
        self._is_held_back = True
        yield self
        self._is_held_back = False
        if self.description:
            self._begin(self)

    def _act(self, what: str) -> Rule:
        is_first = not self.description
        self.description += what if is_first else f", {what}"
        if is_first and not self._is_held_back:
            self._begin(self)
        return self

    # -- its life

    def remove(self) -> None:
        """It happens no more; what it holds is let go."""
        self._end(self)

    def __enter__(self) -> Rule:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()

    def release(self, count: int | None = None) -> None:
        """Let go the oldest `count` of the requests that are held; None: all of them, and hold no more."""
        self._release(self, count)

    def wait_held(self, count: int = 1, timeout: float = WAIT_SECONDS) -> None:
        """Wait until so many requests are held. AssertionError after `timeout` seconds; RuntimeError in a coroutine: see
        `held_async`."""
        refuse_in_loop("held_async")
        with self._held:
            if not self._held.wait_for(lambda: self.held >= count, timeout):
                raise AssertionError(self._not_held(count, timeout))

    async def held_async(self, count: int = 1, timeout: float = WAIT_SECONDS) -> None:
        """As `wait_held`, for coroutines."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        changed = asyncio.Event()

        tell = setter(changed, loop)
        self._tell.append(tell)
        try:
            while self.held < count:
                await asyncio.wait_for(changed.wait(), max(0.0, deadline - loop.time()))
                changed.clear()
        except TimeoutError:
            raise AssertionError(self._not_held(count, timeout)) from None
        finally:
            self._tell.remove(tell)

    def _not_held(self, count: int, timeout: float) -> str:
        return f"{self.held} of {count} requests are held after {timeout:g} s"

    @property
    def held(self) -> int:
        """Requests that wait for `release`, of clients that are still there."""
        return sum(not each.call.closed for each in self._calls_held)

    def set_held(self, calls: Iterable[Held]) -> None:
        """The engine's."""
        with self._held:
            self._calls_held = tuple(calls)
            self._held.notify_all()
        for tell in tuple(self._tell):
            tell()

    # -- matching

    @property
    def is_spent(self) -> bool:
        return self.times is not None and self.hits >= self.times

    def is_about(self, topic: Topic | None, partition: int | None, call: Call) -> bool:
        """Whether what a request names there is meant."""
        if self.topic is not None:
            name = call.name_of(topic)
            if name is None or not fnmatchcase(name, self.topic):
                return False
        if self.topic_id is not None and self.topic_id != (
            call.id_of(topic) if isinstance(topic, str) else topic
        ):
            return False
        return self.partition is None or partition == self.partition or partition is None

    @property
    def is_single(self) -> bool:
        """Whether it is about some topics or partitions."""
        return self.topic is not None or self.topic_id is not None or self.partition is not None

    def may_match(self, api_key: int, node: int, client_id: str | None) -> bool:
        """As far as the header tells."""
        return (
            not self.is_spent
            and (self.api_key is None or self.api_key == api_key)
            and (self.node is None or self.node == node)
            and (self.client_id is None or fnmatchcase(client_id or "", self.client_id))
        )

    def counts(self, draw: Callable[[], float]) -> bool:
        """A request has met the conditions: whether something is done to it."""
        self.calls += 1
        if self.nth is not None and self.calls < self.nth:
            return False
        if self.probability is not None and draw() >= self.probability:
            return False
        self.hits += 1
        return True

    def meets(self, call: Call) -> bool:
        """Whether a request is meant, by what it names. DecodeError."""
        if self.is_single and not any(
            self.is_about(topic, partition, call) for topic, partition in call.targets()
        ):
            return False
        return self.group is None or any(fnmatchcase(group, self.group) for group in call.groups())


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
