"""ShareFetch (78) and ShareAcknowledge (79), versions 1-2 (KIP-932): records of share partitions, and what became of them.

v2 of both: renewal of locks (KIP-1222). v2 of ShareFetch: the acquire mode (KIP-1206). A share session keeps the partitions that a
member fetches (broker/share_partitions/sessions.py); acknowledgements may come along with a fetch, and are carried out before it.
As in Kafka it is not asked whether the member belongs to the group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from barnabas.broker.fetch.sessions import FINAL_EPOCH, INITIAL_EPOCH, next_epoch
from barnabas.broker.groups.share.values import MEMBER_ID_MAX
from barnabas.broker.partitions.current_leaders import current_leader, leader_addresses
from barnabas.broker.requests.authorization import allows_group, allows_topic
from barnabas.broker.requests.context import PENDING, Outcome
from barnabas.broker.requests.registry import api
from barnabas.broker.requests.repetitions import are_too_many_partitions
from barnabas.broker.services import HandlerContext
from barnabas.broker.share_partitions.acquisition import Acquire
from barnabas.broker.share_partitions.fetch import DelayedShareFetch, Fetched, Fetches, ShareFetch
from barnabas.broker.share_partitions.sessions import ShareSession, TopicPartition
from barnabas.broker.share_partitions.share_partition import RENEW, Acknowledgement
from barnabas.controller.metadata.acls import Operation
from barnabas.runtime.slices import in_slices
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import share_acknowledge as acknowledging
from barnabas.wire.messages import share_fetch as fetching

if TYPE_CHECKING:
    from barnabas.broker.share_partitions.manager import LedSharePartition

RENEWS_FROM: Final = 2
RECORD_LIMIT: Final = 1  # ShareAcquireMode
TYPES_MAX: Final = 20_000  # of acknowledgements of one partition, which has 10,000 records in flight at most

Result = tuple[ErrorCode, str | None]
Results = dict[TopicPartition, Result]
FINE: Final[Result] = (ErrorCode.NONE, None)


class _Acknowledged(NamedTuple):
    """The acknowledgements of one partition."""

    partition: TopicPartition
    batches: list[Any]


@api(78, 1, 2)
def share_fetch(
    context: HandlerContext, request: fetching.ShareFetchRequest
) -> fetching.ShareFetchResponse | Outcome:
    error = _request_error(context, request, request.forgotten_topics_data)
    if not error and request.is_renew_ack and _asks_for_records(request):
        error = ErrorCode.INVALID_REQUEST
    if error:
        return _failed_fetch(error)
    acknowledged = _acknowledged(request.topics)
    named = [(topic.topic_id, each.partition_index) for topic in request.topics for each in topic.partitions]
    manager = context.services.share_partitions
    key = request.group_id or "", request.member_id or ""
    session: ShareSession | ErrorCode | None
    if request.share_session_epoch == INITIAL_EPOCH:
        if acknowledged:
            return _failed_fetch(ErrorCode.INVALID_REQUEST)
        session = manager.sessions.open(key, context.reply.peer)
        if session is None:
            return _late_failure(context, request)
    else:
        session = manager.sessions.find(key, request.share_session_epoch)
        if isinstance(session, ErrorCode):
            return _failed_fetch(session)
    forgotten = [
        (each.topic_id, index) for each in request.forgotten_topics_data for index in each.partitions
    ]
    image = context.services.controller.image
    is_last = request.share_session_epoch == FINAL_EPOCH
    if not is_last:
        is_fine = manager.sessions.update(session, named, forgotten)
        if not is_fine or are_too_many_partitions(image, [len(session.partitions)]):
            manager.end(session, lambda: None)
            return _failed_fetch(ErrorCode.SHARE_SESSION_LIMIT_REACHED)
        if request.share_session_epoch != INITIAL_EPOCH:
            session.epoch = next_epoch(session.epoch)
    return _ShareFetch(context, request, session, is_last=is_last).serve(acknowledged)


def _asks_for_records(request: fetching.ShareFetchRequest) -> bool:
    return any((request.max_bytes, request.min_bytes, request.max_records, request.max_wait_ms))


def _failed_fetch(error: ErrorCode) -> fetching.ShareFetchResponse:
    return fetching.ShareFetchResponse(error_code=error)


def _late_failure(context: HandlerContext, request: fetching.ShareFetchRequest) -> Outcome:
    """There are too many sessions. The client would try again at once."""
    response = _failed_fetch(ErrorCode.SHARE_SESSION_LIMIT_REACHED)
    delay_s = min(max(request.max_wait_ms, 0), 30_000) / 1000
    timer = context.services.runtime.call_later(delay_s, lambda: context.complete(response))
    context.on_disconnect(timer.cancel)
    return PENDING


class _ShareFetch:
    """A ShareFetch that is being served."""

    def __init__(
        self,
        context: HandlerContext,
        request: fetching.ShareFetchRequest,
        session: ShareSession,
        *,
        is_last: bool,
    ) -> None:
        self._context = context
        self._request = request
        self._session = session
        self._is_last = is_last
        self._results: Results = {}
        self._fetched: dict[TopicPartition, Fetched] = {}
        self._led: dict[LedSharePartition, TopicPartition] = {}
        self._topics: dict[bytes, list[fetching.PartitionData]] = {}
        self._leaders: list[int] = []
        self._answer: fetching.ShareFetchResponse | None = None
        self._is_serving = True

    def serve(self, acknowledged: list[_Acknowledged]) -> fetching.ShareFetchResponse | Outcome:
        self._context.services.share_partitions.when_released(
            self._session.key,
            partial(_acknowledge, self._context, self._request, acknowledged, self._acknowledged),
        )
        self._is_serving = False
        return self._answer or PENDING

    def _acknowledged(self, results: Results) -> None:
        self._results = results
        request = self._request
        manager = self._context.services.share_partitions
        if self._is_last:
            manager.end(self._session, self._respond)
        elif request.max_records <= 0 or request.max_bytes <= 0 or request.is_renew_ack:
            self._respond()
        else:
            in_slices(self._context.services.runtime, self._find(), self._fetch)

    def _find(self) -> Iterator[None]:
        """Find the share partitions of the session, in steps."""
        context = self._context
        manager = context.services.share_partitions
        for each in tuple(self._session.partitions):
            if not manager.sessions.has(self._session):
                return  # what is loaded now would never be dropped
            error = _partition_error(context, each)
            partition = None if error else context.services.partitions.by_id(*each)
            if partition is None:
                self._fetched[each] = Fetched(error or ErrorCode.NOT_LEADER_OR_FOLLOWER)
            else:
                self._led[manager.get(self._session.key[0], partition)] = each
            yield

    def _fetch(self) -> None:
        context, request = self._context, self._request
        if not self._led or context.closed:
            self._respond()
            return
        asked = ShareFetch(
            Acquire(
                request.member_id or "",
                request.max_records,
                request.batch_size,
                request.share_acquire_mode == RECORD_LIMIT,
            ),
            request.max_wait_ms,
            request.min_bytes,
            min(request.max_bytes, context.services.config.fetch_max_bytes),
        )
        services = context.services
        delayed = DelayedShareFetch(
            services.runtime,
            services.purgatory,
            services.share_partitions.turns,
            list(self._led),
            services.share_partitions.settings(self._session.key[0]),
            asked,
            self._may_acquire,
            self._done,
        )
        context.on_disconnect(delayed.cancel)
        delayed.serve()

    def _may_acquire(self) -> bool:
        services = self._context.services
        return services.partitions.has_session() and services.share_partitions.sessions.has(self._session)

    def _done(self, fetched: Fetches) -> None:
        for led, found in fetched.items():
            each = self._led[led]
            self._fetched[each] = found
            if found.acquired:
                self._session.served(each)
        self._respond()

    def _respond(self) -> None:
        in_slices(self._context.services.runtime, self._make_answers(), self._send)

    def _send(self) -> None:
        context = self._context
        response = fetching.ShareFetchResponse(
            acquisition_lock_timeout_ms=context.services.share_partitions.settings(
                self._session.key[0]
            ).lock_ms,
            responses=[
                fetching.ShareFetchableTopicResponse(topic_id, answers)
                for topic_id, answers in self._topics.items()
            ],
            node_endpoints=[
                fetching.NodeEndpoint(address.broker_id, address.host, address.port, address.rack)
                for address in leader_addresses(context, self._leaders)
            ],
        )
        if self._is_serving:
            self._answer = response
        else:
            context.complete(response)

    def _make_answers(self) -> Iterator[None]:
        """Of the partitions that have records, an error or a result, and of all in the session's first answer; in steps."""
        context = self._context
        is_first = self._request.share_session_epoch == INITIAL_EPOCH
        answered = [*self._fetched, *(each for each in self._results if each not in self._fetched)]
        if is_first:
            answered += [each for each in self._led.values() if each not in self._fetched]
        for each in answered:
            fetched = self._fetched.get(each) or Fetched()
            acknowledge_error, message = self._results.get(each, FINE)
            answer = fetching.PartitionData(
                partition_index=each[1],
                error_code=fetched.error,
                acknowledge_error_code=acknowledge_error,
                acknowledge_error_message=message,
                records=fetched.records,
                acquired_records=fetched.acquired,
            )
            if ErrorCode.NOT_LEADER_OR_FOLLOWER in (fetched.error, acknowledge_error):
                leader, epoch = current_leader(context, "", *each)
                answer.current_leader = fetching.LeaderIdAndEpoch(leader, epoch)
                self._leaders.append(leader)
            self._topics.setdefault(each[0], []).append(answer)
            yield


