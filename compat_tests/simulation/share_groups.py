"""Simulated members of a share group (KIP-932): the broker assigns partitions, and they fetch and acknowledge records.

A member accepts most of what it gets, releases or rejects some, and keeps some without a word until the lock expires. Its
acknowledgements come along with the next fetch, or as requests of their own, perhaps too late. It closes its sessions now and then, or
its connection.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, Final

from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import share_acknowledge as acknowledging
from barnabas.wire.messages import share_fetch as fetching
from barnabas.wire.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsRequestTopic,
)
from barnabas.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from barnabas.wire.messages.share_group_describe import ShareGroupDescribeRequest
from barnabas.wire.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from barnabas.wire.record_batch import read_header, verify_crc
from barnabas.wire.records import iterate_records
from compat_tests.simulation.config_changers import ALTER_CONFIGS, ALTER_CONFIGS_VERSION, SET
from compat_tests.simulation.consumers import STALE
from compat_tests.simulation.coordinators import GROUP, WAIT, Coordinators
from compat_tests.simulation.history import History, Partition, Violation, name
from compat_tests.simulation.share_history import (
    ACCEPT,
    GAP,
    NEVER,
    REJECT,
    RELEASE,
    RENEW,
    Acknowledgement,
    Delivery,
    ShareHistory,
)
from compat_tests.simulation.wire_client import Address, Client, NoResponse

HEARTBEAT, DESCRIBE, SHARE_FETCH, SHARE_ACKNOWLEDGE, DESCRIBE_OFFSETS = 76, 77, 78, 79, 90
VERSIONS: Final = {HEARTBEAT: 1, DESCRIBE: 1, SHARE_FETCH: 2, SHARE_ACKNOWLEDGE: 2, DESCRIBE_OFFSETS: 1}
NAME: Final = "shared"
GROUP_RESOURCE: Final = 32
SETTINGS: Final = {
    "group.share.min.session.timeout.ms": "1000",
    "group.share.session.timeout.ms": "6000",
    "group.share.min.heartbeat.interval.ms": "100",
    "group.share.heartbeat.interval.ms": "500",
    "group.share.min.record.lock.duration.ms": "1000",
    "group.share.initialize.retry.interval.ms": "2000",
    "share.coordinator.state.topic.num.partitions": "2",
}
HEARTBEAT_S = 0.5
ABOUT_THE_SESSION: Final = frozenset(
    {ErrorCode.SHARE_SESSION_NOT_FOUND, ErrorCode.INVALID_SHARE_SESSION_EPOCH}
)
OUT_OF_GROUP: Final = frozenset(
    {ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND}
)
COORDINATOR: Final = WAIT | {ErrorCode.REQUEST_TIMED_OUT, ErrorCode.KAFKA_STORAGE_ERROR}
# With these nothing of an acknowledgement was done.
REFUSED: Final = frozenset({ErrorCode.INVALID_RECORD_STATE})


@dataclasses.dataclass
class Due:
    """Records to acknowledge at a time. `types`: one, or one for each."""

    at: float
    partition: Partition
    first: int
    last: int
    types: list[int]
    delivery: Delivery

    def kind(self, offset: int) -> int:
        return self.types[offset - self.first] if len(self.types) > 1 else self.types[0]


class Session:
    """With one broker, over one connection."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.epoch = 0
        self.partitions: dict[Partition, None] = {}
        self.held: dict[Delivery, Partition] = {}
        self.due: list[Due] = []


