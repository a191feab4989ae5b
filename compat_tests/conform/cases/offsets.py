"""OffsetCommit, OffsetFetch, OffsetDelete."""

from __future__ import annotations

from typing import Any

from barnabas.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from barnabas.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from barnabas.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from compat_tests.conform.case import case
from compat_tests.conform.cases.groups import coordinated, joined
from compat_tests.conform.session import Session, Topic, made_up_id


def commit_request(
    group: str,
    topic: Topic,
    offset: int = 5,
    *,
    partition: int = 0,
    metadata: str | None = "note",
    generation: int = -1,
    member_id: str = "",
    instance: str | None = None,
    epoch: int = 0,
) -> OffsetCommitRequest:
    wanted = OffsetCommitRequestPartition(
        partition_index=partition,
        committed_offset=offset,
        committed_leader_epoch=epoch,
        committed_metadata=metadata,
    )
    return OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=generation,
        member_id=member_id,
        group_instance_id=instance,
        topics=[OffsetCommitRequestTopic(name=topic.name, topic_id=topic.id, partitions=[wanted])],
    )


def fetch_request(
    group: str, topic: Topic | None, partitions: list[int] | None = None, **member: Any
) -> OffsetFetchRequest:
    indexes = [0, 1] if partitions is None else partitions
    old = None if topic is None else [OffsetFetchRequestTopic(name=topic.name, partition_indexes=indexes)]
    new = (
        None
        if topic is None
        else [OffsetFetchRequestTopics(name=topic.name, topic_id=topic.id, partition_indexes=indexes)]
    )
    groups = [OffsetFetchRequestGroup(group_id=group, topics=new, **member)]
    return OffsetFetchRequest(group_id=group, topics=old, groups=groups)


@case("OffsetCommit")
def commits_without_members(session: Session) -> None:
    topic, group = session.create_topic("a", 2), session.name("g")
    coordinated(session, group)
    session.ask(commit_request(group, topic), note="good")
    session.ask(commit_request(group, topic, 3, metadata=None), note="back, no metadata")
    session.ask(commit_request(group, topic, metadata="x" * 4096), note="longest metadata")
    session.ask(commit_request(group, topic, metadata="x" * 4097), note="metadata too long")
    session.ask(commit_request(group, topic, -1), note="offset -1")
    session.ask(commit_request(group, topic, partition=9), note="unknown partition")
    session.ask(commit_request(group, topic, partition=-1), note="partition -1")
    session.ask(commit_request(group, Topic(session.name("unknown"), made_up_id(9))), note="unknown topic")
    session.ask(commit_request("", topic), note="empty group")
    session.ask(commit_request(group, topic, member_id="nobody"), note="member without generation")
    session.ask(commit_request(group, topic, generation=3), note="generation of an empty group")
    session.ask(commit_request(session.name("new"), topic, generation=3, member_id="m"), note="unknown group")
    session.ask(OffsetCommitRequest(group_id=group, topics=[]), note="nothing")
    session.ask(fetch_request(group, topic), version=9, note="what is committed")


@case("OffsetCommit")
def commits_of_members(session: Session) -> None:
    topic = session.create_topic("a", 2)
    member = joined(session, session.name("g"))
    good: dict[str, Any] = {"generation": member.generation, "member_id": member.member_id}
    session.ask(commit_request(member.group, topic, **good), note="good")
    session.ask(commit_request(member.group, topic, **(good | {"generation": 9})), note="wrong generation")
    session.ask(
        commit_request(member.group, topic, **(good | {"member_id": "nobody"})), note="unknown member"
    )
    session.ask(commit_request(member.group, topic), note="no member")
    if session.version >= 7:
        session.ask(commit_request(member.group, topic, instance="nobody", **good), note="unknown instance")
    waiting = joined(session, session.name("waiting"), sync=False)
    request = commit_request(waiting.group, topic, generation=waiting.generation, member_id=waiting.member_id)
    session.ask(request, note="while rebalancing")


@case("OffsetFetch")
def fetches(session: Session) -> None:
    topic, group = session.create_topic("a", 2), session.name("g")
    coordinated(session, group)
    session.quiet(commit_request(group, topic), version=9)
    session.ask(fetch_request(group, topic), note="one committed, one not")
    session.ask(fetch_request(group, topic, [0, 9]), note="unknown partition")
    session.ask(fetch_request(group, Topic(session.name("unknown"), made_up_id(9))), note="unknown topic")
    session.ask(fetch_request(session.name("unknown"), topic), note="unknown group")
    session.ask(fetch_request("", topic), note="empty group")
    session.ask(fetch_request(group, topic, []), note="no partitions")
    if session.version >= 2:
        session.ask(fetch_request(group, None), note="all")
        session.ask(fetch_request(session.name("unknown"), None), note="all of an unknown group")
    if session.version >= 7:
        request = fetch_request(group, topic)
        request.require_stable = True
        session.ask(request, note="stable")
    if session.version >= 8:
        two = fetch_request(group, topic)
        two.groups = [*two.groups, *fetch_request(session.name("unknown"), None).groups]
        session.ask(two, note="two groups")
        session.ask(OffsetFetchRequest(groups=[]), note="no groups")
    if session.version >= 9:
        session.ask(
            fetch_request(group, topic, member_id="nobody", member_epoch=3), note="a member of nothing"
        )


@case("OffsetDelete")
def deletes(session: Session) -> None:
    topic, other, group = session.create_topic("a", 2), session.create_topic("b"), session.name("g")
    coordinated(session, group)
    session.quiet(commit_request(group, topic), version=9)

    def ask(note: str, group_id: str, name: str, *partitions: int) -> None:
        wanted = [OffsetDeleteRequestPartition(partition_index=index) for index in partitions]
        session.ask(
            OffsetDeleteRequest(
                group_id=group_id, topics=[OffsetDeleteRequestTopic(name=name, partitions=wanted)]
            ),
            note=note,
        )

    ask("one that is not committed", group, topic.name, 1)
    ask("unknown partition", group, topic.name, 9)
    ask("another topic", group, other.name, 0)
    ask("unknown topic", group, session.name("unknown"), 0)
    ask("unknown group", session.name("unknown"), topic.name, 0)
    ask("empty group", "", topic.name, 0)
    ask("good", group, topic.name, 0)
    ask("again", group, topic.name, 0)
    session.ask(OffsetDeleteRequest(group_id=group, topics=[]), note="nothing")
    member = joined(session, session.name("live"))
    ask("a group with a member", member.group, topic.name, 0)
    session.ask(fetch_request(group, topic), version=9, note="what is left")
