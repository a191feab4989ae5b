"""Metadata, DescribeTopicPartitions and DescribeCluster."""

from __future__ import annotations

import time

from barnabas.wire.messages.describe_cluster import DescribeClusterRequest
from barnabas.wire.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    TopicRequest,
)
from barnabas.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from compat_tests.conform.case import case
from compat_tests.conform.session import Session, made_up_id


def by_name(*names: str | None, auto: bool = False, topic_operations: bool = False) -> MetadataRequest:
    return MetadataRequest(
        topics=[MetadataRequestTopic(name=name) for name in names],
        allow_auto_topic_creation=auto,
        include_topic_authorized_operations=topic_operations,
    )


@case("Metadata", first=4)
def topics_by_name(session: Session) -> None:
    first, second = session.create_topic("a", 3), session.create_topic("b")
    session.ask(by_name(first.name, second.name), note="two")
    session.ask(by_name(first.name, first.name), note="one twice")
    session.ask(by_name(first.name, session.name("unknown")), note="one unknown")


@case("Metadata")
def existing_topic(session: Session) -> None:
    topic = session.create_topic("a", 2)
    session.ask(by_name(topic.name, auto=True))


@case("Metadata", first=4)
def bad_names(session: Session) -> None:
    for name in ("", ".", "..", "a b", "x" * 250, "x" * 249, "a/b", "é"):
        session.ask(by_name(name), note=f"name {name[:9]!r} of {len(name)}")
        session.ask(
            by_name(name if len(name) != 249 else "a b", auto=True), note=f"auto {name[:9]!r} of {len(name)}"
        )


@case("Metadata", first=1)
def no_topics(session: Session) -> None:
    session.ask(MetadataRequest(topics=[], allow_auto_topic_creation=False))


@case("Metadata")
def all_topics(session: Session) -> None:
    """Other cases create topics at the same time, so only this case's topics are compared."""
    topic = session.create_topic()
    request = MetadataRequest(topics=None if session.version >= 1 else [], allow_auto_topic_creation=False)
    answer = session.quiet(request, version=session.version)
    mine = [entry for entry in answer.topics if entry.name == topic.name]
    session.record("topic", session.names.tree(mine))


@case("Metadata", first=4)
def auto_creation_refused(session: Session) -> None:
    session.ask(by_name(session.name("auto")))
    time.sleep(0.05)  # in which a broker that made it would have
    session.ask(by_name(session.name("auto")), note="later")


@case("Metadata")
def auto_creation(session: Session) -> None:
    name = session.name("auto")
    first = session.quiet(by_name(name, auto=True), version=session.version).topics[0]
    session.record("first answer", [first.error_code in (0, 3, 5)])
    session.wait_until(name, 1, present=True)
    found = session.quiet(by_name(name, auto=True), version=12).topics[0]
    session.names.learn_topic(found.topic_id, name)
    session.ask(by_name(name, auto=True), note="after creation")


@case("Metadata", first=10)
def by_id(session: Session) -> None:
    topic = session.create_topic()
    for note, entry in {
        "id": MetadataRequestTopic(topic_id=topic.id, name=None),
        "unknown id": MetadataRequestTopic(topic_id=made_up_id(9), name=None),
        "id and name": MetadataRequestTopic(topic_id=topic.id, name=topic.name),
        "neither": MetadataRequestTopic(name=None),
    }.items():
        session.ask(MetadataRequest(topics=[entry], allow_auto_topic_creation=False), note=note)
    both = [MetadataRequestTopic(topic_id=topic.id, name=None), MetadataRequestTopic(name=topic.name)]
    session.ask(MetadataRequest(topics=both, allow_auto_topic_creation=False), note="one by id, one by name")


@case("Metadata", first=8)
def authorized_operations(session: Session) -> None:
    topic = session.create_topic()
    request = by_name(topic.name, topic_operations=True)
    request.include_cluster_authorized_operations = True
    session.ask(request)


@case("DescribeTopicPartitions")
def describe(session: Session) -> None:
    first, second = session.create_topic("a", 3), session.create_topic("b", 2)
    names = [
        TopicRequest(name=name) for name in (second.name, first.name, session.name("unknown"), "bad name!")
    ]
    session.ask(DescribeTopicPartitionsRequest(topics=names, response_partition_limit=2000), note="all")
    for limit in (1, 2, 3, 4, 5, 0, -1):
        session.ask(
            DescribeTopicPartitionsRequest(topics=names[:2], response_partition_limit=limit),
            note=f"limit {limit}",
        )
    for name, partition in (
        (first.name, 1),
        (second.name, 0),
        (first.name, 9),
        ("aaa", 0),
        ("zzz", 0),
        (first.name, -1),
    ):
        session.ask(
            DescribeTopicPartitionsRequest(
                topics=names[:2],
                response_partition_limit=10,
                cursor=Cursor(topic_name=name, partition_index=partition),
            ),
            note=f"cursor {session.names.text(name)} {partition}",
        )
    session.ask(
        DescribeTopicPartitionsRequest(topics=names[:1] * 2, response_partition_limit=10), note="twice"
    )


@case("DescribeCluster")
def describe_cluster(session: Session) -> None:
    session.ask(DescribeClusterRequest())
    session.ask(DescribeClusterRequest(include_cluster_authorized_operations=True), note="operations")
    if session.version >= 1:
        session.ask(DescribeClusterRequest(endpoint_type=2), note="controllers")
        session.ask(DescribeClusterRequest(endpoint_type=7), note="unknown endpoint type")
    if session.version >= 2:
        session.ask(DescribeClusterRequest(include_fenced_brokers=True), note="with fenced")