@api(79, 1, 2)
def share_acknowledge(
    context: HandlerContext, request: acknowledging.ShareAcknowledgeRequest
) -> acknowledging.ShareAcknowledgeResponse | Outcome:
    error = _request_error(context, request)
    if error:
        return _failed_acknowledge(error)
    manager = context.services.share_partitions
    epoch = request.share_session_epoch
    session = (
        ErrorCode.INVALID_SHARE_SESSION_EPOCH
        if epoch == INITIAL_EPOCH
        else manager.sessions.find((request.group_id or "", request.member_id or ""), epoch)
    )
    if isinstance(session, ErrorCode):
        return _failed_acknowledge(session)
    if epoch != FINAL_EPOCH:
        session.epoch = next_epoch(session.epoch)
    is_serving = True
    answer: acknowledging.ShareAcknowledgeResponse | None = None

    def respond(results: Results) -> None:
        nonlocal answer
        response = _acknowledge_response(context, request, results)
        if is_serving:
            answer = response
        else:
            context.complete(response)

    def done(results: Results) -> None:
        if epoch == FINAL_EPOCH:
            manager.end(session, partial(respond, results))
        else:
            respond(results)

    _acknowledge(context, request, _acknowledged(request.topics), done)
    is_serving = False
    return answer or PENDING


