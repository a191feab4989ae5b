"""A follower's fetcher: copies partitions from one leader, over one connection, one request after the other.

Records are appended in the turn in which they arrive, and the next request, which acknowledges them to the leader, leaves in
the same turn: that is what acks=all waits for. Of very many batches the rest is appended in later turns, and the next
request leaves after them. While a request waits on the leader for records, one more may be sent
when a partition's offset has changed; the leader then ends the waiting of the first.

An error delays its partition alone. An answer for a partition that has changed since (the leader, its epoch, the log of the
follower) is dropped. As Kafka's AbstractFetcherThread, without its threads.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from barnabas.broker.cluster.peer_client import InterBrokerClient
from barnabas.broker.fastpath.replica_fetch import read_fast_fetch_response
from barnabas.broker.replica_fetcher.session import FollowerSession
from barnabas.broker.replica_fetcher.state import FetchDelays, FetchState, Status
from barnabas.broker.replica_fetcher.truncation import ReplicaTruncations, diverging_offset
from barnabas.storage.errors import StorageError
from barnabas.storage.log.follower_append import FollowerAppend, UnexpectedAppendOffset
from barnabas.wire.errors import ErrorCode

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterable

    from barnabas.broker.cluster.inter_broker_authentication import InterBrokerAuthentication
    from barnabas.broker.partitions.partition import Partition
    from barnabas.broker.partitions.replication_quota import ReplicationQuota
    from barnabas.runtime.interface import Runtime
    from barnabas.storage.log.log import Log
    from barnabas.storage.manager.manager import LogManager
    from barnabas.wire.messages.fetch import FetchResponse, PartitionData

log = logging.getLogger("barnabas.replication")

FETCH: Final = 1
FETCH_VERSION: Final = 18
IN_FLIGHT_MAX: Final = 2
OVERSIZE_BYTES: Final = 64 * 1024 * 1024  # by so much a first batch may exceed the maximum of the request
PARTITION_ANSWER_BYTES: Final = 128  # of one partition, without its records
FIRST_DELAY_S: Final = 0.01
TURN_BATCHES: Final = 1000  # appended in one turn of the loop: 2 ms, if they are small
ROUNDS_MAX: Final = 100  # of comparing epochs with the leader, in a row, each of which should make progress

# Leader and follower have different metadata; the newer one is about to arrive.
_TRANSIENT: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
    }
)
_SESSION_ERRORS: Final = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)


@dataclass(slots=True)
class FetcherSettings:
    """The configuration that all fetchers of a broker share, under Kafka's names without `replica.fetch.`: times in ms, sizes in bytes. `broker_epoch()` is that of this broker's registration."""

    node_id: int
    broker_epoch: Callable[[], int]
    authentication: InterBrokerAuthentication | None = None
    num_fetchers: int = 1
    max_bytes: int = 1_048_576  # of one partition
    response_max_bytes: int = 10_485_760
    min_bytes: int = 1
    wait_max_ms: int = 500
    backoff_ms: int = 1000
    socket_timeout_ms: int = 30_000
    tls: ssl.SSLContext | None = None
    quota: ReplicationQuota | None = None  # follower.replication.throttled.rate


class _Rest(NamedTuple):
    """The rest of a partition's answer that is still to be appended, if its log has not changed since."""

    state: FetchState
    log: Log
    end_offset: int  # of the log
    records: memoryview
    high_watermark: int
    log_start_offset: int
    before: FollowerAppend  # what was appended of the answer


