"""Consumer group members of three client libraries, each polling in a thread of its own.

A `Member` joins on construction, records the values that it reads and its assigned partitions, and leaves on `leave()`.
`vanish()` stops polling and heartbeats without LeaveGroup, as a crashed process does.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import confluent_kafka
from aiokafka import AIOKafkaConsumer
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from kafka import KafkaConsumer
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.errors import KafkaConnectionError

from compat_tests.harness.eventually import eventually

SESSION_TIMEOUT_MS = 3_000
ABANDON_S = 3.0  # for a client of a test that has failed
STUCK_S = 15.0  # without a value while some are missing

log = logging.getLogger("compat_tests.members")


class Member:
    """One member of a group; `assigned` is a set of (topic, partition)."""

    library = ""

    def __init__(
        self,
        bootstrap: str,
        group: str,
        topics: Sequence[str],
        *,
        instance_id: str | None = None,
        cooperative: bool = False,
        session_timeout_ms: int = SESSION_TIMEOUT_MS,
    ) -> None:
        self.bootstrap = bootstrap
        self.group = group
        self.topics = list(topics)
        self.instance_id = instance_id
        self.cooperative = cooperative
        self.session_timeout_ms = session_timeout_ms
        self.values: list[bytes] = []
        self.assigned: frozenset[tuple[str, int]] = frozenset()
        self.rebalances = 0
        self.failure: BaseException | None = None
        self._stop = threading.Event()
        self._is_abandoned = False
        self._thread = threading.Thread(target=self._run, daemon=True, name=f"{self.library}-{group}")
        self._thread.start()

    def abandon(self) -> None:
        """End the thread, without waiting: for the end of a test that has failed."""
        self._is_abandoned = True
        self._stop.set()

    def join(self, timeout: float) -> None:
        """Wait until the client is closed, or for `timeout` seconds."""
        self._thread.join(timeout)

    def leave(self) -> None:
        """Commit, leave the group and wait for the thread's end."""
        self._stop.set()
        self.join(30)
        assert not self._thread.is_alive(), f"{self.library} member did not leave"
        if self.failure is not None:
            raise self.failure

    def await_values(self, enough: Callable[[list[bytes]], bool], timeout: float = 60) -> None:
        """Wait until what was read satisfies `enough`; a failure of the member's thread is raised here."""

        read, since = len(self.values), time.monotonic()

        def check() -> bool:
            nonlocal read, since
            if self.failure is not None:
                raise self.failure
            now = time.monotonic()
            if read < len(self.values):
                read, since = len(self.values), now
            elif now - since > STUCK_S:
                since = now
                self.rejoin()
            return enough(self.values)

        eventually(check, timeout, message=lambda: (self.library, sorted(self.assigned), len(self.values)))

    def rejoin(self) -> None:
        """Nothing is read though values are missing: begin anew with another client, where that is known to help."""

    def _run(self) -> None:
        try:
            self._poll_until_stopped()
        except BaseException as failure:  # noqa: BLE001 - shown by leave() in the test's own thread
            self.failure = failure

    def _poll_until_stopped(self) -> None:
        raise NotImplementedError

    def _see(self, assigned: frozenset[tuple[str, int]]) -> None:
        if assigned != self.assigned:
            self.rebalances += 1
            self.assigned = assigned


class KafkaPythonMember(Member):
    """kafka-python."""

    library = "kafka-python"

    def _poll_until_stopped(self) -> None:
        options: dict[str, object] = {}
        if self.cooperative:
            options["partition_assignment_strategy"] = (CooperativeStickyAssignor,)
        consumer = KafkaConsumer(
            *self.topics,
            bootstrap_servers=self.bootstrap,
            group_id=self.group,
            group_instance_id=self.instance_id,
            auto_offset_reset="earliest",
            session_timeout_ms=self.session_timeout_ms,
            heartbeat_interval_ms=200,
            auto_commit_interval_ms=200,
            metadata_max_age_ms=1_000,
            **options,
        )
        # If it joined before it has the topics' metadata, it would assign nothing, join again at once, and lose that
        # assignment when its poll ends meanwhile (kafka-python 3.0.12). So fetch the metadata first.
        for topic in self.topics:
            consumer.partitions_for_topic(topic)
        while not self._stop.is_set():
            try:
                polled = consumer.poll(timeout_ms=500)
            except KafkaConnectionError:
                continue  # the broker is down: kafka-python raises, and the next poll tries again
            for records in polled.values():
                self.values += [record.value or b"" for record in records]
            self._see(frozenset((one.topic, one.partition) for one in consumer.assignment()))
        consumer.close()


