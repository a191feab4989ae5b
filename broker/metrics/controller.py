"""The metrics of the cluster's metadata and its quorum, as JMX exporters write Kafka's.

As in KRaft every controller shows the numbers of the cluster; what kafka_exporter shows once is shown by the active one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from barnabas.broker.metrics.families import COUNTER, GAUGE, Family, one
from barnabas.controller.balancer.moves import GOALS
from barnabas.controller.metadata.image import NO_LEADER

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from barnabas.controller.balancer.balancer import Balancer
    from barnabas.controller.link.traffic import LinkTraffic
    from barnabas.controller.metadata.controller import Controller
    from barnabas.controller.metadata.image import MetadataImage
    from barnabas.controller.metadata.quorum_info import QuorumInfo

PARTITIONS_AT_ONCE: Final = 1000


def controller_metrics(controller: Controller, *, is_controller: bool) -> Iterable[Family | None]:
    """`is_controller`: whether this node may be the active controller."""
    prefix = "kafka_controller_kafkacontroller"
    is_active = is_controller and controller.is_active
    yield one(f"{prefix}_activecontrollercount", is_active, "1 where this node is the active controller")
    yield one(
        "kafka_server_broker_metadata_metrics_last_applied_record_offset",
        controller.image.offset,
        "Offset of the last record of the metadata that this node has applied",
    )
    if not is_controller:
        return
    image = controller.image
    partitions = without_leader = not_preferred = 0
    for topic in tuple(image.topics.values()):
        for state in tuple(topic.partitions.values()):
            partitions += 1
            if state.leader == NO_LEADER:
                without_leader += 1
            elif state.replicas[:1] != [state.leader]:
                not_preferred += 1
            if not partitions % PARTITIONS_AT_ONCE:
                yield None
    brokers = list(image.brokers.values())
    for name, value, help_text in (
        ("globaltopiccount", len(image.topics), "Topics of the cluster"),
        ("globalpartitioncount", partitions, "Partitions of the cluster"),
        ("offlinepartitionscount", without_leader, "Of those, how many have no leader"),
        (
            "preferredreplicaimbalancecount",
            not_preferred,
            "Of those, how many are led by another than their first replica",
        ),
        ("activebrokercount", sum(not each.fenced for each in brokers), "Brokers that are not fenced"),
        ("fencedbrokercount", sum(each.fenced for each in brokers), "Brokers that are fenced"),
    ):
        yield one(f"{prefix}_{name}", value, help_text)
    yield one(
        "kafka_controller_controllerstats_uncleanleaderelections_total",
        controller.unclean_elections,
        "Leaders that were elected though they may miss committed records, since this node has started",
        COUNTER,
    )
    if is_active:
        yield from _cluster_metrics(image)


def _cluster_metrics(image: MetadataImage) -> Iterator[Family | None]:
    counts = Family("kafka_topic_partitions", GAUGE, "Partitions of each topic")
    for number, topic in enumerate(tuple(image.topics.values()), 1):
        counts.add(len(topic.partitions), {"topic": topic.name})
        if not number % PARTITIONS_AT_ONCE:
            yield None
    yield counts
    usable = image.usable_brokers()
    yield one("kafka_brokers", len(usable), "Brokers that are not fenced")
    info = Family("kafka_broker_info", GAUGE, "1 for each of them")
    for broker_id in usable:
        endpoint = next(iter(image.brokers[broker_id].endpoints), None)
        if endpoint is not None:
            info.add(1, {"id": str(broker_id), "address": f"{endpoint.host}:{endpoint.port}"})
    yield info


def balancer_metrics(balancer: Balancer) -> Iterator[Family]:
    """Of the active controller, while barnabas.balancer is not off."""
    if not balancer.is_on:
        return
    planned = Family("barnabas_balancer_planned_moves", GAUGE, "Moves of the balancer's last plan")
    moved = Family(
        "barnabas_balancer_moves_total",
        COUNTER,
        "Moves that the balancer has made since this node has started",
    )
    for kind, copies in (("leader", False), ("replica", True)):
        planned.add(sum(move.copies == copies for move in balancer.plan.moves), {"kind": kind})
        moved.add(balancer.moved[copies], {"kind": kind})
    yield planned
    yield moved
    imbalance = Family(
        "barnabas_balancer_imbalance",
        GAUGE,
        "Largest difference of a broker from the average as of the last plan, as a part of the average",
    )
    for goal, value in zip(GOALS, balancer.plan.imbalance, strict=True):
        imbalance.add(value, {"goal": goal})
    yield imbalance
    ages = Family("barnabas_balancer_report_age_seconds", GAUGE, "Age of each broker's last load report")
    for broker_id, age_s in balancer.report_ages().items():
        ages.add(age_s, {"broker": str(broker_id)})
    yield ages


def _raft_state(node_id: int, leader_id: int, quorum: QuorumInfo | None) -> str:
    """As Kafka names it."""
    if leader_id == node_id:
        return "leader"
    if quorum is None or all(each.node_id != node_id for each in quorum.voters):
        return "observer"
    return "follower" if leader_id >= 0 else "unattached"


def quorum_metrics(node_id: int, controller: Controller, quorum: QuorumInfo | None) -> Iterable[Family]:
    """`quorum` None: this node has the metadata alone, or does not vote."""
    end_offset = controller.image.offset + 1
    leader, epoch, high_watermark = node_id if controller.is_active else -1, controller.epoch, end_offset
    vote = leader
    if quorum is not None:
        vote = quorum.voted_for
        leader, epoch, high_watermark = quorum.leader_id, quorum.leader_epoch, quorum.high_watermark
        end_offset = next(
            (each.log_end_offset for each in quorum.voters if each.node_id == node_id), end_offset
        )
    state = _raft_state(node_id, leader, quorum)
    # Strimzi's rules and Confluent's write this name differently.
    for prefix in ("kafka_server_raftmetrics", "kafka_server_raft_metrics"):
        for name, value, help_text in (
            ("current_leader", leader, "Node id of the quorum's leader, -1 when it is not known"),
            ("current_epoch", epoch, "The quorum's epoch"),
            ("current_vote", vote, "Node id for which this node has voted in this epoch, -1 for none"),
            ("high_watermark", high_watermark, "Offset behind the last committed record of the metadata"),
            ("log_end_offset", end_offset, "Offset behind the last record of the metadata here"),
        ):
            yield one(f"{prefix}_{name}", value, help_text)
        states = Family(f"{prefix}_current_state", GAUGE, "1 for what this node is in the quorum")
        states.add(1, {"current_state": state})
        yield states


def link_metrics(traffic: LinkTraffic) -> Iterable[Family]:
    """Between controllers, and between controllers and brokers: what Raft and the metadata need, and requests to the active
    controller."""
    for name, value, help_text in (
        ("incoming_byte", traffic.incoming_bytes, "Bytes received over links to controllers and from them"),
        ("outgoing_byte", traffic.outgoing_bytes, "Bytes sent over those links"),
        ("request", traffic.requests, "Requests to the active controller sent over those links"),
        ("response", traffic.responses, "Answers to those requests"),
    ):
        yield one(f"kafka_server_raftchannelmetrics_{name}_total", value, help_text, COUNTER)