class ReplicaFetcher:
    """Fetches some of the partitions that one broker leads. All calls on the loop's thread."""

    def __init__(
        self,
        runtime: Runtime,
        settings: FetcherSettings,
        log_manager: LogManager,
        client_id: str,
        leader_id: int,
        endpoint: Callable[[], tuple[str, int] | None],
    ) -> None:
        self._runtime = runtime
        self._settings = settings
        self._client = InterBrokerClient(
            runtime,
            client_id,
            endpoint,
            self._connected,
            self._lost,
            authentication=settings.authentication,
            broker_id=leader_id,
            timeout_s=settings.socket_timeout_ms / 1000,
            tls=settings.tls,
        )
        self._session = FollowerSession(
            settings.wait_max_ms, settings.min_bytes, settings.response_max_bytes, settings.max_bytes
        )
        self._truncations = ReplicaTruncations(
            runtime, log_manager, self._client, settings.node_id, self._is_current, self._settled
        )
        self._in_flight = 0
        self._valid_from = 0  # answers to earlier requests are of another session, or connection
        self._session_failures = 0  # in a row
        self._is_resting = False  # after several of them
        self._delays = FetchDelays(runtime, self._delay_is_over)
        self._fetch_is_due = False
        self._batches_left = TURN_BATCHES  # that may be appended in this turn
        self._rests: deque[_Rest] = deque()  # nothing is fetched until they have been appended
        self._rests_are_due = False

    # -- partitions

    @property
    def partitions(self) -> int:
        return len(self._session.states)

    def add(self, partitions: Iterable[Partition]) -> None:
        """Fetch these from now on, in their present leader epoch."""
        legacy: list[tuple[FetchState, int]] = []
        for partition in partitions:
            known = self._session.states.get((partition.topic_id, partition.partition))
            if (
                known is not None
                and known.partition is partition
                and known.leader_epoch == partition.leader_epoch
                and known.status is not Status.FAILED
            ):
                continue
            state = FetchState(partition)
            self._session.add(state)
            held = partition.log
            if held.replica_end_offset < held.log_end_offset:  # not to be claimed in the new epoch either
                self._session.set_status(state, Status.SYNCING)
                held.when_synced(held.log_end_offset, partial(self._synced, state))
            elif held.latest_epoch < 0 and held.log_end_offset > held.high_watermark:
                legacy.append(
                    (state, held.high_watermark)
                )  # nothing but the high watermark is there to go by
        if legacy:
            self._cut(legacy)
        self._client.open()
        self._fetch_soon()

    def remove(self, topic_id: bytes, index: int) -> None:
        """Stop fetching it, if it is fetched here. An answer in flight is dropped."""
        self._session.remove((topic_id, index))

    def lag(self, topic_id: bytes, index: int) -> FetchState | None:
        return self._session.states.get((topic_id, index))

    def close(self) -> None:
        self._delays.stop()
        self._rests.clear()
        self._client.close()

    def leader_has_changed(self) -> None:
        """The registration of the leader's broker has changed."""
        self._client.hurry()

    # -- the connection

    def _connected(self) -> None:
        self._in_flight = 0
        self._session.reset()
        self._valid_from = self._session.request_number + 1
        self._fetch()

    def _lost(self, _why: str) -> None:
        self._in_flight = 0
        self._valid_from = self._session.request_number + 1
        self._truncations.connection_lost()

    def _fetch_soon(self) -> None:
        """Fetch at the end of this turn, so that one request has all that changes in it."""
        if not self._fetch_is_due:
            self._fetch_is_due = True
            self._runtime.call_soon(self._fetch)

    def _fetch(self) -> None:
        """Send a request, if there is anything to fetch, and none in flight that has the same."""
        self._fetch_is_due = False
        session = self._session
        if not session.ready_count or not self._client.is_connected or self._is_resting or self._rests:
            return
        if self._in_flight and not (
            self._in_flight < IN_FLIGHT_MAX and session.may_pipeline and session.has_changes
        ):
            return
        settings = self._settings
        node_id, broker_epoch = settings.node_id, settings.broker_epoch()
        request = session.fast_request(node_id, broker_epoch) or session.next_request(node_id, broker_epoch)
        self._in_flight += 1
        self._client.send(
            FETCH,
            FETCH_VERSION,
            request,
            partial(self._answered, session.request_number),
            answer_max_bytes=settings.response_max_bytes
            + OVERSIZE_BYTES
            + PARTITION_ANSWER_BYTES * len(session.states),
            fast_path=partial(self._answered_fast, session.request_number),
        )

    # -- answers

    def _answered_fast(self, number: int, frame: memoryview, start: int) -> bool:
        """As `_answered`, for a few records of one partition, as bytes. Whether that is what came."""
        session = self._session
        if number < self._valid_from:
            return False
        answer = read_fast_fetch_response(frame, start)
        if answer is None or answer.session_id != session.id:
            return False
        state = session.answered_partition(number, (answer.topic_id, answer.partition))
        if state is not None and state.rounds > ROUNDS_MAX:
            return False
        self._in_flight -= 1
        self._session_failures = 0
        if state is not None:
            self._batches_left = TURN_BATCHES
            self._take(state, answer.records, answer.high_watermark, answer.log_start_offset)
        self._fetch()
        return True

    def _answered(self, number: int, response: FetchResponse) -> None:
        self._in_flight -= 1
        session = self._session
        if response.error_code:
            self._session_failed(number, ErrorCode.of(response.error_code))
            return
        if number < self._valid_from:
            self._fetch()
            return
        self._session_failures = 0
        self._batches_left = TURN_BATCHES
        session.answered(number, response.session_id)
        cuts: list[tuple[FetchState, int]] = []
        out_of_range: list[FetchState] = []
        for topic in response.responses:
            topic_id = topic.topic_id
            for data in topic.partitions:
                state = session.answered_partition(number, (topic_id, data.partition_index))
                if state is None:
                    continue
                if data.error_code and data.error_code != ErrorCode.OFFSET_OUT_OF_RANGE:
                    self._refused(state, data.error_code)
                elif state.rounds > ROUNDS_MAX:
                    log.error("%s: no agreement with the leader after %d rounds", state.name, state.rounds)
                    state.rounds = 0
                    self._delay(state, self._settings.backoff_ms)
                elif data.error_code:
                    out_of_range.append(state)
                elif data.diverging_epoch.end_offset != -1 or data.diverging_epoch.epoch != -1:
                    cuts.append((state, self._divergence(state, data)))
                else:
                    assert data.records is None or isinstance(data.records, memoryview)
                    self._take(state, data.records, data.high_watermark, data.log_start_offset)
        if cuts:
            self._cut(cuts)
        if out_of_range:
            for state in out_of_range:
                log.info("%s: the leader has nothing at %d", state.name, state.sent_offset)
                state.rounds += 1
                session.set_status(state, Status.AWAITING_OFFSETS)
            self._truncations.ask(out_of_range)
        self._fetch()

    def _session_failed(self, number: int, error: ErrorCode) -> None:
        if number >= self._valid_from:
            self._session.reset()
            self._valid_from = self._session.request_number + 1
            self._session_failures += 1
            log.info("%s: the session starts again: %s", self._client.client_id, error.name)
            if error not in _SESSION_ERRORS or self._session_failures > 1:
                delay_s = FIRST_DELAY_S * 2 ** min(self._session_failures, 10)
                self._is_resting = True
                self._runtime.call_later(min(delay_s, self._settings.backoff_ms / 1000), self._try_again)
        self._fetch()

    def _try_again(self) -> None:
        self._is_resting = False
        self._fetch()

    def _take(
        self,
        state: FetchState,
        records: memoryview | None,
        high_watermark: int,
        log_start_offset: int,
        before: FollowerAppend | None = None,
    ) -> None:
        """Append what came, and follow what the leader says of its high watermark and its start. `before`: what was appended
        of the same answer in earlier turns."""
        partition = state.partition
        held = partition.log
        appended = before
        rest: memoryview | None = None
        try:
            if records:
                if self._batches_left <= 0:
                    self._take_later(state, records, high_watermark, log_start_offset, FollowerAppend(0))
                    return
                try:
                    appended = held.append_as_follower(records, state.leader_epoch, self._batches_left)
                except UnexpectedAppendOffset as error:
                    if not self._begin_inside_batch(state, error):
                        return
                    appended = held.append_as_follower(records, state.leader_epoch, self._batches_left)
                self._batches_left -= appended.batches
                size = appended.size
                if size and partition.observer is not None:
                    partition.observer.replicated(records[:size])
                if appended.is_partial:
                    rest = records[size:]
                if before is not None:
                    appended.add(before)
                if not appended.size:
                    self._delay(state, self._settings.backoff_ms)
                    return
            partition.set_follower_high_watermark(high_watermark)
            if log_start_offset > held.log_start_offset:
                held.increment_log_start_offset(min(log_start_offset, held.high_watermark))
        except StorageError as error:
            self._could_not_write(state, error)
            return
        except Exception:  # the others go on, as in Kafka
            log.exception("%s: an answer could not be processed", state.name)
            self._session.set_status(state, Status.FAILED)
            return
        state.failures = state.rounds = 0
        end = held.log_end_offset
        state.is_caught_up = end >= high_watermark
        if end != state.sent_offset or held.log_start_offset != state.sent_start_offset:
            self._session.changed(state)
        if state.status is Status.TRUNCATING or appended is None:
            return
        if rest is not None:
            self._take_later(state, rest, high_watermark, log_start_offset, appended)
        elif appended.awaits_sync:
            self._session.set_status(state, Status.SYNCING)
            if before is not None:  # which was what awaited it, and began it before there was more
                held.sync_soon()
            held.when_synced(end, partial(self._synced, state))
        elif appended.awaits_write_back:
            self._session.set_status(state, Status.SYNCING)
            held.when_written_back(partial(self._synced, state))
        elif self._settings.quota is not None:
            self._count(state, appended.size, self._settings.quota)

    def _take_later(
        self,
        state: FetchState,
        records: memoryview,
        high_watermark: int,
        log_start_offset: int,
        before: FollowerAppend,
    ) -> None:
        """Append in the next turns. The answer's buffer is used again after this one, so the rest of it is copied once."""
        if not isinstance(records.obj, bytes):
            records = memoryview(bytes(records))
        held = state.partition.log
        self._rests.append(
            _Rest(state, held, held.log_end_offset, records, high_watermark, log_start_offset, before)
        )
        self._take_rests_soon()

    def _take_rests_soon(self) -> None:
        if not self._rests_are_due:
            self._rests_are_due = True
            self._runtime.call_soon(self._take_rests)

    def _take_rests(self) -> None:
        """Append for a turn. The rest for a partition that has changed since is dropped."""
        self._rests_are_due = False
        self._batches_left = TURN_BATCHES
        while self._rests and self._batches_left > 0:
            rest = self._rests.popleft()
            state, held = rest.state, rest.log
            if (
                self._is_current(state)
                and state.status is Status.READY
                and state.partition.log is held
                and held.log_end_offset == rest.end_offset
            ):
                self._take(state, rest.records, rest.high_watermark, rest.log_start_offset, rest.before)
        if self._rests:
            self._take_rests_soon()
        self._fetch()

    def _count(self, state: FetchState, size: int, quota: ReplicationQuota) -> None:
        """So many bytes have come: a replica that is not in sync may have to wait for the next ones (KIP-73)."""
        partition = state.partition
        if quota.is_set and quota.is_throttled(partition.topic, partition.partition):
            quota.record(size)
            self._throttle(state, quota)

    def _throttle(self, state: FetchState, quota: ReplicationQuota) -> None:
        delay_s = 0.0 if state.is_caught_up else quota.delay_s()
        if delay_s > 0:
            self._session.set_status(state, Status.THROTTLED)
            self._delays.add(state, delay_s)

    def _synced(self, state: FetchState, failure: str | None) -> None:
        if not self._is_current(state) or state.status is not Status.SYNCING:
            return
        if failure is not None:
            log.error("%s is no longer fetched: %s", state.name, failure)
            self._session.set_status(state, Status.FAILED)
        else:
            self._session.set_status(state, Status.READY)
            self._fetch_soon()

    def _begin_inside_batch(self, state: FetchState, error: UnexpectedAppendOffset) -> bool:
        """The leader's start lies inside a batch (DeleteRecords), which comes whole: an empty log starts with it. Returns
        whether the batch can be appended now."""
        held = state.partition.log
        if held.log_start_offset != held.log_end_offset or error.last_offset < held.log_end_offset:
            log.error("%s: %s", state.name, error)
            self._delay(state, self._settings.backoff_ms)
            return False
        if held.is_sealing_from(0):
            self._delay(state, FIRST_DELAY_S * 1000)
            return False
        log.info("%s starts again at %d: %s", state.name, error.first_offset, error)
        self._session.set_status(state, Status.TRUNCATING)
        try:
            self._truncations.make_last([(state, held.restart_at(error.first_offset, held.log_start_offset))])
        except OSError as failure:
            held.io_failed(failure)
            self._could_not_write(state, StorageError(ErrorCode.KAFKA_STORAGE_ERROR, str(failure)))
            return False
        return True

    def _could_not_write(self, state: FetchState, error: StorageError) -> None:
        held = state.partition.log
        if held.offline or held.failure is not None:
            log.error("%s is no longer fetched: %s", state.name, error)
            self._session.set_status(state, Status.FAILED)
        else:
            log.error("%s: what was fetched is refused: %s", state.name, error)
            self._delay(state, self._settings.backoff_ms)

    def _divergence(self, state: FetchState, data: PartitionData) -> int:
        epoch, end_offset = data.diverging_epoch.epoch, data.diverging_epoch.end_offset
        held = state.partition.log
        state.rounds += 1
        offset = diverging_offset(held, epoch, end_offset)
        if offset == held.log_end_offset:  # only epochs had to be compared
            return offset
        level = logging.WARNING if offset < held.high_watermark else logging.INFO
        log.log(
            level,
            "%s: cutting the log back from %d to %d (high watermark %d), as the leader has epoch %d up to %d",
            state.name,
            held.log_end_offset,
            offset,
            held.high_watermark,
            epoch,
            end_offset,
        )
        return offset

    def _cut(self, cuts: list[tuple[FetchState, int]]) -> None:
        for state, _ in cuts:
            self._session.set_status(state, Status.TRUNCATING)
        self._truncations.cut(cuts)

    def _is_current(self, state: FetchState) -> bool:
        return self._session.states.get(state.key) is state

    def _settled(self, states: list[FetchState], error: BaseException | None) -> None:
        """These have been truncated or restarted, or that has failed."""
        for state in states:
            if not self._is_current(state):
                continue
            if error is None:
                state.failures = 0
                self._session.set_status(state, Status.READY)
            elif isinstance(error, StorageError) and error.error in _TRANSIENT:
                self._refused(state, error.error)
            else:
                log.error("%s can't be made to agree with its leader: %s", state.name, error)
                self._delay(state, self._settings.backoff_ms)
        self._fetch_soon()

    # -- errors

    def _refused(self, state: FetchState, code: int) -> None:
        """The leader did not answer with records."""
        error = ErrorCode.of(code)
        longest_ms = self._settings.backoff_ms
        if error in _TRANSIENT:
            log.debug("%s: the leader says %s", state.name, error.name)
            longest_ms = min(longest_ms, FIRST_DELAY_S * 1000 * 2 ** min(state.failures, 10))
        else:
            log.error("%s: the leader says %s", state.name, error.name)
        self._delay(state, longest_ms)

    def _delay(self, state: FetchState, delay_ms: float) -> None:
        """Leave the partition out for a while."""
        state.failures += 1
        self._session.set_status(state, Status.DELAYED)
        self._delays.add(state, delay_ms / 1000)

    def _delay_is_over(self, states: list[FetchState]) -> None:
        for state in states:
            if state.status in (Status.DELAYED, Status.THROTTLED) and self._is_current(state):
                was_throttled = state.status is Status.THROTTLED
                self._session.set_status(state, Status.READY)
                if was_throttled and self._settings.quota is not None:
                    self._throttle(state, self._settings.quota)
        self._fetch()
