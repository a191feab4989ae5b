"""Reads one partition for a fetch: its records as file regions, or the error.

A consumer reads committed records, from the leader or (since version 11, KIP-392) from a follower. A follower reads to the
end of the log, from the leader alone, which records the follower's fetch offset before it reads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from barnabas.broker.fetch.replica_selector import NO_PREFERENCE
from barnabas.storage.errors import StorageError, WouldWait
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.fetch import (
    AbortedTransaction,
    DEFAULT_EpochEndOffset,
    DEFAULT_LeaderIdAndEpoch,
    DEFAULT_SnapshotId,
    EpochEndOffset,
    FetchPartition,
    FetchRequest,
    PartitionData,
)

if TYPE_CHECKING:
    from barnabas.broker.fetch.replica_selector import ReadAdvice
    from barnabas.broker.partitions.partition import Partition
    from barnabas.broker.partitions.replication_quota import ReplicationQuota
    from barnabas.storage.disk.disk import FileRegion
    from barnabas.storage.log.log import Log
    from barnabas.storage.log.segments import ReadResult
    from barnabas.wire.primitives import Records

READ_COMMITTED: Final = 1
# Smaller results are copied into the response: a read costs less than a sendfile, and the response leaves in one piece. At
# most COPIED_BYTES_MAX of one response.
COPIED_BYTES: Final = 8 * 1024
COPIED_BYTES_MAX: Final = 128 * 1024
ABORTED_MAX: Final = 5000  # aborted transactions in one response; more only if one batch lies in as many
FOLLOWERS_FROM: Final = 11  # the first version whose clients may read from a follower (KIP-392)
STORAGE_ERROR_FROM: Final = 6  # the first version whose clients know KAFKA_STORAGE_ERROR


class PartitionReader:
    """Reads one partition after the other until max_bytes is used up.

    max_bytes and partition_max_bytes are soft: the first partition with data always gives one batch, so that a batch larger
    than the limit never stops a consumer. `failed`: the response should not wait for more data.
    """

    __slots__ = (
        "_aborted", "_advice", "_committed", "_follower_epoch", "_old", "_only_leader", "_quota", "_refused", "_room", "_wait",
        "_waits_for_remote", "cold", "failed", "follower_id", "size",
    )  # fmt: skip

    def __init__(
        self,
        request: FetchRequest,
        version: int,
        max_bytes: int,
        *,
        advice: ReadAdvice | None,
        quota: ReplicationQuota | None,
        wait: bool,
        waits_for_remote: bool = True,
    ) -> None:
        """`advice`: for a consumer that may read from a closer replica. `quota`: for followers, where it is set. Without `wait`,
        `read` leaves out records that it would have to wait for the disk for, and notes in `cold` what a thread has to do
        before all is read again. Without `waits_for_remote`, what has to be read from remote storage first is left out, for good."""
        self.follower_id, self._follower_epoch = fetching_follower(request)
        self._refused: dict[Partition, ErrorCode] = {}
        self._advice = advice
        self._quota = quota if self.follower_id >= 0 else None
        self._only_leader = version < FOLLOWERS_FROM
        self._old = version < STORAGE_ERROR_FROM
        self._committed = request.isolation_level == READ_COMMITTED
        self._room = max_bytes
        self._aborted = 0  # transactions in the response so far
        self._wait = wait
        self._waits_for_remote = waits_for_remote
        self.size = 0
        self.failed = False
        self.cold: list[WouldWait] = []

    def read(self, partition: Partition, wanted: FetchPartition) -> PartitionData:
        """The batches from wanted.fetch_offset on, or the error."""
        epoch = wanted.current_leader_epoch
        if epoch > -1 and epoch != partition.leader_epoch:
            return self.failure(wanted, partition.check_leader_epoch(epoch))
        is_follower = self.follower_id >= 0
        if not partition.is_leader and (is_follower or self._only_leader):
            offline = partition.log.offline
            return self.failure(
                wanted, ErrorCode.KAFKA_STORAGE_ERROR if offline else ErrorCode.NOT_LEADER_OR_FOLLOWER
            )
        log = partition.log
        partition.stats.fetch_requests += 1
        if self._refused:
            error = self._refused.get(partition)
            if error is not None:
                return self.failure(wanted, error)
        high_watermark, last_stable_offset = partition.high_watermark, partition.last_stable_offset
        answer = PartitionData(
            wanted.partition,
            0,
            high_watermark,
            last_stable_offset,
            log.log_start_offset,
            DEFAULT_EpochEndOffset,
            DEFAULT_LeaderIdAndEpoch,
            DEFAULT_SnapshotId,
            [] if self._committed else None,
            -1,
            b"",
        )
        if wanted.last_fetched_epoch >= 0:
            diverging = _diverging_epoch(partition, wanted)
            if diverging is not None:
                if diverging.epoch < 0 or wanted.fetch_offset < log.log_start_offset:
                    return self.failure(wanted, ErrorCode.OFFSET_OUT_OF_RANGE)
                self.failed = True
                answer.diverging_epoch = diverging
                return answer
        if self._advice is not None and partition.is_leader and not log.offline:
            preferred = self._advice.preferred(partition, wanted.fetch_offset)
            if preferred != NO_PREFERENCE:
                answer.preferred_read_replica = preferred
                self.failed = True  # it has nothing to wait for here
                return answer
        end_offset = high_watermark
        if self._committed:
            end_offset = last_stable_offset
            partition.holds_back = last_stable_offset < high_watermark
        if is_follower:
            end_offset = log.log_end_offset
        if wanted.fetch_offset == end_offset and not log.offline:
            return answer  # the usual case
        if (
            is_follower
            and log.remote is not None
            and log.log_start_offset <= wanted.fetch_offset < log.local_log_start_offset
            and not log.offline
        ):  # it begins behind what is in remote storage alone (KIP-405)
            self.failed = True
            answer.error_code = ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE
            answer.last_stable_offset = -1
            answer.records = b""
            return answer
        quota = self._quota
        if quota is not None and quota.holds_back(partition, self.follower_id):
            return answer
        if not is_follower and log.is_over_remote_quota(wanted.fetch_offset):
            return answer  # empty; the fetch waits for others, or its max_wait_ms
        if self.cold and self._room == 0:  # the thread has enough to read
            answer.records = None
            return answer
        try:
            result = log.read(
                wanted.fetch_offset,
                min(wanted.partition_max_bytes, self._room),
                min_one_batch=self.size == 0,
                end_offset=end_offset,
                wait=self._wait,
            )
            if self._committed:
                result, answer.aborted_transactions = self._without_aborted(
                    log, wanted.fetch_offset, end_offset, result
                )
        except StorageError as failure:
            partition.stats.refused_read(failure.error)
            return self.failure(wanted, failure.error)
        except WouldWait as cold:
            if cold.is_remote and (self._wait or not self._waits_for_remote):
                self.failed = True  # the client asks again
                return answer
            self.cold.append(cold)
            self._room = max(0, self._room - wanted.partition_max_bytes)
            answer.records = None  # to be read again
            return answer
        if result.regions:
            if result.size > COPIED_BYTES or self.size > COPIED_BYTES_MAX:
                answer.records = result.regions
            else:
                answer.records = copied(result)
            self.size += result.size
            self._room = max(0, self._room - result.size)
            if quota is not None and quota.applies_to(partition):
                quota.record(result.size)
        return answer

    def _without_aborted(
        self, log: Log, offset: int, end_offset: int, result: ReadResult
    ) -> tuple[ReadResult, list[AbortedTransaction]]:
        """What has been read at `offset`, and the aborted transactions in it. It is cut where these are more than ABORTED_MAX: a
        transaction that is aborted takes little more room in the log than in the response."""
        limit = ABORTED_MAX + 1
        found = log.aborted_within(offset, result, limit, wait=self._wait)
        while len(found) == limit:
            self.failed = True
            smaller = log.read(
                offset, result.size // 2, min_one_batch=self.size == 0, end_offset=end_offset, wait=self._wait
            )
            if not smaller.regions:
                return smaller, []
            if log.is_indexed_between(smaller, result, wait=self._wait):
                result = smaller
                found = log.aborted_within(offset, result, limit, wait=self._wait)
            else:  # one batch, or batches without an entry in the offset index (index.interval.bytes)
                result = log.read(
                    offset, 1, min_one_batch=self.size == 0, end_offset=end_offset, wait=self._wait
                )
                if not result.regions:
                    return result, []
                found = log.aborted_in_batch(offset, result, wait=self._wait)
                break
        self._aborted += len(found)
        if self._aborted >= ABORTED_MAX:
            self._room = 0
            self.failed = True
        return result, [
            AbortedTransaction(producer_id=producer_id, first_offset=first_offset)
            for producer_id, first_offset in found
        ]

    def record_follower(self, partition: Partition, wanted: FetchPartition) -> None:
        """Record a follower's fetch offset, unless its log diverges from this one.

        To be called once for each request, before any read: records that this commits are acknowledged at once, and producers
        that waited for that may append before the read."""
        epoch = wanted.current_leader_epoch
        log = partition.log
        if not partition.is_leader or log.offline or (epoch > -1 and epoch != partition.leader_epoch):
            return  # read() answers with the error
        leadership = partition.leadership
        replica = leadership.replicas.get(self.follower_id) if leadership is not None else None
        if leadership is None or replica is None:
            # Not a replica in the metadata known here. With an epoch the error is UNKNOWN_LEADER_EPOCH, as in Kafka.
            self._refused[partition] = (
                ErrorCode.NOT_LEADER_OR_FOLLOWER if epoch < 0 else ErrorCode.UNKNOWN_LEADER_EPOCH
            )
            return
        offset = wanted.fetch_offset
        if not log.log_start_offset <= offset <= log.log_end_offset or (
            wanted.last_fetched_epoch >= 0 and _diverging_epoch(partition, wanted) is not None
        ):
            return
        if not leadership.follower_fetched(replica, self._follower_epoch, offset, wanted.log_start_offset):
            self._refused[partition] = ErrorCode.NOT_LEADER_OR_FOLLOWER

    def count_sent(self, partition: Partition | None, answer: PartitionData) -> None:
        """The partition's records leave with the response."""
        if answer.records and partition is not None:
            size = size_of(answer.records)
            if self.follower_id >= 0:
                partition.stats.replication_bytes_out += size
            else:
                partition.stats.bytes_out += size
                partition.bytes_out += size

    def absence(self, wanted: FetchPartition, error: ErrorCode) -> PartitionData:
        """The response for a partition that is not here. A consumer's fetch may still wait for other partitions; a follower's is
        answered at once, and sent again when the metadata has arrived."""
        self.failed = self.failed or self.follower_id >= 0
        return PartitionData(
            partition_index=wanted.partition, error_code=error, high_watermark=-1, records=b""
        )

    def failure(self, wanted: FetchPartition, error: ErrorCode) -> PartitionData:
        """The response where reading failed; the fetch does not wait then."""
        self.failed = True
        if self._old and error == ErrorCode.KAFKA_STORAGE_ERROR:
            error = ErrorCode.NOT_LEADER_OR_FOLLOWER  # which old clients retry after, as in Kafka
        return PartitionData(
            partition_index=wanted.partition,
            error_code=error,
            high_watermark=-1,
            aborted_transactions=None,
            records=b"",
        )