class AioKafkaMember(Member):
    """aiokafka; `cooperative` uses sticky, as it has no cooperative protocol."""

    library = "aiokafka"

    def _poll_until_stopped(self) -> None:
        asyncio.run(self._poll())

    async def _poll(self) -> None:
        options: dict[str, object] = {}
        if self.cooperative:
            options["partition_assignment_strategy"] = (StickyPartitionAssignor,)
        consumer = AIOKafkaConsumer(
            *self.topics,
            bootstrap_servers=self.bootstrap,
            group_id=self.group,
            group_instance_id=self.instance_id,
            auto_offset_reset="earliest",
            session_timeout_ms=self.session_timeout_ms,
            heartbeat_interval_ms=200,
            auto_commit_interval_ms=200,
            metadata_max_age_ms=1_000,
            **options,
        )
        await consumer.start()
        try:
            while not self._stop.is_set():
                for records in (await consumer.getmany(timeout_ms=100)).values():
                    self.values += [record.value or b"" for record in records]
                self._see(frozenset((one.topic, one.partition) for one in consumer.assignment()))
        finally:
            # Without a coordinator it would commit forever.
            async with asyncio.timeout(ABANDON_S if self._is_abandoned else None):
                await consumer.stop()


class ConfluentMember(Member):
    """confluent-kafka."""

    library = "confluent-kafka"
    _must_rejoin = False

    def rejoin(self) -> None:
        """librdkafka 2.16 does not repeat an OffsetFetch that was answered NOT_COORDINATOR, and reads nothing any more."""
        log.warning("the member of %s in confluent-kafka reads nothing: it begins anew", self.group)
        self._must_rejoin = True

    def _poll_until_stopped(self) -> None:
        while not self._stop.is_set():
            self._must_rejoin = False
            self._poll_until_rejoin()

    def _poll_until_rejoin(self) -> None:
        settings: dict[str, str | int] = {
            "bootstrap.servers": self.bootstrap,
            "group.id": self.group,
            "auto.offset.reset": "earliest",
            # A broker that is cut off may never answer; librdkafka's minute is as long as tests wait.
            "socket.timeout.ms": 5_000,
            "auto.commit.interval.ms": 200,
            "topic.metadata.refresh.interval.ms": 1_000,
            **self._protocol_settings(),
        }
        if self.instance_id is not None:
            settings["group.instance.id"] = self.instance_id
        consumer = confluent_kafka.Consumer(settings)
        # Not Consumer.assignment(): it waits for librdkafka's threads and keeps Python's interpreter lock meanwhile, so
        # that a deadlock among them (2.16: OffsetForLeaderEpoch beside a broker that goes) would stop all tests.
        consumer.subscribe(
            self.topics, on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._revoked
        )
        while not (self._stop.is_set() or self._must_rejoin):
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                self.values.append(message.value() or b"")
        if not self._is_abandoned:  # without a coordinator it waits for a minute
            consumer.close()

    def _protocol_settings(self) -> dict[str, str | int]:
        return {
            "session.timeout.ms": self.session_timeout_ms,
            "heartbeat.interval.ms": 200,
            "partition.assignment.strategy": "cooperative-sticky" if self.cooperative else "range,roundrobin",
        }

    def _assigned(
        self, _: confluent_kafka.Consumer, partitions: list[confluent_kafka.TopicPartition]
    ) -> None:
        added = frozenset((one.topic, one.partition) for one in partitions)
        self._see(self.assigned | added if self.cooperative else added)

    def _revoked(self, _: confluent_kafka.Consumer, partitions: list[confluent_kafka.TopicPartition]) -> None:
        self._see(self.assigned - {(one.topic, one.partition) for one in partitions})


class ConsumerProtocolMember(ConfluentMember):
    """confluent-kafka in a consumer group (KIP-848), whose session timeout and heartbeats the broker sets."""

    library = "confluent-kafka, consumer protocol"

    def __init__(self, bootstrap: str, group: str, topics: Sequence[str], **options: Any) -> None:
        super().__init__(bootstrap, group, topics, **{"cooperative": True, **options})

    def _protocol_settings(self) -> dict[str, str | int]:
        return {"group.protocol": "consumer"}


LIBRARIES: tuple[type[Member], ...] = (KafkaPythonMember, AioKafkaMember, ConfluentMember)


def await_balance(members: Sequence[Member], partitions: int, timeout: float = 60) -> None:
    """Wait until the members share all `partitions`, none twice and each member at least one."""

    def balanced() -> bool:
        for member in members:
            if member.failure is not None:
                raise member.failure
        sets = [member.assigned for member in members]
        return all(sets) and sum(map(len, sets)) == partitions == len(frozenset().union(*sets))

    eventually(balanced, timeout)