def _failed_acknowledge(error: ErrorCode) -> acknowledging.ShareAcknowledgeResponse:
    return acknowledging.ShareAcknowledgeResponse(error_code=error)


def _acknowledge_response(
    context: HandlerContext, request: acknowledging.ShareAcknowledgeRequest, results: Results
) -> acknowledging.ShareAcknowledgeResponse:
    topics: dict[bytes, list[acknowledging.PartitionData]] = {}
    leaders: list[int] = []
    for each, (error, message) in results.items():
        answer = acknowledging.PartitionData(partition_index=each[1], error_code=error, error_message=message)
        if error == ErrorCode.NOT_LEADER_OR_FOLLOWER:
            leader, epoch = current_leader(context, "", *each)
            answer.current_leader = acknowledging.LeaderIdAndEpoch(leader, epoch)
            leaders.append(leader)
        topics.setdefault(each[0], []).append(answer)
    settings = context.services.share_partitions.settings(request.group_id or "")
    return acknowledging.ShareAcknowledgeResponse(
        acquisition_lock_timeout_ms=settings.lock_ms,
        responses=[
            acknowledging.ShareAcknowledgeTopicResponse(topic_id, answers)
            for topic_id, answers in topics.items()
        ],
        node_endpoints=[
            acknowledging.NodeEndpoint(address.broker_id, address.host, address.port, address.rack)
            for address in leader_addresses(context, leaders)
        ],
    )