def fetching_follower(request: FetchRequest) -> tuple[int, int]:
    """(broker id, broker epoch) of the follower that fetches; the id is -1 for a consumer. Since version 15 the
    follower is in another field (KIP-903)."""
    state = request.replica_state
    if state.replica_id >= 0:
        return state.replica_id, state.replica_epoch
    return max(request.replica_id, -1), -1


def size_of(records: Records) -> int:
    """Bytes of the records of an answer."""
    if records is None:
        return 0
    return sum(map(len, records)) if isinstance(records, tuple) else len(records)


def copied(result: ReadResult) -> bytes | tuple[FileRegion, ...]:
    """The bytes; the regions themselves when reading would wait for the disk, or fails: then the writer deals with it."""
    pieces = []
    for region in result.regions:
        read = region.file.pread if region.is_hot else region.file.pread_now
        try:
            pieces.append(read(region.length, region.position))
        except OSError:
            return result.regions
    data = b"".join(pieces)
    return data if len(data) == result.size else result.regions


def _diverging_epoch(partition: Partition, wanted: FetchPartition) -> EpochEndOffset | None:
    """Where the logs of the reader and of this broker diverge, if they do (KIP-595)."""
    if (
        wanted.last_fetched_epoch == partition.leader_epoch
        and partition.is_leader
        and wanted.fetch_offset <= partition.log.log_end_offset
    ):
        return None  # the usual case
    epoch, end_offset = partition.epoch_end_offset(wanted.last_fetched_epoch)
    if epoch < wanted.last_fetched_epoch or end_offset < wanted.fetch_offset:
        return EpochEndOffset(epoch=epoch, end_offset=end_offset)
    return None
