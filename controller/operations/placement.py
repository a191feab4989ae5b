"""Which brokers hold a partition: chosen in stripes, or checked when somebody else has chosen."""

from __future__ import annotations

from collections.abc import Sequence

from barnabas.controller.errors import Refusal
from barnabas.controller.image import MetadataImage, PartitionState
from barnabas.wire.errors import ErrorCode
from barnabas.wire.primitives import ZERO_UUID

UNASSIGNED_DIRECTORY = ZERO_UUID  # DirectoryId.UNASSIGNED: the broker picks the log directory (KIP-858)


def place(image: MetadataImage, first: int, count: int, replication_factor: int) -> list[list[int]]:
    """Replicas of `count` partitions of which the first has index `first`, leaders striped over the brokers.

    Brokers that are fenced come last, so that a partition has a leader whenever any broker can lead.
    Raises Refusal: INVALID_REPLICATION_FACTOR.
    """
    usable = image.usable_brokers()
    fenced = sorted(set(image.brokers) - set(usable))
    registered = len(usable) + len(fenced)
    prefix = f"Unable to replicate the partition {replication_factor} time(s): "
    if not usable:
        raise Refusal(ErrorCode.INVALID_REPLICATION_FACTOR, f"{prefix}All brokers are currently fenced.")
    if replication_factor > registered:
        raise Refusal(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"{prefix}The target replication factor of {replication_factor} cannot be reached because only "
            f"{registered} broker(s) are registered or some brokers have all their log directories cordoned.",
        )
    placed = []
    for index in range(first, first + count):
        start = index % len(usable)
        order = usable[start:] + usable[:start] + fenced
        placed.append(order[:replication_factor])
    return placed


def check_assignment(image: MetadataImage, replicas: Sequence[int], replication_factor: int | None) -> None:
    """A manual assignment of one partition. `replication_factor` is that of the topic's other partitions, None
    for its first. Raises Refusal: INVALID_REPLICA_ASSIGNMENT."""
    prefix = "The manual partition assignment includes"
    if not replicas:
        raise Refusal(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"{prefix} an empty replica list.")
    previous: int | None = None
    for broker in sorted(replicas):
        if broker not in image.brokers:
            raise Refusal(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"{prefix} broker {broker}, but no such broker is registered.",
            )
        if broker == previous:
            raise Refusal(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"{prefix} the broker {broker} more than once."
            )
        previous = broker
    if replication_factor is not None and len(replicas) != replication_factor:
        raise Refusal(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"{prefix} a partition with {len(replicas)} replica(s), but this is not consistent with previous "
            f"partitions, which have {replication_factor} replica(s).",
        )


def new_partition(image: MetadataImage, index: int, replicas: Sequence[int]) -> PartitionState:
    """A partition that nobody has written to: its usable replicas are in sync and the first of them leads.

    Raises Refusal: INVALID_REPLICA_ASSIGNMENT when none of them can lead.
    """
    isr = [broker for broker in replicas if not image.brokers[broker].fenced]
    if not isr:
        raise Refusal(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"All brokers specified in the manual partition assignment for partition {index} are fenced or in "
            f"controlled shutdown.",
        )
    return PartitionState(
        replicas=list(replicas),
        isr=isr,
        leader=isr[0],
        leader_epoch=0,
        partition_epoch=0,
        directories=[UNASSIGNED_DIRECTORY] * len(replicas),
    )