class ShareMember:
    """Runs until `should_continue` returns false. `accepts_all`: everything, at once."""

    def __init__(
        self,
        client: Client,
        history: History,
        shared: ShareHistory,
        *,
        should_continue: Callable[[], bool],
        accepts_all: bool = False,
    ) -> None:
        self._client = client
        self._history = history
        self._shared = shared
        self._should_continue = should_continue
        self._accepts_all = accepts_all
        self._coordinators = Coordinators(client, history, should_continue)
        self._member_id = f"{client.name}-{client.random.randint(0, 1 << 30)}"
        self._epoch = 0
        self._highest_epoch: tuple[int, float] = 0, 0.0  # with the time of the answer
        self._topics: list[str] = []
        self._assigned: set[Partition] = set()
        self._heartbeat_at = 0.0
        self._sessions: dict[Address, Session] = {}

    async def run(self) -> None:
        client = self._client
        while self._should_continue():
            await self.step()
            await client.pause(client.random.choice((0.01, 0.05, 0.2)))
        await self.leave()

    async def step(self) -> None:
        """A heartbeat if it is time for one, and a request to one broker."""
        if self._client.now() >= self._heartbeat_at:
            await self._heartbeat()
        await self._consume()

    # -- membership

    async def _heartbeat(self) -> None:
        client, history = self._client, self._history
        topics = sorted(
            topic.name
            for topic in history.topics.values()
            if topic.topic_id and topic.is_safe and not topic.is_deleted
        )
        request = ShareGroupHeartbeatRequest(NAME, self._member_id, self._epoch)
        if topics != self._topics or not self._epoch or client.random.random() < 0.1:
            request.subscribed_topic_names = topics
        asked_at = client.now()
        answer = await self._coordinators.ask(GROUP, NAME, HEARTBEAT, VERSIONS[HEARTBEAT], request)
        if answer is None:
            self._topics = []
            return
        error = ErrorCode(answer.error_code)
        if error in OUT_OF_GROUP:
            history.count(f"share group {error.name}")
            self._epoch, self._topics, self._assigned = 0, [], set()
            return
        if error:
            if error not in COORDINATOR:
                raise Violation(f"{client.name}: the share group's coordinator answered {error.name}")
            history.count(f"share group {error.name}")
            self._topics = []
            await self._coordinators.wait(GROUP, NAME, error)
            return
        self._follow(answer, asked_at)
        if request.subscribed_topic_names is not None:
            self._topics = topics

    def _follow(self, answer: Any, asked_at: float) -> None:
        highest, since = self._highest_epoch
        # A member that joins again may meet a coordinator that does not know yet that it was replaced.
        if answer.member_epoch < self._epoch or (
            answer.member_epoch < highest and asked_at - since > self._history.stale_s
        ):
            raise Violation(f"{self._client.name}: its epoch {highest} became {answer.member_epoch}")
        if not self._epoch:
            self._history.count("share groups joined")
        self._epoch = answer.member_epoch
        self._highest_epoch = max(highest, answer.member_epoch), self._client.now()
        self._heartbeat_at = self._client.now() + HEARTBEAT_S
        if answer.assignment is not None:
            self._assigned = {
                (topic.topic_id, index)
                for topic in answer.assignment.topic_partitions
                for index in topic.partitions
            }

    async def leave(self) -> None:
        """Close the sessions, and leave the group; or just disappear."""
        client = self._client
        if client.random.random() < 0.3:
            client.close()
            return
        for session in list(self._sessions.values()):
            await self.close(session)
        request = ShareGroupHeartbeatRequest(NAME, self._member_id, -1)
        await self._coordinators.ask(GROUP, NAME, HEARTBEAT, VERSIONS[HEARTBEAT], request)

    # -- sessions

    async def _consume(self) -> None:
        client = self._client
        by_broker: dict[Address, list[Partition]] = {}
        for partition in sorted(self._assigned):
            address, _ = client.leader(*partition)
            if address is not None and not self._history.is_deleted(partition[0]):
                by_broker.setdefault(address, []).append(partition)
        if len(by_broker) == 0 or client.random.random() < 0.03:
            await client.pause()
            await client.refresh()
        addresses = sorted({*by_broker, *self._sessions})
        if not addresses:
            return
        address = client.random.choice(addresses)
        session = self._sessions.get(address)
        chance = 1.0 if self._accepts_all else client.random.random()
        if session is not None and chance < 0.03:
            self._history.count("share connections closed by members")
            client.disconnect(address)
            self.lose(session)
        elif session is not None and (chance < 0.1 or (self._accepts_all and address not in by_broker)):
            await self.close(session)
        elif session is not None and chance < 0.3:
            await self._acknowledge(session)
        elif address in by_broker:
            await self.fetch(address, by_broker[address])

    async def close(self, session: Session) -> bool:
        """Whether the broker has closed the session: all that it held is released."""
        due = self._take_due(session)
        request = acknowledging.ShareAcknowledgeRequest(
            NAME, self._member_id, -1, False, _acknowledge_topics(due)
        )
        answer = await self._ask(session, SHARE_ACKNOWLEDGE, request, due, ())
        self.lose(session)
        if answer is not None:
            self._history.count("share sessions closed")
        return answer is not None

    def lose(self, session: Session) -> None:
        """It has ended, or may have: what it held belongs to others soon."""
        for delivery in session.held:
            delivery.is_over = True
        if self._sessions.get(session.address) is session:
            del self._sessions[session.address]

    async def _acknowledge(self, session: Session) -> None:
        due = self._take_due(session)
        renewed = self._client.random.random() < 0.2
        if renewed:
            kept, due = due, []
            for each in kept:
                if RENEW not in each.types and GAP not in each.types:
                    due.append(dataclasses.replace(each, types=[RENEW]))
            session.due += kept
        if not due:
            return
        request = acknowledging.ShareAcknowledgeRequest(
            NAME, self._member_id, session.epoch, renewed, _acknowledge_topics(due)
        )
        await self._ask(session, SHARE_ACKNOWLEDGE, request, due, ())

    async def fetch(
        self, address: Address, wanted: Iterable[Partition], records_max: int = 0
    ) -> list[tuple[Partition, int, int, int]]:
        """(partition, first, last, delivery count) of what was acquired."""
        client = self._client
        wanted = dict.fromkeys(wanted)
        session = self._sessions.get(address) or Session(address)
        due = self._take_due(session) if session.epoch else []
        named = {each: None for each in wanted if each not in session.partitions}
        topics = _fetch_topics(named, due)
        forgotten: dict[bytes, list[int]] = {}
        for topic_id, index in session.partitions:
            if (topic_id, index) not in wanted:
                forgotten.setdefault(topic_id, []).append(index)
        request = fetching.ShareFetchRequest(
            NAME,
            self._member_id,
            session.epoch,
            0 if self._accepts_all else client.random.choice((0, 100, 300)),
            client.random.choice((0, 1)),
            1 << 20 if self._accepts_all else client.random.choice((1, 5000, 1 << 20, 1 << 20)),
            records_max or (500 if self._accepts_all else client.random.choice((1, 20, 500, 500))),
            client.random.choice((1, 10, 500)),
            client.random.choice((0, 0, 1)),
            False,
            topics,
            [fetching.ForgottenTopic(*each) for each in forgotten.items()],
        )
        session.partitions |= named | dict.fromkeys(each.partition for each in due)
        fetched = list(session.partitions)
        for topic_id, indexes in forgotten.items():
            for index in indexes:
                del session.partitions[topic_id, index]
        self._sessions[address] = session
        sent_at = client.now()
        answer = await self._ask(session, SHARE_FETCH, request, due, fetched)
        if answer is None:
            return []
        acquired = []
        is_stale = False
        for topic in answer.responses:
            for data in topic.partitions:
                partition = topic.topic_id, data.partition_index
                error = ErrorCode(data.error_code)
                if error:
                    self._check_error(partition, error)
                    is_stale = True
                acquired += self._take(session, partition, data, sent_at)
        if is_stale:
            await client.pause()
            await client.refresh()
        return acquired

    def _check_error(self, partition: Partition, error: ErrorCode) -> None:
        self._history.count(f"share fetch {error.name}")
        if error not in STALE and error not in COORDINATOR and not self._history.is_deleted(partition[0]):
            raise Violation(
                f"{self._client.name}: a share fetch of {name(partition)} failed with {error.name}"
            )

    async def _ask(
        self, session: Session, api: int, request: Any, due: list[Due], fetched: Iterable[Partition]
    ) -> Any:
        """The answer, None if it is lost or about the session, which is over then."""
        client, shared = self._client, self._shared
        sent_at = client.now()
        for each in due:
            if RENEW not in each.types:
                kinds = {offset: each.kind(offset) for offset in range(each.first, each.last + 1)}
                shared.gives_up(client.name, each.partition, kinds, sent_at)
        try:
            answer = await client.ask(session.address, api, VERSIONS[api], request)
        except NoResponse as lost:
            if lost.was_sent:
                self._acknowledged(due, sent_at, None)
                shared.lost_fetch(fetched, sent_at)
            self.lose(session)
            await client.pause()
            await client.refresh()
            return None
        error = ErrorCode(answer.error_code)
        if error:
            self._history.count(f"share session {error.name}")
            if error not in ABOUT_THE_SESSION or not session.epoch:
                raise Violation(f"{client.name}: API {api} failed with {error.name}")
            self.lose(session)
            return None
        session.epoch += 1
        for delivery, partition in tuple(session.held.items()):
            shared.is_held(partition, delivery, sent_at)
            if delivery.is_over or delivery.lock_until < sent_at:
                del session.held[delivery]
        errors = {
            (topic.topic_id, each.partition_index): ErrorCode(
                each.acknowledge_error_code if api == SHARE_FETCH else each.error_code
            )
            for topic in answer.responses
            for each in topic.partitions
        }
        self._acknowledged(due, sent_at, errors)
        return answer

    # -- records

    def _take(
        self, session: Session, partition: Partition, data: Any, sent_at: float
    ) -> list[tuple[Partition, int, int, int]]:
        client, shared = self._client, self._shared
        now = client.now()
        epoch = shared.leaderships.during(session.address[0], partition, sent_at, now)
        is_compacted = self._history.is_compacted(partition)
        offsets = self._read(partition, data.records)
        acquired, end = [], -1
        for found in data.acquired_records:
            first, last, count = found.first_offset, found.last_offset, found.delivery_count
            if first <= end:
                raise Violation(f"{client.name} acquired {first}-{last} of {name(partition)} after {end}")
            end = last
            missing = [offset for offset in range(first, last + 1) if offset not in offsets]
            if missing and not is_compacted:
                raise Violation(
                    f"{client.name} acquired {first}-{last} of {name(partition)} without the record {missing[0]}"
                )
            delivery = Delivery(client.name, session.address[0], sent_at, now, epoch, count, shared.lock_s)
            shared.delivered(partition, first, last, delivery)
            session.held[delivery] = partition
            self._decide(session, Due(now, partition, first, last, [ACCEPT], delivery), missing)
            acquired.append((partition, first, last, count))
        return acquired

    def _read(self, partition: Partition, records: Any) -> set[int]:
        """The offsets there are."""
        data = bytes(records or b"")
        offsets: set[int] = set()
        position = 0
        while position < len(data):
            header = read_header(data, position)
            verify_crc(data, position, header)
            batch = data[position : position + header.size]
            if self._history.is_compacted(partition):
                for record in iterate_records(batch):
                    offsets.add(record.offset)
                    self._history.saw_record(
                        self._client.name, partition, record.offset, bytes(record.value or b"")
                    )
            else:
                offsets.update(range(header.base_offset, header.last_offset + 1))
                self._history.consumed(
                    self._client.name,
                    partition,
                    header.base_offset,
                    header.last_offset,
                    header.crc,
                    self._client.now(),
                )
            position += header.size
        return offsets

    def _decide(self, session: Session, due: Due, missing: list[int]) -> None:
        """What becomes of these records, and when."""
        chance, lock_s = self._client.random, self._shared.lock_s
        if not self._accepts_all:
            fate = chance.random()
            if fate < 0.08:
                self._history.count("share records kept until their locks expire", due.last - due.first + 1)
                return
            if fate < 0.2:
                due.types = [RELEASE]
            elif fate < 0.23:
                due.types = [REJECT]
            elif fate < 0.4:
                due.types = [
                    chance.choice((ACCEPT, ACCEPT, RELEASE, REJECT)) for _ in range(due.first, due.last + 1)
                ]
            due.at += chance.choice((0.0, 0.0, 0.1, 0.5 * lock_s, lock_s, 1.3 * lock_s))
        if missing:
            due.types = [
                GAP if offset in missing else due.kind(offset) for offset in range(due.first, due.last + 1)
            ]
        session.due.append(due)

    def _take_due(self, session: Session) -> list[Due]:
        now = self._client.now()
        due = [each for each in session.due if each.at <= now]
        session.due = [each for each in session.due if each.at > now]
        # A record that was delivered again is acknowledged once.
        newest: dict[tuple[Partition, int], Delivery] = {}
        for each in due:
            for offset in range(each.first, each.last + 1):
                newest[each.partition, offset] = each.delivery
        due = [
            each
            for each in due
            if all(
                newest[each.partition, offset] is each.delivery for offset in range(each.first, each.last + 1)
            )
        ]
        return sorted(due, key=lambda each: (each.partition, each.first))

    def _acknowledged(
        self, due: list[Due], sent_at: float, errors: dict[Partition, ErrorCode] | None
    ) -> None:
        """`errors` by partition; None: the answer is lost."""
        client, shared = self._client, self._shared
        now = client.now()
        for each in due:
            error = None if errors is None else errors.get(each.partition)
            if errors is not None and error is None:
                raise Violation(f"{client.name}: an acknowledgement for {name(each.partition)} has no result")
            count = each.last - each.first + 1
            if error is not None:
                self._history.count(f"share records' acknowledgements {error.name}", count)
            else:
                self._history.count("share records' acknowledgements without an answer", count)
            if error in REFUSED or (error is ErrorCode.INVALID_REQUEST and self._has_moved(each, due)):
                continue
            if (
                error
                and error not in STALE
                and error not in COORDINATOR
                and not self._history.is_deleted(each.partition[0])
            ):
                raise Violation(
                    f"{client.name}: acknowledging {each.first}-{each.last} of {name(each.partition)} failed with {error.name}"
                )
            is_done = error is ErrorCode.NONE
            epoch = shared.leaderships.during(each.delivery.host, each.partition, sent_at, now)
            for offset in range(each.first, each.last + 1):
                kind = each.kind(offset)
                if kind == GAP:
                    continue
                done = Acknowledgement(client.name, kind, sent_at, now if is_done else NEVER, epoch)
                shared.acknowledged(each.partition, offset, done)
                if is_done:
                    self._history.count(("", "share records accepted", "share records released",
                                         "share records rejected", "share records renewed")[kind])  # fmt: skip
            # One whose lock had expired may have been given up, in memory, and what is below the start offset is ignored.
            if is_done and RENEW in each.types and now < each.delivery.lock_until:
                each.delivery.lock_until = sent_at + shared.lock_s

    def _has_moved(self, one: Due, due: list[Due]) -> bool:
        """Whether the leader may have read the state anew, which does not have records that were only acquired. One that it does not
        know makes it refuse all of the partition."""
        since = min(each.delivery.sent_at for each in due if each.partition == one.partition)
        host, now = one.delivery.host, self._client.now()
        return self._shared.leaderships.during(host, one.partition, since, now) is None


