"""Whether offsets of a consumer group may be committed, or fetched, by who asks (KIP-848, KIP-1251).

Errors of members of the classic protocol are those of classic groups.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from barnabas.wire.errors import ErrorCode

if TYPE_CHECKING:
    from barnabas.broker.groups.consumer.group import ConsumerGroup

EPOCHS_SINCE: Final = 9  # the version of OffsetCommit that has them


def check_commit(
    group: ConsumerGroup,
    member_id: str,
    epoch: int,
    partitions: Iterable[tuple[bytes, int]],
    *,
    api_version: int,
) -> ErrorCode:
    """`partitions`: (topic id, index) of all that are committed. One that the member may not commit fails the request: with an older
    epoch it may commit what it has had since then, as its answer with the next epoch may be on its way."""
    if epoch < 0 and group.is_empty:
        return ErrorCode.NONE  # an administrator, or a consumer without membership
    member = group.members.get(member_id)
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if member.classic is None and api_version < EPOCHS_SINCE:
        return ErrorCode.UNSUPPORTED_VERSION
    return _check_epoch(group, member_id, epoch, partitions)


def check_transactional_commit(
    group: ConsumerGroup,
    member_id: str,
    instance_id: str | None,
    epoch: int,
    partitions: Iterable[tuple[bytes, int]],
) -> ErrorCode:
    """As `check_commit`. A producer need not name a member."""
    if epoch < 0 and (group.is_empty or (epoch == -1 and not member_id and instance_id is None)):
        return ErrorCode.NONE
    if member_id not in group.members:
        return ErrorCode.UNKNOWN_MEMBER_ID
    return _check_epoch(group, member_id, epoch, partitions)


def _check_epoch(
    group: ConsumerGroup, member_id: str, epoch: int, partitions: Iterable[tuple[bytes, int]]
) -> ErrorCode:
    current = group.current(member_id)
    if epoch == current.epoch:
        return ErrorCode.NONE
    if epoch < current.epoch and all(
        (since := current.assignment_epoch(*partition)) is not None and epoch >= since
        for partition in partitions
    ):
        return ErrorCode.NONE
    return _stale(group, member_id)


def check_fetch(group: ConsumerGroup, member_id: str | None, epoch: int) -> ErrorCode:
    """Who names no member may read them."""
    if member_id is None and epoch < 0:
        return ErrorCode.NONE
    if member_id is None or member_id not in group.members:
        return ErrorCode.UNKNOWN_MEMBER_ID
    return ErrorCode.NONE if epoch == group.current(member_id).epoch else _stale(group, member_id)


def _stale(group: ConsumerGroup, member_id: str) -> ErrorCode:
    is_classic = group.members[member_id].classic is not None
    return ErrorCode.ILLEGAL_GENERATION if is_classic else ErrorCode.STALE_MEMBER_EPOCH
