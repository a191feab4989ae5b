"""Whether offsets of a group may be committed, or fetched, by who asks (KIP-848, KIP-1071, KIP-1251).

Errors of members of the classic protocol are those of classic groups.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, TypeAlias

from barnabas.wire.errors import ErrorCode

if TYPE_CHECKING:
    from barnabas.broker.groups.modern.group import AnyGroup

EPOCHS_SINCE: Final = 9  # the version of OffsetCommit that has them
Committed: TypeAlias = "Iterable[tuple[str, bytes, int]]"  # topic, its id, partition


def check_commit(
    group: AnyGroup, member_id: str, epoch: int, partitions: Committed, *, api_version: int
) -> ErrorCode:
    """`partitions`: all that are committed. One that the member may not commit fails the request: with an older epoch it may commit
    what it has had since then, as its answer with the next epoch may be on its way."""
    if epoch < 0 and group.is_empty:
        return ErrorCode.NONE  # an administrator, or a consumer without membership
    if member_id not in group.members:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if not group.is_classic_member(member_id) and api_version < EPOCHS_SINCE:
        return ErrorCode.UNSUPPORTED_VERSION
    return _check_epoch(group, member_id, epoch, partitions)


def check_transactional_commit(
    group: AnyGroup, member_id: str, instance_id: str | None, epoch: int, partitions: Committed
) -> ErrorCode:
    """As `check_commit`. A producer need not name a member."""
    if epoch < 0 and (group.is_empty or (epoch == -1 and not member_id and instance_id is None)):
        return ErrorCode.NONE
    if member_id not in group.members:
        return ErrorCode.UNKNOWN_MEMBER_ID
    return _check_epoch(group, member_id, epoch, partitions)


def _check_epoch(group: AnyGroup, member_id: str, epoch: int, partitions: Committed) -> ErrorCode:
    current = group.member_epoch(member_id)
    if epoch == current:
        return ErrorCode.NONE
    if epoch < current and all(
        (since := group.assignment_epoch(member_id, partition)) is not None and epoch >= since
        for partition in partitions
    ):
        return ErrorCode.NONE
    return _stale(group, member_id)


def check_fetch(group: AnyGroup, member_id: str | None, epoch: int) -> ErrorCode:
    """Who names no member may read them."""
    if member_id is None and epoch < 0:
        return ErrorCode.NONE
    if member_id is None or member_id not in group.members:
        return ErrorCode.UNKNOWN_MEMBER_ID
    return ErrorCode.NONE if epoch == group.member_epoch(member_id) else _stale(group, member_id)


def _stale(group: AnyGroup, member_id: str) -> ErrorCode:
    is_classic = group.is_classic_member(member_id)
    return ErrorCode.ILLEGAL_GENERATION if is_classic else ErrorCode.STALE_MEMBER_EPOCH
