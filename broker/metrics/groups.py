"""The metrics of group and transaction coordinators, and the lag of groups under kafka_exporter's names.

A group is shown by its coordinator. The lag of a partition is known where the coordinator has a replica of it; of others it is
`kafka_topic_partition_current_offset` of the leader minus `kafka_consumergroup_current_offset`.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from barnabas.broker.groups.group import ClassicGroup
from barnabas.broker.groups.state import GroupState
from barnabas.broker.metrics.families import COUNTER, GAUGE, Family, one, written_labels
from barnabas.broker.metrics.requests import QUANTILES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from barnabas.broker.coordinator.shards import LoadTimes
    from barnabas.broker.groups.coordinator import GroupCoordinator
    from barnabas.broker.groups.group_store import Group
    from barnabas.broker.groups.offsets import CommittedOffset
    from barnabas.broker.partitions.partition_manager import PartitionManager
    from barnabas.broker.transactions.coordinator import TransactionCoordinator
    from barnabas.broker.transactions.verification import AddPartitionsToTxnManager

AT_ONCE: Final = 500  # groups and their partitions


def group_metrics(
    coordinator: GroupCoordinator, partitions: PartitionManager, partitions_max: int
) -> Iterable[Family | None]:
    """Their number by type and state, their members and their lag. `partitions_max`: how many partitions are shown, of all
    groups together."""
    yield from _load_times("group", coordinator.shards.load_times)
    counts: Counter[tuple[str, str]] = Counter()  # by type and state
    lags = _Lags(partitions, partitions_max)
    done = 0  # since the last pause
    for shard in coordinator.shards.loaded():
        for group in tuple(shard.store.groups.values()):
            counts[group.group_type, group.state_name] += 1
            topics = shard.offsets.committed_topics(group.group_id)
            lags.add(group, topics)
            done += 1 + sum(map(len, topics.values()))
            if done >= AT_ONCE:
                done = 0
                yield None
    yield from _group_counts(counts)
    yield from lags.families()


def _group_counts(counts: Counter[tuple[str, str]]) -> Iterator[Family]:
    classic = ClassicGroup.group_type
    prefix = "kafka_coordinator_group_groupmetadatamanager_numgroups"
    yield one(
        prefix, sum(n for (kind, _), n in counts.items() if kind == classic), "Groups of the classic protocol"
    )
    for state in GroupState:
        name = f"{prefix}{state.value.lower()}"
        yield one(name, counts[classic, state.value], f"Of those, how many are {state.value}")
    by_type = Family("kafka_server_group_coordinator_metrics_group_count", GAUGE, "Groups by their protocol")
    by_state = Family("barnabas_groups", GAUGE, "Groups by their protocol and state")
    types: Counter[str] = Counter()
    for (kind, state_name), count in sorted(counts.items()):
        types[kind] += count
        by_state.add(count, {"protocol": kind, "state": state_name})
    for kind, count in sorted(types.items()):
        by_type.add(count, {"protocol": kind})
    yield by_type
    yield by_state


class _Lags:
    """The positions of groups, and how far they are behind."""

    def __init__(self, partitions: PartitionManager, partitions_max: int) -> None:
        self._partitions = partitions
        self._room = partitions_max
        self._groups_room = partitions_max
        self._left_out = self._groups_left_out = 0
        self._offsets = Family("kafka_consumergroup_current_offset", GAUGE, "The committed offset of a group")
        self._lag = Family("kafka_consumergroup_lag", GAUGE, "Records behind it")
        self._offset_sums = Family(
            "kafka_consumergroup_current_offset_sum",
            GAUGE,
            "The committed offsets of a group, of all partitions",
        )
        self._lag_sums = Family(
            "kafka_consumergroup_lag_sum", GAUGE, "Records behind them, of all partitions"
        )
        self._members = Family("kafka_consumergroup_members", GAUGE, "Members of a group")

    def add(self, group: Group, topics: dict[str, dict[int, CommittedOffset]]) -> None:
        if self._groups_room <= 0:
            self._groups_left_out += 1
            self._left_out += sum(map(len, topics.values()))
            return
        self._groups_room -= 1
        named = {"consumergroup": group.group_id}
        self._members.add(len(group.members), named)
        for topic, positions in topics.items():
            labels = {**named, "topic": topic}
            offset_sum = lag_sum = 0
            for index, position in positions.items():
                offset = position.offset
                offset_sum += offset
                partition = self._partitions.get(topic, index)
                lag = None if partition is None else max(partition.high_watermark - offset, 0)
                lag_sum += lag or 0
                if self._room <= 0:
                    self._left_out += 1
                    continue
                self._room -= 1
                written = written_labels({**labels, "partition": str(index)})
                self._offsets.add_labelled(offset, written)
                if lag is not None:
                    self._lag.add_labelled(lag, written)
            written = written_labels(labels)
            self._offset_sums.add_labelled(offset_sum, written)
            self._lag_sums.add_labelled(lag_sum, written)

    def families(self) -> Iterator[Family]:
        yield from (self._members, self._offsets, self._lag, self._offset_sums, self._lag_sums)
        yield one(
            "barnabas_metrics_group_partitions_left_out",
            self._left_out,
            "Partitions of groups without metrics of their own, as there are more than barnabas.metrics.partitions.max",
        )
        yield one(
            "barnabas_metrics_groups_left_out",
            self._groups_left_out,
            "Groups without metrics of their own, as there are more than barnabas.metrics.partitions.max",
        )


def transaction_metrics(
    coordinator: TransactionCoordinator, verifications: AddPartitionsToTxnManager
) -> Iterable[Family | None]:
    yield from _load_times("transaction", coordinator.shards.load_times)
    by_state = Family("barnabas_transactions", GAUGE, "Transactional ids by the state of their transaction")
    states = Counter(
        transaction.state.name
        for shard in coordinator.shards.loaded()
        for transaction in shard.transactions.values()
    )
    for state, count in sorted(states.items()):
        by_state.add(count, {"state": state})
    yield by_state
    yield from _marker_queues(coordinator)
    yield from _verifications(verifications)


def _load_times(coordinator: str, times: LoadTimes) -> Iterable[Family]:
    for name, value_s, what in (
        ("max", times.longest_s, "The longest"),
        ("avg", times.total_s / times.count if times.count else 0.0, "The mean"),
    ):
        yield one(
            f"kafka_server_{coordinator}_coordinator_metrics_partition_load_time_{name}",
            value_s * 1000,
            f"{what} time that a partition of the {coordinator} coordinator has taken to load since the start, in ms",
        )


def _marker_queues(transactions: TransactionCoordinator) -> Iterable[Family]:
    for name, value, help_text in (
        (
            "unknowndestinationqueuesize",
            transactions.markers.unknown_destinations,
            "Transactions whose markers wait for a partition to have a leader",
        ),
        (
            "logappendretryqueuesize",
            transactions.completions_to_retry,
            "Ended transactions that could not be written as complete so far",
        ),
    ):
        yield one(f"kafka_coordinator_transaction_transactionmarkerchannelmanager_{name}", value, help_text)


def _verifications(manager: AddPartitionsToTxnManager) -> Iterable[Family]:
    name = "kafka_server_addpartitionstotxnmanager_verification"
    yield one(
        f"{name}failurerate_total",
        manager.failures,
        "Partitions whose transactions could not be verified, and requests for that which failed",
        COUNTER,
    )
    times = Family(f"{name}timems", GAUGE, "How long the last verifications took, in ms")
    ascending = sorted(manager.times_s)
    for label, quantile in QUANTILES.items() if ascending else ():
        at = min(int(len(ascending) * quantile), len(ascending) - 1)
        times.add(ascending[at] * 1000, {"quantile": label})
    yield times
