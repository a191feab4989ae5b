"""Fetches: read, wait for more where min_bytes asks for it, respond.

A full fetch names all its partitions and may create a session; an incremental one continues a session and reads only the
partitions that may have something new. A fetch that waits keeps no file open, and when it is woken it reads again only
partitions that had records or have changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from barnabas.broker.fetch.purgatory import HIGH_WATERMARK_DELAY_S
from barnabas.broker.fetch.reader import (
    FOLLOWERS_FROM,
    READ_COMMITTED,
    PartitionReader,
)
from barnabas.broker.fetch.replica_selector import read_advice
from barnabas.broker.fetch.sessions import NO_SESSION, FetchSession
from barnabas.broker.partitions.current_leaders import (
    LeaderServices,
    current_leader,
    leader_addresses,
    missing_error,
)
from barnabas.broker.requests.authorization import allows_topic
from barnabas.broker.requests.context import PENDING, Outcome
from barnabas.controller.metadata.acls import Operation
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)
from barnabas.wire.record_batch import RecordBatchError

if TYPE_CHECKING:
    from barnabas.broker.config.broker_config import BrokerConfig
    from barnabas.broker.fetch.purgatory import FetchPurgatory, FetchWaiter
    from barnabas.broker.fetch.sessions import FetchSessionCache, SessionPartition
    from barnabas.broker.partitions.partition import Partition
    from barnabas.broker.partitions.replication_quota import ReplicationQuota
    from barnabas.broker.quotas.client_quotas import ClientQuotas
    from barnabas.broker.requests.context import RequestContext
    from barnabas.broker.security.authorizer import Authorizer
    from barnabas.runtime.interface import Runtime, Timer
    from barnabas.storage.errors import WouldWait

TOPIC_IDS_FROM: Final = 13  # the first version that names topics by id (KIP-516)
LEADERS_FROM: Final = 16  # the first version whose responses have the leaders' addresses
LIST_OFFSETS: Final = 2  # its API key
TRIES_MAX: Final = 16
_NOT_LED_HERE: Final = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH})


class FetchServices(LeaderServices, Protocol):
    """What fetches use of the broker."""

    runtime: Runtime
    config: BrokerConfig
    purgatory: FetchPurgatory
    fetch_sessions: FetchSessionCache
    leader_quota: ReplicationQuota | None
    authorizer: Authorizer | None
    client_quotas: ClientQuotas | None


class DelayedFetch:
    """The base of both kinds. `serve` once; the response is its result, or leaves through the context."""

    __slots__ = (
        "_advice", "_by_id", "_context", "_is_authorized", "_max_bytes", "_quota", "_reader", "_remote_until", "_request",
        "_tries", "_waiter",
    )  # fmt: skip

    def __init__(self, context: RequestContext[FetchServices], request: FetchRequest) -> None:
        self._context = context
        self._request = request
        self._by_id = context.api_version >= TOPIC_IDS_FROM
        self._max_bytes = min(request.max_bytes, context.services.config.fetch_max_bytes)
        self._advice = self._quota = None
        services = context.services
        quotas = services.client_quotas
        if quotas is not None and context.reply.peer.broker_id < 0:
            self._max_bytes = min(self._max_bytes, quotas.fetch_max_bytes(context.caller, context.client_id))
        if request.rack_id and context.api_version >= FOLLOWERS_FROM:
            self._advice = read_advice(
                services.config,
                request.rack_id,
                context.listener,
                services.controller.image.brokers,
                services.runtime.monotonic(),
            )
        if services.leader_quota is not None and services.leader_quota.is_set:
            self._quota = services.leader_quota
        self._waiter: FetchWaiter | None = None
        self._tries = 0  # how often a thread has read from the disk for it
        self._remote_until: float | None = None  # of its wait for remote storage; None: it has not had to
        self._reader = self._new_reader()
        self._is_authorized = services.authorizer is None or self._reader.follower_id >= 0

    def _new_reader(self) -> PartitionReader:
        # With little memory the pages that a thread has read may be evicted again: in the end the loop waits.
        return PartitionReader(
            self._request,
            self._context.api_version,
            self._max_bytes,
            advice=self._advice,
            quota=self._quota,
            wait=self._tries >= TRIES_MAX,
            waits_for_remote=self._remote_until is None
            or self._context.services.runtime.monotonic() < self._remote_until,
        )

    def serve(self) -> FetchResponse | Outcome:
        if self._reader.follower_id >= 0:
            self._record_follower()
        return self._serve()

    def _serve(self) -> FetchResponse | Outcome:
        request, reader = self._request, self._reader
        self._read()
        if reader.cold:
            self._prepare(self.serve_late)
            return PENDING
        missing_bytes = min(request.min_bytes, self._max_bytes) - reader.size
        if request.max_wait_ms <= 0 or missing_bytes <= 0 or reader.failed or not self._can_grow():
            return self._throttled() or self._response()
        context = self._context
        max_wait_s = request.max_wait_ms / 1000
        if reader.follower_id >= 0 and self._has_news():
            max_wait_s = min(max_wait_s, HIGH_WATERMARK_DELAY_S)
        self._waiter = waiter = context.services.purgatory.wait(missing_bytes, max_wait_s, self._answer_late)
        waiter.committed = request.isolation_level == READ_COMMITTED
        context.on_disconnect(self._abandon)
        context.on_next_request(self._next_request_came)
        self._watch(waiter)
        self._release()
        return PENDING

    def _may_read(self, topic: str | None, count: int = 1) -> bool:
        """Whether the consumer may read the topic; also one that does not exist, by its id."""
        return topic is None or allows_topic(self._context, Operation.READ, topic, count=count)

    def _prepare(self, then: Callable[[], object]) -> None:
        """Have a thread read from the disk; `then()` continues. For remote storage a fetch waits remote.fetch.max.wait.ms in all
        (KIP-1018), then answers with what there is; the thread reads on, for the next fetch."""
        runtime = self._context.services.runtime
        timer: Timer | None = None
        is_over = False

        def go_on(*_: object) -> None:
            """The thread has read, or the wait is over, whichever is first."""
            nonlocal is_over
            if is_over:
                return
            is_over = True
            if timer is not None:
                timer.cancel()
            if not self._context.closed:
                then()

        cold = self._reader.cold
        self._release()
        self._tries += 1
        is_remote = any(each.is_remote for each in cold)
        if is_remote:
            now = runtime.monotonic()
            if self._remote_until is None:
                self._remote_until = now + self._context.services.config.remote_fetch_max_wait_ms / 1000
            timer = runtime.call_later(max(0.0, self._remote_until - now), go_on)
        runtime.run_in_thread(partial(_run_all, cold), go_on, remote=is_remote)

    def serve_late(self) -> None:
        """Read, for the first time or again, after the follower's position has been recorded; the response leaves through the
        context."""
        self._reader = self._new_reader()
        answer = self._serve()
        if isinstance(answer, FetchResponse):
            self._context.complete(answer)

    def _answer_late(self) -> None:
        assert self._waiter is not None
        self._reader = self._new_reader()
        self._read_again(self._waiter.touched)
        if self._reader.cold:  # what changes until the thread is back has to be read again as well
            self._prepare(self._answer_late)
            return
        self._unwatch(self._waiter)
        self._context.complete(self._throttled() or self._response())

    def _throttled(self) -> FetchResponse | None:
        """The response to a client that has exceeded its quotas, or would with this one: it is empty, and the session stays as
        it was. None for others."""
        context = self._context
        quotas = context.services.client_quotas
        if quotas is None or context.reply.peer.broker_id >= 0 or self._is_overtaken():
            return None
        throttle_ms = quotas.fetch_throttle_ms(context.caller, context.client_id, self._reader.size)
        if not throttle_ms:
            return None
        self._release()
        return FetchResponse(throttle_time_ms=throttle_ms, session_id=self._session_id)

    def _next_request_came(self, api_key: int) -> None:
        """End the wait of a follower, whose next request is a newer fetch, and of a consumer that sends ListOffsets: it waits for
        offsets and not for records. Kafka makes it wait for both, half a second in each partition that Spark reads to its end.

        No other request ends a consumer's wait, above all no fetch: a client with two fetches in flight would never wait.
        """
        assert self._waiter is not None
        if self._reader.follower_id >= 0 or api_key == LIST_OFFSETS:
            self._waiter.wake()

    def _abandon(self) -> None:
        assert self._waiter is not None
        self._unwatch(self._waiter)
        self._waiter.cancel()

    @property
    def _session_id(self) -> int:
        """Of the session that the request continues."""
        return NO_SESSION

    def _is_overtaken(self) -> bool:
        """Whether a later request of the session has come."""
        return False

    def _record_follower(self) -> None:
        """Record the fetch offsets of the follower."""
        raise NotImplementedError

    def _read(self) -> None:
        """Read all partitions that may have something new."""
        raise NotImplementedError

    def _can_grow(self) -> bool:
        """Whether any partition of the request exists, so that it may grow."""
        raise NotImplementedError

    def _has_news(self) -> bool:
        """Whether there is a new high watermark or log start offset for a follower."""
        raise NotImplementedError

    def _watch(self, waiter: FetchWaiter) -> None:
        """Have the waiter notified of all partitions."""
        raise NotImplementedError

    def _release(self) -> None:
        """Drop the regions that were read: they keep their files open."""
        raise NotImplementedError

    def _unwatch(self, waiter: FetchWaiter) -> None:
        raise NotImplementedError

    def _read_again(self, touched: set[Partition]) -> None:
        """Read what had records or is among the touched."""
        raise NotImplementedError

    def _with_current_leaders(
        self, topics: list[FetchableTopicResponse], response: FetchResponse
    ) -> FetchResponse:
        """Add the current leaders and their addresses for partitions that this broker does not lead in that epoch (KIP-951)."""
        context = self._context
        if not self._reader.failed or context.api_version < LEADERS_FROM:
            return response
        leaders = []
        for topic in topics:
            for answer in topic.partitions:
                if answer.error_code in _NOT_LED_HERE:
                    leader_id, epoch = current_leader(
                        context, topic.topic, topic.topic_id, answer.partition_index
                    )
                    answer.current_leader = LeaderIdAndEpoch(leader_id, epoch)
                    leaders.append(leader_id)
        if leaders and self._reader.follower_id < 0:  # brokers know each other
            response.node_endpoints = [
                NodeEndpoint(address.broker_id, address.host, address.port, address.rack)
                for address in leader_addresses(context, leaders)
            ]
        return response

    def _response(self) -> FetchResponse:
        raise NotImplementedError


def _run_all(cold: list[WouldWait]) -> None:
    """In a thread. A read that fails will fail again on the loop, which handles the error."""
    for each in cold:
        try:
            each.prepare()
        except (OSError, RecordBatchError):
            pass


class FullFetch(DelayedFetch):
    """A request that names all its partitions. With `create_session` the response may create a session."""

    __slots__ = ("_answers", "_create_session", "_found")

    def __init__(
        self, context: RequestContext[FetchServices], request: FetchRequest, create_session: bool
    ) -> None:
        super().__init__(context, request)
        self._create_session = create_session
        self._found: list[Partition | None] = []  # for each wanted partition, in the order of the request
        self._answers: list[FetchableTopicResponse] = []

    def _find(self, topic: FetchTopic, wanted: FetchPartition) -> Partition | None:
        partitions = self._context.services.partitions
        if self._by_id:
            return partitions.by_id(topic.topic_id, wanted.partition)
        return partitions.get(topic.topic, wanted.partition)

    def _record_follower(self) -> None:
        record = self._reader.record_follower
        for topic in self._request.topics:
            for wanted in topic.partitions:
                partition = self._find(topic, wanted)
                if partition is not None:
                    record(partition, wanted)

    def _read(self) -> None:
        partitions = self._context.services.partitions
        find: Callable[[Any, int], Partition | None] = partitions.by_id if self._by_id else partitions.get
        self._found, self._answers = [], []
        found, read = self._found, self._reader.read
        for topic in self._request.topics:
            answers: list[PartitionData] = []
            name = topic.topic_id if self._by_id else topic.topic
            self._answers.append(FetchableTopicResponse(topic.topic, topic.topic_id, answers))
            if not self._is_authorized and not self._may_read(self._name(topic), len(topic.partitions)):
                for wanted in topic.partitions:
                    found.append(None)
                    answers.append(self._reader.absence(wanted, ErrorCode.TOPIC_AUTHORIZATION_FAILED))
                continue
            for wanted in topic.partitions:
                partition = find(name, wanted.partition)
                found.append(partition)
                answers.append(
                    read(partition, wanted) if partition is not None else self._absent(topic, wanted)
                )

    def _name(self, topic: FetchTopic) -> str | None:
        """None for a topic id that is not known."""
        if not self._by_id:
            return topic.topic
        known = self._context.services.controller.image.topic_by_id(topic.topic_id)
        return None if known is None else known.name

    def _absent(self, topic: FetchTopic, wanted: FetchPartition) -> PartitionData:
        image = self._context.services.controller.image
        error = missing_error(image, topic.topic_id if self._by_id else topic.topic, wanted.partition)
        if error == ErrorCode.NOT_LEADER_OR_FOLLOWER:
            return self._reader.failure(wanted, error)
        return self._reader.absence(wanted, error)

    def _can_grow(self) -> bool:
        return self._found.count(None) < len(self._found)

    def _has_news(self) -> bool:
        known = (wanted for topic in self._request.topics for wanted in topic.partitions)
        answers = (answer for topic in self._answers for answer in topic.partitions)
        return any(
            wanted.high_watermark < answer.high_watermark  # the maximum where the request has none
            for wanted, answer in zip(known, answers, strict=False)
        )

    def _watch(self, waiter: FetchWaiter) -> None:
        of_followers = self._reader.follower_id >= 0
        for partition in self._found:
            if partition is not None:
                partition.waiters(of_followers)[waiter] = None

    def _release(self) -> None:
        for topic in self._answers:
            for answer in topic.partitions:
                if answer.records:
                    answer.records = None  # to be read again

    def _unwatch(self, waiter: FetchWaiter) -> None:
        of_followers = self._reader.follower_id >= 0
        for partition in self._found:
            if partition is not None:
                partition.waiters(of_followers).pop(waiter, None)

    def _read_again(self, touched: set[Partition]) -> None:
        read = self._reader.read
        place = 0
        for topic, answered in zip(self._request.topics, self._answers, strict=True):
            answers = answered.partitions
            for index, wanted in enumerate(topic.partitions):
                partition = self._found[place]
                if answers[index].records is None or partition in touched:
                    partition = self._found[place] = self._find(topic, wanted)
                    answers[index] = (
                        read(partition, wanted) if partition is not None else self._absent(topic, wanted)
                    )
                place += 1

    def _response(self) -> FetchResponse:
        if self._reader.size:
            found = iter(self._found)
            for topic in self._answers:
                for answer in topic.partitions:
                    self._reader.count_sent(next(found), answer)
        response = FetchResponse(responses=self._answers)
        if self._create_session:
            cache = self._context.services.fetch_sessions
            if cache.make_room(self._reader.follower_id >= 0, len(self._found)):
                session = self._new_session()
                cache.add(session)
                response.session_id = session.id
        return self._with_current_leaders(self._answers, response)

    def _new_session(self) -> FetchSession:
        committed = self._request.isolation_level == READ_COMMITTED
        session = FetchSession(self._by_id, self._reader.follower_id, committed)
        authorizer = self._context.services.authorizer
        session.acl_epoch = 0 if authorizer is None else authorizer.epoch
        found = iter(self._found)
        for topic, answered in zip(self._request.topics, self._answers, strict=True):
            name = self._name(topic)
            for wanted, answer, partition in zip(topic.partitions, answered.partitions, found, strict=False):
                session.settle(session.add(name, topic.topic_id, wanted), partition, answer)
        return session


class IncrementalFetch(DelayedFetch):
    """A request that continues a session, which has been updated from the request."""

    __slots__ = ("_answers", "_epoch", "_session")

    def __init__(
        self, context: RequestContext[FetchServices], request: FetchRequest, session: FetchSession, epoch: int
    ) -> None:
        """`epoch`: the session's after this request; a later one means that another request has overtaken it."""
        super().__init__(context, request)
        self._session = session
        self._epoch = epoch
        self._answers: list[tuple[SessionPartition, Partition | None, PartitionData]] = []

    def _record_follower(self) -> None:
        record = self._reader.record_follower
        for one in self._session.to_read():
            partition = self._find(one)
            if partition is not None:
                record(partition, one.wanted)

    @property
    def _session_id(self) -> int:
        return self._session.id

    def _is_overtaken(self) -> bool:
        return self._session.epoch != self._epoch

    def _find(self, one: SessionPartition) -> Partition | None:
        partitions = self._context.services.partitions
        if self._by_id:
            return partitions.by_id(one.topic_id, one.wanted.partition)
        return partitions.get(one.topic or "", one.wanted.partition)

    def _read(self) -> None:
        if self._session.epoch != self._epoch:
            self._reader.failed = True  # a later request came while a thread read
            return
        authorizer = self._context.services.authorizer
        if authorizer is not None:
            self._session.use_acls(authorizer.epoch)
        self._session.use_isolation(self._request.isolation_level == READ_COMMITTED)
        self._answers = list(self._read_active())

    def _read_active(self) -> Iterator[tuple[SessionPartition, Partition | None, PartitionData]]:
        allowed: dict[str | None, bool] = {}  # by topic
        for one in self._session.to_read():
            wanted = one.wanted
            partition = self._find(one)
            if not self._is_authorized:
                name = self._name(one)
                if name not in allowed:
                    allowed[name] = self._may_read(name)
                if not allowed[name]:
                    one.topic = name
                    answer = self._reader.absence(wanted, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
                    yield one, None, answer
                    continue
            if partition is None:
                answer = self._absent(one)
            else:
                one.topic = partition.topic
                answer = self._reader.read(partition, wanted)
            yield one, partition, answer

    def _name(self, one: SessionPartition) -> str | None:
        """None for a topic id that is not known."""
        if one.topic is not None:
            return one.topic
        known = self._context.services.controller.image.topic_by_id(one.topic_id)
        return known.name if known is not None else None

    def _absent(self, one: SessionPartition) -> PartitionData:
        image = self._context.services.controller.image
        one.topic = self._name(one)
        topic = one.topic_id if self._by_id else one.topic or ""
        error = missing_error(image, topic, one.wanted.partition, name=one.topic)
        if error in (ErrorCode.INCONSISTENT_TOPIC_ID, ErrorCode.NOT_LEADER_OR_FOLLOWER):
            return self._reader.failure(one.wanted, error)
        return self._reader.absence(one.wanted, error)

    def _can_grow(self) -> bool:
        idle = len(self._session.partitions) - len(self._answers)
        return idle > 0 or any(partition is not None for _, partition, _ in self._answers)

    def _has_news(self) -> bool:
        return any(
            answer.high_watermark != one.high_watermark or answer.log_start_offset != one.log_start_offset
            for one, _, answer in self._answers
        )

    def _watch(self, waiter: FetchWaiter) -> None:
        for one, partition, _ in self._answers:
            one.partition = partition
        self._session.wait(waiter)

    def _release(self) -> None:
        self._answers = []

    def _unwatch(self, waiter: FetchWaiter) -> None:
        self._session.stop_waiting(waiter)

    def _read_again(self, touched: set[Partition]) -> None:  # noqa: ARG002 - the session has noted them
        if self._session.epoch == self._epoch:
            self._answers = list(self._read_active())

    def _response(self) -> FetchResponse:
        session = self._session
        if self._is_overtaken():
            return FetchResponse(error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH, session_id=session.id)
        topics: list[FetchableTopicResponse] = []
        for one, partition, answer in self._answers:
            if not session.settle(one, partition, answer):
                continue
            topic = one.topic or ""
            if not topics or topics[-1].topic_id != one.topic_id or topics[-1].topic != topic:
                topics.append(FetchableTopicResponse(topic, one.topic_id, []))
            topics[-1].partitions.append(answer)
            self._reader.count_sent(partition, answer)
        return self._with_current_leaders(topics, FetchResponse(session_id=session.id, responses=topics))