def _acknowledge_topics(due: Iterable[Due]) -> list[acknowledging.AcknowledgeTopic]:
    topics: dict[bytes, dict[int, list[acknowledging.AcknowledgementBatch]]] = {}
    for each in due:
        batch = acknowledging.AcknowledgementBatch(each.first, each.last, each.types)
        topics.setdefault(each.partition[0], {}).setdefault(each.partition[1], []).append(batch)
    return [
        acknowledging.AcknowledgeTopic(
            topic_id, [acknowledging.AcknowledgePartition(*partition) for partition in partitions.items()]
        )
        for topic_id, partitions in topics.items()
    ]


def _fetch_topics(named: Iterable[Partition], due: Iterable[Due]) -> list[fetching.FetchTopic]:
    topics: dict[bytes, dict[int, list[fetching.AcknowledgementBatch]]] = {}
    for topic_id, index in named:
        topics.setdefault(topic_id, {})[index] = []
    for each in due:
        batch = fetching.AcknowledgementBatch(each.first, each.last, each.types)
        topics.setdefault(each.partition[0], {}).setdefault(each.partition[1], []).append(batch)
    return [
        fetching.FetchTopic(topic_id, [fetching.FetchPartition(*each) for each in partitions.items()])
        for topic_id, partitions in topics.items()
    ]


