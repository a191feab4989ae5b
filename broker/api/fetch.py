"""Fetch (1), versions 4-18: read committed batches, as regions of the log's files (response_writer.py).

v5 log start offset, v7 sessions (KIP-227), v9 leader epoch (KIP-320), v11 rack (KIP-392), v12 diverging epoch (KIP-595), v13
topic ids (KIP-516), v15-18 change fields of followers only.

An offset inside a batch gets the whole batch; consumers skip the records before it. broker/fetch/reader.py reads partitions,
broker/fetch/delayed_fetch.py waits and responds. Most requests take the fast path (broker/fastpath/fetch.py).

A request with a replica id is a follower's. It is served on a connection that is authenticated as that broker only
(broker/requests/replica_authorization.py), and so is its session.
"""

from __future__ import annotations

from barnabas.broker.fastpath.fetch import fast_fetch
from barnabas.broker.fetch.delayed_fetch import TOPIC_IDS_FROM, FullFetch, IncrementalFetch
from barnabas.broker.fetch.reader import fetching_follower
from barnabas.broker.fetch.sessions import FINAL_EPOCH, INITIAL_EPOCH, FetchSession
from barnabas.broker.requests.context import CLOSE_CONNECTION, Outcome
from barnabas.broker.requests.registry import api
from barnabas.broker.requests.repetitions import are_too_many_partitions
from barnabas.broker.requests.replica_authorization import may_act_as_replica
from barnabas.broker.services import HandlerContext
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)

SESSIONS_FROM = 7  # the first version whose responses have an error of their own


@api(1, 4, 18, fast_path=fast_fetch)
def fetch(context: HandlerContext, request: FetchRequest) -> FetchResponse | Outcome:
    epoch = request.session_epoch
    named = [len(topic.partitions) for topic in request.topics]
    if are_too_many_partitions(context.services.controller.image, named):
        if context.api_version < SESSIONS_FROM:
            return CLOSE_CONNECTION
        return FetchResponse(error_code=ErrorCode.INVALID_REQUEST)
    follower_id, _ = fetching_follower(request)
    if follower_id >= 0 and not may_act_as_replica(context, follower_id):
        return _refused(request)
    if epoch in (FINAL_EPOCH, INITIAL_EPOCH):
        if request.session_id and _session(context, request) is not None:
            context.services.fetch_sessions.remove(request.session_id)
        return FullFetch(context, request, epoch == INITIAL_EPOCH).serve()
    sessions = context.services.fetch_sessions
    session = _session(context, request)
    if session is None:
        return FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
    if session.epoch != epoch:
        return FetchResponse(error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH)
    if session.uses_topic_ids != (context.api_version >= TOPIC_IDS_FROM):
        return FetchResponse(error_code=ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
    session.update(request.topics, request.forgotten_topics_data)
    if not session.partitions:
        sessions.remove(session.id)
        return FullFetch(context, request, False).serve()
    is_too_large = not session.privileged and are_too_many_partitions(
        context.services.controller.image, [len(session.partitions)]
    )
    if is_too_large or not sessions.has_room_to_grow(session):
        sessions.remove(session.id)
        return FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
    sessions.touch(session)
    session.advance()
    return IncrementalFetch(context, request, session, session.epoch).serve()


def _session(context: HandlerContext, request: FetchRequest) -> FetchSession | None:
    session = context.services.fetch_sessions.get(request.session_id)
    if session is not None and session.privileged and session.follower_id != context.reply.peer.broker_id:
        return None
    return session


def _refused(request: FetchRequest) -> FetchResponse:
    return FetchResponse(
        responses=[
            FetchableTopicResponse(
                topic.topic,
                topic.topic_id,
                [
                    PartitionData(
                        partition_index=wanted.partition,
                        error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
                        high_watermark=-1,
                        records=b"",
                    )
                    for wanted in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )
