"""Fetches with a replica id. A single broker has no followers, so the leader refuses them: Kafka because of the request,
this broker because the client is not that replica (allowed.py)."""

from __future__ import annotations

from barnabas.wire.messages.fetch import FetchRequest, ReplicaState
from compat_tests.conform.case import case
from compat_tests.conform.cases.fetch import filled
from compat_tests.conform.cases.shared import fetch_request
from compat_tests.conform.session import Session, Topic, made_up_id

STATES_FROM = 15


def as_follower(
    session: Session, request: FetchRequest, replica: int, broker_epoch: int = -1
) -> FetchRequest:
    """The request of the broker with this id, in the field that the version has for it."""
    if session.version >= STATES_FROM:
        request.replica_state = ReplicaState(replica, broker_epoch)
    else:
        request.replica_id = replica
    return request


@case("Fetch")
def of_a_broker_that_is_no_replica(session: Session) -> None:
    topic = filled(session)
    for replica in (7, 1, 0):
        for offset in (0, 6, 99):
            request = as_follower(session, fetch_request(topic, offset), replica)
            session.ask(request, note=f"replica {replica}, offset {offset}")
    session.ask(as_follower(session, fetch_request(topic), 7, broker_epoch=5), note="in a broker epoch")


@case("Fetch", first=9)
def of_a_follower_in_another_epoch(session: Session) -> None:
    topic = filled(session)
    for epoch in (0, 99):
        request = as_follower(session, fetch_request(topic, leader_epoch=epoch), 7)
        session.ask(request, note=f"leader epoch {epoch}")


@case("Fetch")
def of_a_follower_of_nothing(session: Session) -> None:
    topic = filled(session)
    unknown = Topic(session.name("unknown"), made_up_id(9))
    session.ask(as_follower(session, fetch_request(unknown), 7), note="topic")
    session.ask(as_follower(session, fetch_request(topic, partition=1), 7), note="partition")
    waiting = fetch_request(topic, 6, max_wait_ms=9000, min_bytes=1)
    session.ask(as_follower(session, waiting, 7), note="a refusal does not wait")


@case("Fetch")
def of_a_debugger(session: Session) -> None:
    topic = filled(session)
    for replica in (-2, -3):
        session.ask(as_follower(session, fetch_request(topic, 4), replica), note=f"replica {replica}")
