"""A broker's heartbeats: what they say of the metadata, and when they come."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from barnabas.broker.cluster.broker_lifecycle import (
    BROKER_HEARTBEAT,
    BROKER_REGISTRATION,
    LEAVING_CHECK_S,
    LEAVING_CHECKS,
    BrokerLifecycle,
    Event,
    State,
    UnexpectedEvent,
    next_state,
)
from barnabas.controller.metadata.controller import Controller
from barnabas.controller.metadata.decision import Decision
from barnabas.controller.metadata.local_log import LocalMetadataLog
from barnabas.testing.memory_disk import MemoryDisk
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.broker_heartbeat import BrokerHeartbeatResponse
from barnabas.wire.messages.broker_registration import BrokerRegistrationResponse
from barnabas.wire.messages.metadata_records import BrokerRegistrationChangeRecord, RegisterBrokerRecord
from barnabas.wire.uuids import uuid_to_string
from compat_tests.virtual.runtime import VirtualRuntime

INTERVAL_S = 2.0
SESSION_S = 9.0


class Broker:
    """Broker 1 of the metadata that a test writes, under a controller that unfences all brokers."""

    def __init__(self) -> None:
        self.runtime = VirtualRuntime()
        self.controller = Controller(LocalMetadataLog(MemoryDisk(), "/m", self.runtime))
        self.controller.open()
        self.controller.serve()
        self.beats: list[Any] = []
        self.registration_errors: list[ErrorCode] = []  # that the next registrations are answered with
        self.error = 0  # what a heartbeat is answered with
        self.is_fenced = False
        self.answer_delay_s: float | None = 0.0  # None: there is no answer
        self.roles_due: list[Callable[[], object]] | None = (
            None  # who waits for roles; None: they are taken at once
        )
        self.log_manager: Any = SimpleNamespace(
            directories=SimpleNamespace(online_ids=list, offline={}, cordoned=[], id_of=uuid_to_string),
            registered=lambda _: None,
        )
        self.registrations: list[Any] = []
        self.fatal: list[str] = []
        self.served = 0  # how often it has begun to serve
        self.has_quorum_ended: Callable[[], bool] = lambda: False
        config: Any = SimpleNamespace(
            node_id=1,
            broker_heartbeat_interval_ms=INTERVAL_S * 1000,
            broker_session_timeout_ms=SESSION_S * 1000,
            broker_rack=None,
        )
        channel: Any = SimpleNamespace(send=self.send, when_at=lambda _, call: call())
        self.lifecycle = BrokerLifecycle(
            self.runtime,
            config,
            self.controller,
            channel,
            cast("Any", self.log_manager),
            "cluster",
            [],
            previous_broker_epoch=-1,
            when_roles_taken=self.when_roles_taken,
            open_partitions=lambda opened: opened(),
            on_serving=self.serve,
            has_quorum_ended=lambda: self.has_quorum_ended(),
            on_fatal=self.fatal.append,
        )
        for broker_id in (1, 2):
            self.commit(RegisterBrokerRecord(broker_id=broker_id, broker_epoch=broker_id - 1, fenced=False))
        self.lifecycle.start()
        self.runtime.advance(0)

    def send(self, key: int, request: Any, done: Callable[[Any, ErrorCode], object], **_: float) -> None:
        if key == BROKER_REGISTRATION:
            self.registrations.append(request)
            error = self.registration_errors.pop(0) if self.registration_errors else ErrorCode.NONE
            answered = BrokerRegistrationResponse(error_code=error, broker_epoch=len(self.registrations) - 1)
            done(answered, ErrorCode.NONE)
            return
        assert key == BROKER_HEARTBEAT
        self.beats.append(request)
        answer = BrokerHeartbeatResponse(error_code=self.error, is_caught_up=True, is_fenced=self.is_fenced)
        if self.answer_delay_s is not None:
            self.runtime.call_later(self.answer_delay_s, lambda: done(answer, ErrorCode.NONE))

    def serve(self) -> None:
        self.served += 1

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


def test_a_broker_reports_at_once_that_it_has_applied_anothers_shutdown() -> None:
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


def test_a_broker_reports_an_offset_when_its_partitions_have_applied_it() -> None:
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


def test_a_broker_that_leaves_does_not_wait_when_most_voters_have_ended() -> None:
    broker = Broker()
    gone: list[float] = []
    begun = broker.runtime.monotonic()
    broker.lifecycle.leave(lambda: gone.append(broker.runtime.monotonic() - begun), 30)
    broker.runtime.advance(5)
    assert gone == [], "others may take over yet"
    looks = iter([True, True, False, True, True, True])
    broker.has_quorum_ended = lambda: next(looks)
    broker.runtime.advance(0.45)
    assert gone == [], "a voter has come back"
    broker.runtime.advance(0.2)
    assert len(gone) == 1
    broker.runtime.advance(60)
    assert len(gone) == 1


def test_a_shutdown_requested_twice_happens_once_and_calls_both() -> None:
    broker = Broker()
    gone: list[str] = []
    broker.lifecycle.leave(lambda: gone.append("first"), 30)
    broker.runtime.advance(1)
    broker.lifecycle.leave(lambda: gone.append("second"), 30)
    assert not gone
    broker.has_quorum_ended = lambda: True
    broker.runtime.advance(LEAVING_CHECK_S * (LEAVING_CHECKS - 0.5))
    assert not gone, "the quorum is checked once in that time, not twice"
    broker.runtime.advance(LEAVING_CHECK_S)
    assert gone == ["first", "second"]


def test_heartbeats_report_directories_that_are_cordoned_and_uncordoned() -> None:
    broker = Broker()
    assert broker.beats[-1].cordoned_log_dirs is None
    first, second = (bytes([number]) * 16 for number in (1, 2))
    broker.log_manager.directories.cordoned = [second, first]
    broker.runtime.advance(INTERVAL_S)
    assert broker.beats[-1].cordoned_log_dirs == [first, second]
    broker.commit(
        BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=0, cordoned_log_dirs=[first, second])
    )
    broker.log_manager.directories.cordoned = []
    broker.runtime.advance(INTERVAL_S)
    assert broker.beats[-1].cordoned_log_dirs == []


def test_an_error_of_a_later_release_ends_no_heartbeats() -> None:
    broker = Broker()
    broker.error = 31_999
    broker.runtime.advance(2 * INTERVAL_S)
    before = len(broker.beats)
    broker.runtime.advance(5 * INTERVAL_S)
    assert len(broker.beats) > before + 2


@pytest.mark.parametrize(
    ("events", "states"),
    [
        ("REGISTERED OPENED UNFENCED", "CATCHING_UP FENCED SERVING"),
        (
            "REGISTERED OPENED UNFENCED UNFENCED FENCED FENCED",
            "CATCHING_UP FENCED SERVING SERVING FENCED FENCED",
        ),
        ("REGISTERED OPENED REGISTRATION_LOST REGISTERED", "CATCHING_UP FENCED REGISTERING_AGAIN FENCED"),
        ("LEAVE", "GONE"),
        ("REGISTERED LEAVE", "CATCHING_UP GONE"),
        ("REGISTERED OPENED LEAVE FENCED SHUT_DOWN", "CATCHING_UP FENCED LEAVING LEAVING GONE"),
        (
            "REGISTERED OPENED UNFENCED LEAVE UNFENCED REGISTRATION_LOST REGISTERED SHUT_DOWN",
            "CATCHING_UP FENCED SERVING LEAVING LEAVING LEAVING_UNREGISTERED LEAVING GONE",
        ),
        (
            "REGISTERED OPENED REGISTRATION_LOST LEAVE SHUT_DOWN SHUT_DOWN LEAVE",
            "CATCHING_UP FENCED REGISTERING_AGAIN LEAVING_UNREGISTERED GONE GONE GONE",
        ),
    ],
)
def test_the_states_from_registration_to_shutdown(events: str, states: str) -> None:
    state, passed = State.REGISTERING, []
    for name in events.split():
        state = next_state(state, Event[name])
        passed.append(state.name)
    assert passed == states.split()


@pytest.mark.parametrize(
    ("state", "event"),
    [
        (State.REGISTERING, Event.UNFENCED),
        (State.REGISTERING, Event.OPENED),
        (State.CATCHING_UP, Event.REGISTERED),
        (State.CATCHING_UP, Event.FENCED),
        (State.FENCED, Event.OPENED),
        (State.SERVING, Event.REGISTERED),
        (State.REGISTERING_AGAIN, Event.UNFENCED),
        (State.LEAVING, Event.OPENED),
        (State.LEAVING_UNREGISTERED, Event.FENCED),
        (State.GONE, Event.REGISTERED),
    ],
)
def test_an_event_that_a_state_does_not_list_is_an_error(state: State, event: Event) -> None:
    with pytest.raises(UnexpectedEvent, match=f"{event.name} of a broker that is {state.name}"):
        next_state(state, event)


@pytest.mark.parametrize("state", list(State))
def test_every_state_can_be_shut_down(state: State) -> None:
    assert next_state(state, Event.SHUT_DOWN) is State.GONE


def test_a_broker_whose_registration_is_lost_registers_again_before_it_sends_heartbeats() -> None:
    broker = Broker()
    broker.runtime.advance(INTERVAL_S)
    (first,) = broker.registrations
    assert (broker.lifecycle.state, broker.served) == (State.SERVING, 1)
    broker.error = ErrorCode.STALE_BROKER_EPOCH
    broker.registration_errors = [ErrorCode.DUPLICATE_BROKER_REGISTRATION, ErrorCode.REQUEST_TIMED_OUT]
    broker.beats.clear()
    broker.lifecycle.heartbeat_now()
    broker.runtime.advance(0.05)
    assert broker.lifecycle.state.name == "REGISTERING_AGAIN"
    assert not broker.lifecycle.has_session()
    broker.error = ErrorCode.NONE
    broker.lifecycle.heartbeat_now()  # without a registration it would be refused
    assert len(broker.beats) == 1
    broker.runtime.advance(0.5)
    assert [each.previous_broker_epoch for each in broker.registrations] == [-1, 0, 0, 0]
    assert broker.registrations[-1].incarnation_id != first.incarnation_id
    assert broker.lifecycle.state.name == "SERVING"
    assert broker.beats[1].broker_epoch == broker.lifecycle.broker_epoch == 3


def test_a_broker_that_the_cluster_refuses_ends() -> None:
    broker = Broker()
    broker.error = ErrorCode.STALE_BROKER_EPOCH
    broker.registration_errors = [ErrorCode.INCONSISTENT_CLUSTER_ID]
    broker.lifecycle.heartbeat_now()
    broker.runtime.advance(INTERVAL_S)
    (why,) = broker.fatal
    assert "belong to another cluster" in why


def test_a_broker_that_leaves_before_it_is_registered_waits_for_nothing() -> None:
    broker = Broker()
    broker.lifecycle.stop()
    gone: list[bool] = []
    broker.lifecycle.leave(lambda: gone.append(True), 30)
    assert gone == [True]
    broker.beats.clear()
    broker.runtime.advance(10 * INTERVAL_S)
    assert broker.beats == []


def test_a_broker_whose_disk_refuses_appends_requests_to_be_fenced_until_it_is() -> None:
    broker = Broker()
    broker.runtime.advance(INTERVAL_S)
    broker.beats.clear()
    broker.is_fenced = True  # which the controller then says
    broker.lifecycle.hand_over()
    broker.runtime.advance(0.05)
    assert [beat.want_fence for beat in broker.beats] == [True]
    assert broker.lifecycle.state.name == "FENCED"
    broker.is_fenced = False
    broker.runtime.advance(1)
    assert [beat.want_fence for beat in broker.beats][1:] == [False]
    assert broker.lifecycle.state.name == "SERVING"
    broker.lifecycle.hand_over()  # not more often than every HAND_OVER_S
    assert len(broker.beats) == 2
