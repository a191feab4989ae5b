"""TxnOffsetCommit: offsets that a producer commits for a group as part of its transaction.

Before the first of them is appended, the transaction coordinator verifies that the group's partition of __consumer_offsets
belongs to the transaction; for a producer of transaction.version 2 it adds the partition (KIP-890). The group is looked at after
the coordinator's answer, in the turn of the append: it may have changed meanwhile, and its partition may have moved.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Final, Protocol

from barnabas.broker.coordinator.shard_log import coordinator_error
from barnabas.storage.errors import StorageError
from barnabas.storage.log.verification import VERIFICATION_OFF
from barnabas.wire.errors import ErrorCode

if TYPE_CHECKING:
    from barnabas.broker.coordinator.shards import Shards
    from barnabas.broker.groups.shard import Shard
    from barnabas.storage.log.verification import Verification
    from barnabas.wire.messages.txn_offset_commit import (
        TxnOffsetCommitRequest,
        TxnOffsetCommitRequestTopic,
    )

KNOWS_ABORTABLE: Final = 4  # the version whose clients know TRANSACTION_ABORTABLE
ADDS_PARTITION: Final = 5  # the version of clients that do not send AddOffsetsToTxn

TopicPartition = tuple[str, int]
Reply = Callable[[ErrorCode], None]


class Verify(Protocol):
    """AddPartitionsToTxnManager.verify."""

    def __call__(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Collection[TopicPartition],
        *,
        add: bool,
        done: Callable[[dict[TopicPartition, ErrorCode]], object],
    ) -> None: ...


def commit_in_transaction(
    shards: Shards[Shard],
    verify: Verify,
    request: TxnOffsetCommitRequest,
    topics: list[TxnOffsetCommitRequestTopic],
    api_version: int,
    reply: Reply,
    *,
    is_verification_enabled: bool = True,
) -> None:
    """Commit `topics`, those of the request's that exist. The reply comes once the offsets are in the log and committed there.
    They are the group's when the transaction commits.

    While the producer's last transaction still ends, the coordinator's CONCURRENT_TRANSACTIONS is answered at once, and the client
    asks again after its back-off: as in Kafka, which repeats the question for Produce only (KAFKA-18654, BatchVerifier).

    `is_verification_enabled`: transaction.partition.verification.enable, which does not keep partitions from being added."""
    adds = api_version >= ADDS_PARTITION
    shard = shards.of(request.group_id)
    if isinstance(shard, ErrorCode):
        reply(shard)
        return
    if request.producer_id < 0 or request.producer_epoch < 0:  # no marker could end it
        reply(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        return
    if not adds and not is_verification_enabled:
        shard.offset_requests.commit_in_transaction(request, topics, VERIFICATION_OFF, reply)
        return
    try:
        verification = shard.log.begin_verification(
            request.producer_id, request.producer_epoch, supports_epoch_bump=adds
        )
    except StorageError as error:
        is_full = error.error == ErrorCode.NOT_ENOUGH_REPLICAS  # the group's coordinator is the right one
        reply(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if is_full else coordinator_error(error.error))
        return
    if verification is None:  # the transaction is open in the partition
        shard.offset_requests.commit_in_transaction(request, topics, None, reply)
        return
    partition = (shards.topic, shard.index)

    def verified(errors: dict[TopicPartition, ErrorCode]) -> None:
        error = errors[partition]
        if error:
            shard.log.verification_failed(request.producer_id, verification, error)
            reply(_response_error(error, api_version))
        else:
            _append(shards, request, topics, verification, reply)

    verify(
        request.transactional_id,
        request.producer_id,
        request.producer_epoch,
        [partition],
        add=adds,
        done=verified,
    )


def _append(
    shards: Shards[Shard],
    request: TxnOffsetCommitRequest,
    topics: list[TxnOffsetCommitRequestTopic],
    verification: Verification,
    reply: Reply,
) -> None:
    shard = shards.of(request.group_id)
    if isinstance(shard, ErrorCode):
        reply(shard)
    else:
        shard.offset_requests.commit_in_transaction(request, topics, verification, reply)


def _response_error(error: ErrorCode, api_version: int) -> ErrorCode:
    """The client's error when the verification has failed."""
    if error == ErrorCode.TRANSACTION_ABORTABLE and api_version < KNOWS_ABORTABLE:
        return ErrorCode.INVALID_TXN_STATE
    if (
        error == ErrorCode.NETWORK_EXCEPTION
    ):  # clients that do not expect it repeat this one without another look-up
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    return coordinator_error(error)