# -- looking from outside


class Position:
    """Start offset and lag of a share partition, -1 if unknown."""

    def __init__(self, start_offset: int, lag: int) -> None:
        self.start_offset = start_offset
        self.lag = lag


async def positions(
    client: Client, address: Address, history: History, shared: ShareHistory, partitions: Iterable[Partition]
) -> dict[Partition, Position]:
    """What the coordinator says that a broker is, {} if it is none. Start offsets never go back. NoResponse."""
    topics: dict[str, list[int]] = {}
    ids: dict[str, bytes] = {}
    for topic_id, index in partitions:
        topic = history.topic(topic_id)
        assert topic is not None
        topics.setdefault(topic.name, []).append(index)
        ids[topic.name] = topic_id
    wanted = [DescribeShareGroupOffsetsRequestTopic(*each) for each in topics.items()]
    request = DescribeShareGroupOffsetsRequest([DescribeShareGroupOffsetsRequestGroup(NAME, wanted)])
    asked_at = client.now()
    answer = await client.ask(address, DESCRIBE_OFFSETS, VERSIONS[DESCRIBE_OFFSETS], request)
    (group,) = answer.groups
    if group.error_code:
        return {}
    found = {}
    for topic in group.topics:
        for each in topic.partitions:
            partition = ids[topic.topic_name], each.partition_index
            if each.error_code or each.start_offset < 0:
                continue
            found[partition] = Position(each.start_offset, each.lag)
            if not history.is_deleted(partition[0]):
                shared.saw(("start offset", name(partition)), each.start_offset, asked_at, client.now())
                history.count("share start offsets returned")
    return found


