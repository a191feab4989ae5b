"""A broker's heartbeats: what they say of the metadata, and when they come."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from barnabas.broker.cluster.broker_lifecycle import BROKER_HEARTBEAT, BROKER_REGISTRATION, BrokerLifecycle
from barnabas.controller.metadata.controller import Controller
from barnabas.controller.metadata.decision import Decision
from barnabas.controller.metadata.local_log import LocalMetadataLog
from barnabas.storage.manager.directory import encode_uuid
from barnabas.testing.memory_disk import MemoryDisk
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.broker_heartbeat import BrokerHeartbeatResponse
from barnabas.wire.messages.broker_registration import BrokerRegistrationResponse
from barnabas.wire.messages.metadata_records import BrokerRegistrationChangeRecord, RegisterBrokerRecord
from compat_tests.virtual.runtime import VirtualRuntime

INTERVAL_S = 2.0
SESSION_S = 9.0


class Broker:
    """Broker 1 of the metadata that a test writes, under a controller that unfences everybody."""

    def __init__(self) -> None:
        self.runtime = VirtualRuntime()
        self.controller = Controller(LocalMetadataLog(MemoryDisk(), "/m", self.runtime))
        self.controller.open()
        self.controller.serve()
        self.beats: list[Any] = []
        self.error = 0  # what a heartbeat is answered with
        self.is_fenced = False
        self.answer_delay_s: float | None = 0.0  # None: there is no answer
        self.roles_due: list[Callable[[], object]] | None = (
            None  # who waits for roles; None: they are taken at once
        )
        self.log_manager = SimpleNamespace(
            online_ids=list, offline={}, cordoned=[], directory_id=encode_uuid, broker_epoch=-1
        )
        services: Any = SimpleNamespace(
            runtime=self.runtime,
            controller=self.controller,
            node_id=1,
            cluster_id="cluster",
            endpoints={},
            config=SimpleNamespace(
                broker_heartbeat_interval_ms=INTERVAL_S * 1000,
                broker_session_timeout_ms=SESSION_S * 1000,
                broker_rack=None,
            ),
            log_manager=self.log_manager,
            partitions=SimpleNamespace(when_roles_taken=self.when_roles_taken),
            to_controller=SimpleNamespace(send=self.send, when_at=lambda _, call: call()),
        )
        self.lifecycle = BrokerLifecycle(services, previous_broker_epoch=-1)
        for broker_id in (1, 2):
            self.commit(RegisterBrokerRecord(broker_id=broker_id, broker_epoch=broker_id - 1, fenced=False))
        self.lifecycle.start()
        self.runtime.advance(0)

    def send(self, key: int, request: Any, done: Callable[[Any, ErrorCode], object], **_: float) -> None:
        if key == BROKER_REGISTRATION:
            done(BrokerRegistrationResponse(broker_epoch=0), ErrorCode.NONE)
            return
        assert key == BROKER_HEARTBEAT
        self.beats.append(request)
        answer = BrokerHeartbeatResponse(error_code=self.error, is_caught_up=True, is_fenced=self.is_fenced)
        if self.answer_delay_s is not None:
            self.runtime.call_later(self.answer_delay_s, lambda: done(answer, ErrorCode.NONE))

    def when_roles_taken(self, call: Callable[[], object]) -> None:
        if self.roles_due is None:
            call()
        else:
            self.roles_due.append(call)

    def commit(self, record: Any) -> None:
        self.controller.run(lambda _: Decision([record], None), lambda _: None)
        self.runtime.advance(0.005)

    def leave(self, broker_id: int) -> None:
        self.commit(
            BrokerRegistrationChangeRecord(
                broker_id=broker_id, broker_epoch=broker_id - 1, in_controlled_shutdown=1
            )
        )


def test_a_broker_tells_at_once_that_it_knows_of_one_that_leaves() -> None:
    broker = Broker()
    broker.runtime.advance(0.5)
    broker.beats.clear()
    broker.leave(2)
    assert [beat.current_metadata_offset for beat in broker.beats] == [broker.controller.image.offset]
    broker.runtime.advance(1)  # and goes on: a controller that has just become active needs to hear it, too
    assert 5 <= len(broker.beats) <= 12
    broker.commit(BrokerRegistrationChangeRecord(broker_id=2, broker_epoch=1, fenced=1))
    broker.runtime.advance(0.2)
    broker.beats.clear()
    broker.runtime.advance(3 * INTERVAL_S)
    assert len(broker.beats) == 3


def test_a_broker_does_not_claim_to_know_what_its_partitions_do_not_act_on_yet() -> None:
    broker = Broker()
    before = broker.controller.image.offset
    broker.beats.clear()
    broker.roles_due = []
    broker.leave(2)
    broker.lifecycle.heartbeat_now()
    assert [beat.current_metadata_offset for beat in broker.beats] == [before]
    for call in broker.roles_due:
        call()
    broker.runtime.advance(0.01)
    assert broker.beats[-1].current_metadata_offset == broker.controller.image.offset > before


def test_a_session_counts_from_when_the_heartbeat_was_sent() -> None:
    broker = Broker()
    runtime, lifecycle = broker.runtime, broker.lifecycle
    assert lifecycle.has_session()
    runtime.advance(10 * INTERVAL_S)
    assert lifecycle.has_session()
    broker.answer_delay_s = 1.5
    broker.beats.clear()
    while not broker.beats:
        runtime.advance(0.1)
    sent_at = runtime.monotonic()
    runtime.advance(1.6)  # answered
    broker.answer_delay_s = None
    runtime.advance(sent_at + SESSION_S - 0.2 - runtime.monotonic())
    assert lifecycle.has_session()
    runtime.advance(0.2)
    assert not lifecycle.has_session()


def test_a_broker_that_is_fenced_has_no_session_until_it_is_unfenced() -> None:
    broker = Broker()
    broker.is_fenced = True
    broker.runtime.advance(INTERVAL_S)
    assert not broker.lifecycle.has_session()
    broker.is_fenced = False
    broker.runtime.advance(1)
    assert broker.lifecycle.has_session()


def test_one_that_leaves_waits_for_nobody_when_most_voters_have_ended() -> None:
    broker = Broker()
    gone: list[float] = []
    begun = broker.runtime.monotonic()
    broker.lifecycle.leave(lambda: gone.append(broker.runtime.monotonic() - begun), 30)
    broker.runtime.advance(5)
    assert gone == [], "others may take over yet"
    looks = iter([True, True, False, True, True, True])
    broker.lifecycle.has_quorum_ended = lambda: next(looks)
    broker.runtime.advance(0.45)
    assert gone == [], "a voter has come back"
    broker.runtime.advance(0.2)
    assert len(gone) == 1
    broker.runtime.advance(60)
    assert len(gone) == 1


def test_the_controller_hears_of_cordoned_directories_and_that_they_are_not_any_more() -> None:
    broker = Broker()
    assert broker.beats[-1].cordoned_log_dirs is None
    first, second = (bytes([number]) * 16 for number in (1, 2))
    broker.log_manager.cordoned = [second, first]
    broker.runtime.advance(INTERVAL_S)
    assert broker.beats[-1].cordoned_log_dirs == [first, second]
    broker.commit(
        BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=0, cordoned_log_dirs=[first, second])
    )
    broker.log_manager.cordoned = []
    broker.runtime.advance(INTERVAL_S)
    assert broker.beats[-1].cordoned_log_dirs == []


def test_an_error_of_a_later_release_ends_no_heartbeats() -> None:
    broker = Broker()
    broker.error = 31_999
    broker.runtime.advance(2 * INTERVAL_S)
    before = len(broker.beats)
    broker.runtime.advance(5 * INTERVAL_S)
    assert len(broker.beats) > before + 2
