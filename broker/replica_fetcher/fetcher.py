"""A follower's fetcher: copies partitions from one leader over one connection.

Records are appended in the turn in which they arrive, and the next request, which acknowledges them to the leader, leaves in
the same turn: acks=all waits for that. Very many batches are appended in several turns, and the next request leaves after
them. While a request waits on the leader for records, one more may be sent when a partition's offset has changed; the leader
then answers the first at once.

An error delays its partition alone. An answer for a partition whose leader, leader epoch or log has changed since is dropped.
As Kafka's AbstractFetcherThread, without its threads.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from barnabas.broker.cluster.peer_client import ClientTls, InterBrokerClient
from barnabas.broker.fastpath.replica_fetch import read_fast_fetch_response
from barnabas.broker.replica_fetcher.leader_offsets import EARLIEST, LATEST, LATEST_TIERED, LeaderOffsets
from barnabas.broker.replica_fetcher.session import FollowerSession
from barnabas.broker.replica_fetcher.state import FetchDelays, FetchState, Status
from barnabas.broker.replica_fetcher.tier_state_machine import TierStateMachine
from barnabas.broker.replica_fetcher.truncation import ReplicaTruncations, diverging_offset
from barnabas.storage.errors import StorageError
from barnabas.storage.log.follower_append import FollowerAppend, UnexpectedAppendOffset
from barnabas.wire.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

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
OVERSIZE_BYTES: Final = 64 * 1024 * 1024  # by which a first batch may exceed the maximum of the request
PARTITION_ANSWER_BYTES: Final = 128  # of one partition in an answer, without its records
FIRST_DELAY_S: Final = 0.01
TURN_BATCHES: Final = 1000  # appended in one turn of the loop: 2 ms, if they are small
ROUNDS_MAX: Final = 100  # of comparing epochs with the leader, in a row; each should make progress

# Leader and follower have different metadata for a moment.
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
_OFFSET_ERRORS: Final = frozenset({ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE})
_SESSION_ERRORS: Final = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)


def _ignore(*_: object) -> None:
    pass


@dataclass(slots=True)
class FetcherSettings:
    """The configuration that all fetchers of a broker share, under Kafka's names without `replica.fetch.`: times in ms, sizes in bytes. `broker_epoch()` is that of this broker's registration."""

    node_id: int
    broker_epoch: Callable[[], int]
    authentication: InterBrokerAuthentication | None = None
    num_fetchers: int = 1  # at the start; see ReplicaFetcherManager.resize
    max_bytes: int = 1_048_576  # of one partition
    response_max_bytes: int = 10_485_760
    min_bytes: int = 1
    wait_max_ms: int = 500
    backoff_ms: int = 1000
    socket_timeout_ms: int = 30_000
    tls: ClientTls | None = None  # of the inter-broker listener
    may_skip_tiered: Callable[[], bool] = bool  # follower.fetch.last.tiered.offset.enable
    tier_interval_ms: int = 0  # remote.log.manager.task.interval.ms; 0: nothing is tiered
    quotas: Sequence[ReplicationQuota] = ()


class _Remainder(NamedTuple):
    """The part of a partition's answer that a later turn appends, unless its log changes before."""

    state: FetchState
    log: Log
    end_offset: int  # of the log
    records: memoryview
    high_watermark: int
    log_start_offset: int
    before: FollowerAppend  # the part of the answer that was appended


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
        self._offsets = LeaderOffsets(self._client, settings.node_id, self._is_current)
        self._truncations = ReplicaTruncations(runtime, log_manager, self._is_current, self._truncated)
        self._tier_states = TierStateMachine(
            runtime,
            log_manager,
            self._offsets,
            self._truncations,
            self._is_current,
            self._truncated,
            self._delay_tiered,
        )
        self._empty: list[FetchState] = []  # they may begin behind what is tiered (KIP-1023)
        self._in_flight = 0
        self._valid_from = 0  # answers to earlier requests belong to another session or connection
        self._session_failures = 0  # in a row
        self._is_resting = False  # after several of them
        self._delays = FetchDelays(runtime, self._delay_is_over)
        self._fetch_is_due = False
        self._batches_left = TURN_BATCHES  # that may be appended in this turn
        self._remainders: deque[_Remainder] = deque()  # nothing is fetched until they have been appended
        self._remainders_are_due = False

    # -- partitions

    @property
    def partitions(self) -> int:
        return len(self._session.states)

    def add(self, partitions: Iterable[Partition]) -> None:
        """Fetch these partitions from now on, in their present leader epoch."""
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
            if held.log_end_offset == 0 and self._settings.may_skip_tiered():
                self._empty.append(state)
            if (
                held.replica_end_offset < held.log_end_offset
            ):  # the rest must be synced before it is acknowledged
                self._session.set_status(state, Status.SYNCING)
                held.flusher.when_synced(held.log_end_offset, partial(self._synced, state))
            elif held.epochs.latest_epoch < 0 and held.log_end_offset > held.high_watermark:
                legacy.append(
                    (state, held.high_watermark)
                )  # without epochs there is no other offset to truncate to
        if legacy:
            self._truncate(legacy)
        self._client.open()
        self._fetch_soon()

    def remove(self, topic_id: bytes, index: int) -> None:
        """Stop fetching the partition, if it is fetched here. An answer in flight is dropped."""
        self._session.remove((topic_id, index))

    def lag(self, topic_id: bytes, index: int) -> FetchState | None:
        return self._session.states.get((topic_id, index))

    def lags(self) -> Iterator[int]:
        """How many committed records each partition lacked as of the last answer."""
        return (max(state.lag, 0) for state in self._session.states.values())

    def close(self) -> None:
        self._delays.stop()
        self._remainders.clear()
        self._client.close()

    def leader_has_changed(self) -> None:
        """The registration of the leader's broker has changed."""
        self._client.reconnect()

    # -- the connection

    def _connected(self) -> None:
        self._in_flight = 0
        self._session.reset()
        self._valid_from = self._session.request_number + 1
        self._fetch()

    def _lost(self, _why: str) -> None:
        self._in_flight = 0
        self._valid_from = self._session.request_number + 1
        self._offsets.connection_lost()

    def _fetch_soon(self) -> None:
        """Fetch at the end of this turn: one request names all partitions that change in it."""
        if not self._fetch_is_due:
            self._fetch_is_due = True
            self._runtime.call_soon(self._fetch)

    def _fetch(self) -> None:
        """Send a request, if there is anything to fetch and no request in flight that names the same."""
        self._fetch_is_due = False
        session = self._session
        if self._empty and self._client.is_connected:
            self._begin_behind_tier()
        if not session.ready_count or not self._client.is_connected or self._is_resting or self._remainders:
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

    def _begin_behind_tier(self) -> None:
        """KIP-1023."""
        empty = [
            state
            for state in self._empty
            if self._is_current(state) and state.partition.log.log_end_offset == 0
        ]
        # Those that are delayed come back here when that is over.
        self._empty = [state for state in empty if state.status is not Status.READY]
        tiered = [
            state
            for state in empty
            if state.status is Status.READY and state.partition.log.remote is not None
        ]
        if tiered:
            for state in tiered:
                self._session.set_status(state, Status.AWAITING_OFFSETS)
            self._tier_states.begin_at_pending(tiered)

    def _delay_tiered(self, state: FetchState) -> None:
        """It could not begin behind what is tiered: try again later, from the beginning."""
        self._delay(state, self._settings.backoff_ms)
        if state.partition.log.log_end_offset == 0 and self._settings.may_skip_tiered():
            self._empty.append(state)

    def learn_tiered_offsets(self) -> None:
        """Ask the leader up to where segments here are tiered, and may leave the disk by local.retention.* (KIP-1005)."""
        wanted = [
            state
            for state in self._session.states.values()
            if (remote := state.partition.log.remote) is not None
            and len(bases := state.partition.log.segments.bases) > 1
            and bases[1] - 1 > remote.tiered_offset
        ]
        if wanted and self._client.is_connected:
            self._offsets.ask(wanted, (LATEST_TIERED,), self._learned, _ignore)

    def _learned(self, found: Iterator[tuple[FetchState, list[int]]]) -> None:
        for state, (tiered_offset,) in found:
            remote = state.partition.log.remote
            if remote is not None:
                remote.leader_has_tiered(tiered_offset)

    # -- answers

    def _answered_fast(self, number: int, frame: memoryview, start: int) -> bool:
        """As `_answered`, for the bytes of an answer with records of one partition; False for any other answer."""
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
        if state is None:
            self._overtaken(number, (answer.topic_id, answer.partition), answer.high_watermark)
        else:
            self._batches_left = TURN_BATCHES
            self._append(state, answer.records, answer.high_watermark, answer.log_start_offset)
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
        restarts: list[tuple[FetchState, int]] = []
        out_of_range: list[FetchState] = []
        moved: list[FetchState] = []  # what they need is in remote storage alone
        for topic in response.responses:
            topic_id = topic.topic_id
            for data in topic.partitions:
                state = session.answered_partition(number, (topic_id, data.partition_index))
                if state is None:
                    if not data.error_code and data.diverging_epoch.end_offset == -1:
                        self._overtaken(number, (topic_id, data.partition_index), data.high_watermark)
                    continue
                if data.error_code and data.error_code not in _OFFSET_ERRORS:
                    self._refused(state, data.error_code)
                elif state.rounds > ROUNDS_MAX:
                    log.error("%s: no agreement with the leader after %d rounds", state.name, state.rounds)
                    state.rounds = 0
                    self._delay(state, self._settings.backoff_ms)
                elif data.error_code:
                    is_tiered = data.error_code == ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE
                    (moved if is_tiered else out_of_range).append(state)
                elif data.diverging_epoch.end_offset != -1 or data.diverging_epoch.epoch != -1:
                    offset, start = self._divergence(state, data), data.log_start_offset
                    if state.partition.log.log_start_offset < start >= offset:
                        restarts.append((state, start))
                    else:
                        cuts.append((state, offset))
                else:
                    assert data.records is None or isinstance(data.records, memoryview)
                    self._append(state, data.records, data.high_watermark, data.log_start_offset)
        if cuts:
            self._truncate(cuts)
        for state, start in restarts:
            self._restart(state, start)
        if out_of_range:
            self._await_offsets(out_of_range, "nothing")
            self._offsets.ask(
                out_of_range, (LATEST, EARLIEST), self._truncations.out_of_range, self._truncated
            )
        if moved:
            self._await_offsets(moved, "only tiered records")
            self._tier_states.begin_at_local_start(moved)
        self._fetch()

    def _await_offsets(self, states: list[FetchState], what: str) -> None:
        for state in states:
            log.info("%s: the leader has %s at %d", state.name, what, state.sent_offset)
            state.rounds += 1
            self._session.set_status(state, Status.AWAITING_OFFSETS)

    def _overtaken(self, number: int, key: tuple[bytes, int], high_watermark: int) -> None:
        state = self._session.overtaken(number, key)
        if state is not None:
            state.partition.set_follower_high_watermark(high_watermark)

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

    def _append(
        self,
        state: FetchState,
        records: memoryview | None,
        high_watermark: int,
        log_start_offset: int,
        before: FollowerAppend | None = None,
    ) -> None:
        """Append the records of an answer, and follow the leader's high watermark and log start. `before`: what earlier turns
        have appended of the same answer."""
        partition = state.partition
        held = partition.log
        appended = before
        rest: memoryview | None = None
        try:
            if records:
                if self._batches_left <= 0:
                    self._append_later(state, records, high_watermark, log_start_offset, FollowerAppend(0))
                    return
                try:
                    appended = held.append_as_follower(records, state.leader_epoch, self._batches_left)
                except UnexpectedAppendOffset as error:
                    if not self._begin_inside_batch(state, error):
                        return
                    appended = held.append_as_follower(records, state.leader_epoch, self._batches_left)
                self._batches_left -= appended.batches
                size = appended.size
                partition.stats.replication_bytes_in += size
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
            self._append_failed(state, error)
            return
        except Exception:  # other partitions continue, as in Kafka
            log.exception("%s: an answer could not be processed", state.name)
            self._session.set_status(state, Status.FAILED)
            return
        state.failures = state.rounds = 0
        end = held.log_end_offset
        state.lag = max(high_watermark - end, 0)
        if end != state.sent_offset or held.log_start_offset != state.sent_start_offset:
            self._session.changed(state)
        if state.status is Status.TRUNCATING or appended is None:
            return
        if rest is not None:
            self._append_later(state, rest, high_watermark, log_start_offset, appended)
        elif appended.awaits_sync:
            self._session.set_status(state, Status.SYNCING)
            if before is not None:  # the sync that the earlier part has begun does not cover the rest
                held.flusher.sync_soon(held.log_end_offset)
            held.flusher.when_synced(end, partial(self._synced, state))
        elif appended.awaits_write_back:
            self._session.set_status(state, Status.SYNCING)
            held.when_written_back(partial(self._synced, state))
        else:
            self._record_throttled(state, appended.size)

    def _append_later(
        self,
        state: FetchState,
        records: memoryview,
        high_watermark: int,
        log_start_offset: int,
        before: FollowerAppend,
    ) -> None:
        """Append in the next turns. The receive buffer is reused after this one, so the records are copied, once."""
        if not isinstance(records.obj, bytes):
            records = memoryview(bytes(records))
        held = state.partition.log
        self._remainders.append(
            _Remainder(state, held, held.log_end_offset, records, high_watermark, log_start_offset, before)
        )
        self._append_remainders_soon()

    def _append_remainders_soon(self) -> None:
        if not self._remainders_are_due:
            self._remainders_are_due = True
            self._runtime.call_soon(self._append_remainders)

    def _append_remainders(self) -> None:
        """Append for a turn. The remainder of a partition that has changed since is dropped."""
        self._remainders_are_due = False
        self._batches_left = TURN_BATCHES
        while self._remainders and self._batches_left > 0:
            rest = self._remainders.popleft()
            state, held = rest.state, rest.log
            if (
                self._is_current(state)
                and state.status is Status.READY
                and state.partition.log is held
                and held.log_end_offset == rest.end_offset
            ):
                self._append(state, rest.records, rest.high_watermark, rest.log_start_offset, rest.before)
        if self._remainders:
            self._append_remainders_soon()
        self._fetch()

    def _record_throttled(self, state: FetchState, size: int) -> None:
        """Count bytes against the quotas: a replica that is not in sync may have to wait for the next ones (KIP-73)."""
        quotas = self._quotas_of(state)
        for quota in quotas:
            quota.record(size)
        self._throttle(state, quotas)

    def _quotas_of(self, state: FetchState) -> list[ReplicationQuota]:
        return [quota for quota in self._settings.quotas if quota.applies_to(state.partition)]

    def _throttle(self, state: FetchState, quotas: Iterable[ReplicationQuota]) -> None:
        delay_s = max((quota.delay_s() for quota in quotas), default=0.0) if state.lag else 0.0
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
        """The leader's log start lies inside a batch (DeleteRecords), which is sent whole: restart an empty log at the batch.
        Returns whether the batch can be appended now."""
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
            self._truncations.make_durable(
                [(state, held.restart_at(error.first_offset, held.log_start_offset))]
            )
        except OSError as failure:
            held.io_failed(failure)
            self._append_failed(state, StorageError(ErrorCode.KAFKA_STORAGE_ERROR, str(failure)))
            return False
        return True

    def _append_failed(self, state: FetchState, error: StorageError) -> None:
        held = state.partition.log
        if held.offline or held.failure is not None:
            log.error("%s is no longer fetched: %s", state.name, error)
            self._session.set_status(state, Status.FAILED)
        else:
            log.error("%s: fetched records are refused: %s", state.name, error)
            self._delay(state, self._settings.backoff_ms)

    def _divergence(self, state: FetchState, data: PartitionData) -> int:
        epoch, end_offset = data.diverging_epoch.epoch, data.diverging_epoch.end_offset
        held = state.partition.log
        state.rounds += 1
        offset = diverging_offset(held, epoch, end_offset)
        if offset == held.log_end_offset:  # nothing to cut, only epochs to compare
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

    def _truncate(self, cuts: list[tuple[FetchState, int]]) -> None:
        for state, _ in cuts:
            self._session.set_status(state, Status.TRUNCATING)
        self._truncations.cut(cuts)

    def _restart(self, state: FetchState, leader_start_offset: int) -> None:
        """The rest of the log lies below the leader's first record. The leader can't say where the logs parted, as it has deleted
        the epochs of that part too, so the records here may never have been committed. Kafka keeps them until the leader sends
        its start offset again."""
        log.info("%s: restarting at %d, where the leader's log starts", state.name, leader_start_offset)
        self._session.set_status(state, Status.TRUNCATING)
        self._truncations.restart(state, leader_start_offset)

    def _is_current(self, state: FetchState) -> bool:
        return self._session.states.get(state.key) is state

    def _truncated(self, states: list[FetchState], error: BaseException | None) -> None:
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
                log.error("%s could not be truncated to its leader: %s", state.name, error)
                self._delay(state, self._settings.backoff_ms)
        self._fetch_soon()

    # -- errors

    def _refused(self, state: FetchState, code: int) -> None:
        """The leader has answered with an error."""
        error = ErrorCode.of(code)
        longest_ms = self._settings.backoff_ms
        if error in _TRANSIENT:
            log.debug("%s: the leader answers %s", state.name, error.name)
            longest_ms = min(longest_ms, FIRST_DELAY_S * 1000 * 2 ** min(state.failures, 10))
        else:
            log.error("%s: the leader answers %s", state.name, error.name)
        self._delay(state, longest_ms)

    def _delay(self, state: FetchState, delay_ms: float) -> None:
        """Do not fetch the partition for this time."""
        state.failures += 1
        self._session.set_status(state, Status.DELAYED)
        self._delays.add(state, delay_ms / 1000)

    def _delay_is_over(self, states: list[FetchState]) -> None:
        for state in states:
            if state.status in (Status.DELAYED, Status.THROTTLED) and self._is_current(state):
                was_throttled = state.status is Status.THROTTLED
                self._session.set_status(state, Status.READY)
                if was_throttled:
                    self._throttle(state, self._quotas_of(state))
        self._fetch()