# -- both


def _request_error(context: HandlerContext, request: Any, forgotten: Sequence[Any] = ()) -> ErrorCode:
    if not context.services.groups.serves_share_groups:
        return ErrorCode.UNSUPPORTED_VERSION
    if not request.group_id or not request.member_id or len(request.member_id) > MEMBER_ID_MAX:
        return ErrorCode.INVALID_REQUEST
    if not allows_group(context, Operation.READ, request.group_id):
        return ErrorCode.GROUP_AUTHORIZATION_FAILED
    for topics in (request.topics, forgotten):
        named = [len(topic.partitions) for topic in topics]
        if are_too_many_partitions(context.services.controller.image, named):
            return ErrorCode.INVALID_REQUEST
    return ErrorCode.NONE


def _partition_error(context: HandlerContext, partition: TopicPartition) -> ErrorCode:
    """Why the partition can't be fetched from here, or acknowledged."""
    topic_id, index = partition
    topic = context.services.controller.image.topic_by_id(topic_id)
    if topic is None:
        return ErrorCode.UNKNOWN_TOPIC_ID
    if not allows_topic(context, Operation.READ, topic.name):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if index not in topic.partitions:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    here = context.services.partitions.by_id(topic_id, index)
    if here is None or not here.is_leader:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    return ErrorCode.KAFKA_STORAGE_ERROR if here.log.offline else ErrorCode.NONE


def _acknowledged(topics: Iterable[Any]) -> list[_Acknowledged]:
    return [
        _Acknowledged((topic.topic_id, each.partition_index), each.acknowledgement_batches)
        for topic in topics
        for each in topic.partitions
        if each.acknowledgement_batches
    ]


def _acknowledge(
    context: HandlerContext,
    request: Any,
    acknowledged: list[_Acknowledged],
    done: Callable[[Results], object],
) -> None:
    """Acknowledge, then `done(results)`, perhaps before this returns."""
    manager = context.services.share_partitions
    results: Results = {}
    missing = 1
    may_renew = context.api_version >= RENEWS_FROM and request.is_renew_ack

    def answered(partition: TopicPartition, error: ErrorCode, message: str | None) -> None:
        nonlocal missing
        results[partition] = (error, message)
        missing -= 1
        if not missing:
            done(results)

    def begin() -> Iterator[None]:
        nonlocal missing
        for each in acknowledged:
            missing += 1
            begin_one(each, partial(answered, each.partition))
            yield

    def begin_one(each: _Acknowledged, answer: Callable[[ErrorCode, str | None], None]) -> None:
        error = _partition_error(context, each.partition)
        if not error and not _are_valid(each.batches, may_renew=may_renew):
            error = ErrorCode.INVALID_REQUEST
        led = None if error else manager.find(request.group_id, *each.partition)
        if error:
            answer(error, None)
        elif led is None or led.state is None:
            answer(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION.message)
        else:
            batches = [
                Acknowledgement(batch.first_offset, batch.last_offset, batch.acknowledge_types)
                for batch in each.batches
            ]
            led.acknowledge(request.member_id, batches, answer)

    def all_begun() -> None:
        nonlocal missing
        missing -= 1
        if not missing:
            done(results)

    in_slices(context.services.runtime, begin(), all_begun)


def _are_valid(batches: Iterable[Any], *, may_renew: bool) -> bool:
    highest = RENEW if may_renew else RENEW - 1
    previous = count = 0
    for batch in batches:
        types = batch.acknowledge_types
        count += len(types)
        if count > TYPES_MAX:
            return False
        if not 0 <= batch.first_offset <= batch.last_offset or batch.first_offset < previous:
            return False
        if len(types) not in (1, batch.last_offset - batch.first_offset + 1):
            return False
        if not all(0 <= each <= highest for each in types):
            return False
        previous = batch.last_offset
    return True
