"""Events that simulations must cover: a counter that stays at zero over many seeds means that nothing was tested."""

from __future__ import annotations

from collections.abc import Mapping

# A few seeds together cover these.
COMMON = (
    "batches acked",
    "batches sent",
    "assigned joined",
    "batches in flight together",
    "config delete.retention.ms changed",
    "config min.insync.replicas changed",
    "controller elections",
    "copies of tasks assigned",
    "coordinator moves",
    "fault: kill",
    "fault: power failure",
    "fault: isolate",
    "group generations joined",
    "ISR growths",
    "ISR shrinks",
    "ends returned to observers",
    "leader changes",
    "offsets committed",
    "unauthenticated followers refused",
    "offsets returned to observers",
    "share groups joined",
    "share records accepted",
    "share records delivered again",
    "share records kept until their locks expire",
    "share records rejected",
    "share records released",
    "share sessions closed",
    "share sessions closed with records",
    "share sessions kept with records",
    "share sessions lost with records",
    "share start offsets returned",
    "streamed joined",
    "topics created",
    "truncations",
)
# These need more seeds.
RARE = (
    "batches failed",
    "config retention.ms changed",
    "consumers sent to the first record",
    "delete records NONE",
    "ELR in use",
    "elections of preferred leaders",
    "fault: cut pair",
    "fault: far ahead",
    "fault: full disk",
    "fault: jump",
    "fault: kill all",
    "fault: kill in write",
    "fault: one way",
    "fault: pause",
    "fault: power failure everywhere",
    "fault: reset",
    "fault: slow disk",
    "fault: slow network",
    "fault: split",
    "fault: stop cleanly",
    "fault: wipe",
    "logs that begin behind the tier",
    "metadata snapshots loaded",
    "metadata snapshots' pieces for voters with uncommitted entries",
    "metadata snapshots written",
    "partitions whose records expired",
    "partitions without a leader",
    "producers that start over",
    "reassign NONE",
    "records compacted away",
    "replica changes",
    "sent to a follower",
    "share connections closed by members",
    "share group epochs returned",
    "share records delivered for the last time",
    "share records given up at the limit",
    "share records renewed",
    "share records' acknowledgements INVALID_RECORD_STATE",
    "share records' acknowledgements without an answer",
    "topics deleted",
    "unclean elections",
)
SEEDS_FOR_COMMON, SEEDS_FOR_RARE = 20, 200


def missing(counts: Mapping[str, int], seeds: int) -> list[str]:
    """Required events that these seeds have not covered."""
    wanted = (COMMON if seeds >= SEEDS_FOR_COMMON else ()) + (RARE if seeds >= SEEDS_FOR_RARE else ())
    return [what for what in wanted if not counts.get(what)]


def table(counts: Mapping[str, int]) -> str:
    """All counters, one per line."""
    return "\n".join(f"{count:>10}  {what}" for what, count in sorted(counts.items()))
