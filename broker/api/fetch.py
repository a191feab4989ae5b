"""Fetch (1), versions 4-18: read committed batches, as regions of the log's files (response_writer.py).

v5 log start offset, v7 sessions (KIP-227), v9 leader epoch (KIP-320), v11 rack (KIP-392), v12 diverging
epoch (KIP-595), v13 topic ids (KIP-516), v15-18 only move and add what followers say.

An offset inside a batch gets the whole batch; consumers skip what they did not ask for. How partitions are
read stands in broker/fetch_read.py, waiting and answering in broker/fetch_requests.py; broker/fetch_usual.py is the
short way of the most frequent request.
"""

from __future__ import annotations

from barnabas.broker.context import RequestContext
from barnabas.broker.fetch_requests import TOPIC_IDS_FROM, FullFetch, IncrementalFetch
from barnabas.broker.fetch_usual import fetch_usual
from barnabas.broker.registry import Outcome, api
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.fetch import FetchRequest, FetchResponse

INITIAL_EPOCH = 0  # of a session: asks for a new one
FINAL_EPOCH = -1  # closes it and goes on without


@api(1, 4, 18, usual=fetch_usual)
def fetch(context: RequestContext, request: FetchRequest) -> FetchResponse | Outcome:
    epoch = request.session_epoch
    if epoch in (FINAL_EPOCH, INITIAL_EPOCH):
        if request.session_id:
            context.services.fetch_sessions.remove(request.session_id)
        return FullFetch(context, request, epoch == INITIAL_EPOCH).serve()
    sessions = context.services.fetch_sessions
    session = sessions.get(request.session_id)
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
    sessions.touch(session)
    session.advance()
    return IncrementalFetch(context, request, session, session.epoch).serve()