class ShareObserver:
    """Asks one broker, whether it coordinates the group or not, for the group's epochs and start offsets."""

    def __init__(
        self,
        client: Client,
        history: History,
        shared: ShareHistory,
        address: Address,
        should_continue: Callable[[], bool],
    ) -> None:
        self._client = client
        self._history = history
        self._shared = shared
        self._address = address
        self._should_continue = should_continue

    async def run(self) -> None:
        client, history = self._client, self._history
        while self._should_continue():
            partitions = [
                (topic.topic_id, index)
                for topic in history.topics.values()
                if topic.topic_id and topic.is_safe and not topic.is_deleted
                for index in range(topic.partitions)
            ]
            try:
                await positions(client, self._address, history, self._shared, partitions)
                await self._ask_for_epochs()
            except NoResponse:
                pass
            await client.pause(0.3)

    async def _ask_for_epochs(self) -> None:
        client = self._client
        asked_at = client.now()
        request = ShareGroupDescribeRequest([NAME])
        answer = await client.ask(self._address, DESCRIBE, VERSIONS[DESCRIBE], request)
        (group,) = answer.groups
        if group.error_code:
            return
        self._shared.saw("the epoch of the share group", group.group_epoch, asked_at, client.now())
        self._shared.saw(
            "the assignment epoch of the share group", group.assignment_epoch, asked_at, client.now()
        )
        self._history.count("share group epochs returned")


async def configure(client: Client, configs: dict[str, str]) -> None:
    """Set configs of the group, until they are."""
    wanted = [AlterableConfig(config, SET, value) for config, value in configs.items()]
    request = IncrementalAlterConfigsRequest([AlterConfigsResource(GROUP_RESOURCE, NAME, wanted)])
    while True:
        try:
            answer = await client.ask(client.any_address(), ALTER_CONFIGS, ALTER_CONFIGS_VERSION, request)
            if not answer.responses[0].error_code:
                return
        except NoResponse:
            pass
        await client.pause(0.2)
        await client.refresh()
