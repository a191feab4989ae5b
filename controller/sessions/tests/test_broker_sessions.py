"""Broker sessions: registration, unfencing, expiry, killed brokers, controlled shutdown."""

from __future__ import annotations

import errno
from collections.abc import Callable
from functools import partial

import pytest

from barnabas.controller.extension import ConfigTables
from barnabas.controller.metadata import controller
from barnabas.controller.metadata.controller import STEP_RECORDS, Controller
from barnabas.controller.metadata.decision import Decision, Steps
from barnabas.controller.metadata.image import MetadataImage, PartitionState, partition_record
from barnabas.controller.metadata.local_log import LocalMetadataLog
from barnabas.controller.operations.topics import NewTopic, create_topics
from barnabas.controller.sessions.broker_sessions import RETRY_S, BrokerSessions
from barnabas.testing.memory_disk import MemoryDisk
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from barnabas.wire.messages.broker_registration import (
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
    Feature,
    Listener,
)
from barnabas.wire.messages.metadata_records import ClearElrRecord, FeatureLevelRecord, TopicRecord
from compat_tests.virtual.runtime import VirtualRuntime


class Settings:
    """The controller's configuration."""

    tables = ConfigTables()
    node_id = 100
    num_partitions = 1
    default_replication_factor = 3

    def value(self, name: str) -> str | None:
        return {
            "min.insync.replicas": "2",
            "unclean.leader.election.enable": "false",
            "broker.session.timeout.ms": "9000",
            "inter.broker.listener.name": "INSIDE",
        }.get(name)

    def topic_defaults(self) -> dict[str, str]:
        return {}


def registration(broker_id: int, incarnation: int, previous_epoch: int = -1) -> BrokerRegistrationRequest:
    return BrokerRegistrationRequest(
        broker_id=broker_id,
        cluster_id="cluster",
        incarnation_id=bytes([incarnation]) * 16,
        listeners=[Listener(name="INSIDE", host="h", port=broker_id)],
        features=[
            Feature(name="metadata.version", min_supported_version=7, max_supported_version=30),
            Feature(name="eligible.leader.replicas.version", max_supported_version=1),
        ],
        log_dirs=[bytes([broker_id + 100]) * 16],
        previous_broker_epoch=previous_epoch,
    )


class Cluster:
    """One controller, and brokers that a test moves by hand."""

    def __init__(self) -> None:
        self.runtime = VirtualRuntime(1)
        self.disk = MemoryDisk()
        self.controller = Controller(LocalMetadataLog(self.disk, "/m", self.runtime))
        self.controller.open()
        self.controller.serve()
        self.listening: set[int] = set()  # ports
        self.probed: list[int] = []
        self.sessions = BrokerSessions(self.controller, Settings(), self.runtime, "cluster", self.probe)
        self.sessions.start()
        self.run(lambda _: Decision([FeatureLevelRecord(name="metadata.version", feature_level=30)], None))
        self.run(
            lambda _: Decision(
                [FeatureLevelRecord(name="eligible.leader.replicas.version", feature_level=1)], None
            )
        )

    def probe(self, _host: str, port: int, result: Callable[[bool], object]) -> None:
        self.probed.append(port)
        self.runtime.call_later(0.001, lambda: result(port not in self.listening))

    @property
    def image(self) -> MetadataImage:
        return self.controller.image

    def run(self, operation: Callable[[MetadataImage], Decision[None]]) -> None:
        self.controller.run(operation, lambda _: None)
        self.settle()

    def run_in_steps(self) -> None:
        """Begin an operation behind which others wait."""

        def operation(_image: MetadataImage) -> Steps[None]:
            yield from [FeatureLevelRecord(name="later", feature_level=1)] * (STEP_RECORDS + 1)

        self.controller.run(operation, lambda _: None)

    def settle(self) -> None:
        self.runtime.advance(0.002)

    def register(
        self, broker_id: int, incarnation: int, previous_epoch: int = -1
    ) -> BrokerRegistrationResponse:
        self.listening.add(broker_id)
        answers: list[BrokerRegistrationResponse] = []
        self.sessions.register(registration(broker_id, incarnation, previous_epoch), answers.append)
        self.settle()
        (answer,) = answers
        return answer

    def beat(
        self, broker_id: int, epoch: int, *, want_shut_down: bool = False, offset: int | None = None
    ) -> BrokerHeartbeatResponse:
        answers: list[BrokerHeartbeatResponse] = []
        request = BrokerHeartbeatRequest(
            broker_id=broker_id,
            broker_epoch=epoch,
            current_metadata_offset=self.image.offset if offset is None else offset,
            want_shut_down=want_shut_down,
        )
        self.sessions.heartbeat(request, answers.append)
        self.settle()
        (answer,) = answers
        return answer

    def serve(self, *broker_ids: int) -> dict[int, int]:
        """Brokers that are registered, linked and unfenced: id -> epoch."""
        epochs = {}
        for broker_id in broker_ids:
            self.sessions.link_opened(broker_id, 1)
            epochs[broker_id] = self.register(broker_id, broker_id).broker_epoch
            assert not self.beat(broker_id, epochs[broker_id]).is_fenced
        return epochs

    def create(self, name: str = "t", partitions: int = 3) -> None:
        self.controller.run(
            lambda image: create_topics(
                image, [NewTopic(name, partitions)], Settings(), lambda _: name.encode() * 16
            ),
            lambda results: [print(result.message) for result in results],
        )
        self.settle()

    def leaders(self) -> list[int]:
        return [state.leader for state in self.image.topics["t"].partitions.values()]

    def in_sync(self) -> list[list[int]]:
        return [sorted(state.isr) for state in self.image.topics["t"].partitions.values()]


def test_a_broker_is_fenced_until_it_has_caught_up_with_its_registration() -> None:
    cluster = Cluster()
    answer = cluster.register(1, 1)
    assert (answer.error_code, answer.broker_epoch) == (0, cluster.image.offset)
    assert cluster.image.brokers[1].fenced
    answers: list[BrokerHeartbeatResponse] = []
    behind = BrokerHeartbeatRequest(
        broker_id=1, broker_epoch=answer.broker_epoch, current_metadata_offset=answer.broker_epoch - 1
    )
    cluster.sessions.heartbeat(behind, answers.append)
    cluster.settle()
    assert [(a.is_caught_up, a.is_fenced) for a in answers] == [(False, True)]
    got = cluster.beat(1, answer.broker_epoch)
    assert (got.is_caught_up, got.is_fenced, got.should_shut_down) == (True, False, False)
    assert not cluster.image.brokers[1].fenced


def test_a_stale_epoch_is_refused() -> None:
    cluster = Cluster()
    epochs = cluster.serve(1)
    assert cluster.beat(1, epochs[1] - 1).error_code == ErrorCode.STALE_BROKER_EPOCH
    assert cluster.beat(9, 1).error_code == ErrorCode.STALE_BROKER_EPOCH


def test_a_second_broker_with_an_id_is_refused_until_the_first_has_ended() -> None:
    cluster = Cluster()
    epochs = cluster.serve(1)
    assert cluster.register(1, 2).error_code == ErrorCode.DUPLICATE_BROKER_REGISTRATION
    cluster.runtime.advance(8.9)
    assert cluster.register(1, 2).error_code == ErrorCode.DUPLICATE_BROKER_REGISTRATION
    cluster.runtime.advance(0.2)
    assert cluster.register(1, 2).broker_epoch > epochs[1]


def test_a_restarted_broker_is_registered_at_once() -> None:
    cluster = Cluster()
    epochs = cluster.serve(1)
    cluster.sessions.link_closed(1, 1)
    cluster.sessions.link_opened(1, 2)  # the new process listens before it registers
    answer = cluster.register(1, 2)
    assert (answer.error_code, answer.broker_epoch > epochs[1]) == (0, True)


def test_the_same_incarnation_keeps_its_epoch() -> None:
    cluster = Cluster()
    epochs = cluster.serve(1)
    assert cluster.register(1, 1).broker_epoch == epochs[1]
    assert not cluster.image.brokers[1].fenced


def test_a_silent_broker_is_fenced_when_its_session_ends() -> None:
    cluster = Cluster()
    epochs = cluster.serve(1, 2, 3)
    cluster.create()
    assert cluster.leaders() == [1, 2, 3]
    for _ in range(4):
        cluster.runtime.advance(2)
        cluster.beat(1, epochs[1])
        cluster.beat(3, epochs[3])
    assert not cluster.image.brokers[2].fenced
    cluster.runtime.advance(1.1)
    assert [broker.fenced for broker in cluster.image.brokers.values()] == [False, True, False]
    assert cluster.leaders() == [1, 3, 3]
    assert cluster.in_sync() == [[1, 3]] * 3
    assert not cluster.beat(2, epochs[2]).is_fenced  # it lives after all
    assert cluster.leaders() == [1, 3, 3]


def test_a_killed_broker_is_fenced_at_once_and_one_whose_link_breaks_is_not() -> None:
    cluster = Cluster()
    cluster.serve(1, 2, 3)
    cluster.create()
    cluster.sessions.link_closed(3, 1)
    cluster.runtime.advance(0.005)
    assert not cluster.image.brokers[3].fenced
    cluster.sessions.link_opened(3, 2)
    probed = len(cluster.probed)
    cluster.runtime.advance(2)
    assert len(cluster.probed) == probed  # no probe while there is a link
    cluster.listening.remove(2)
    cluster.sessions.link_closed(2, 1)
    cluster.runtime.advance(0.01)
    assert [broker.fenced for broker in cluster.image.brokers.values()] == [False, True, False]
    assert cluster.leaders() == [1, 3, 3]


def test_a_process_that_ends_slowly_is_probed_again() -> None:
    cluster = Cluster()
    cluster.serve(1, 2)
    cluster.sessions.link_closed(2, 1)
    cluster.runtime.advance(0.02)
    cluster.listening.remove(2)
    cluster.runtime.advance(0.1)
    assert cluster.image.brokers[2].fenced


def test_a_new_active_controller_begins_sessions_and_probes_unlinked_brokers() -> None:
    cluster = Cluster()
    epochs = cluster.serve(1, 2, 3)
    cluster.create()
    cluster.sessions.close()
    cluster.listening.remove(2)
    cluster.sessions = BrokerSessions(
        cluster.controller, Settings(), cluster.runtime, "cluster", cluster.probe
    )
    cluster.sessions.link_opened(1, 7)
    cluster.sessions.start()
    cluster.runtime.advance(0.01)
    assert cluster.image.brokers[2].fenced
    for _ in range(8):
        cluster.runtime.advance(1)
        cluster.beat(1, epochs[1])
    assert not cluster.image.brokers[3].fenced
    cluster.runtime.advance(1.1)
    assert cluster.image.brokers[3].fenced
    assert not cluster.image.brokers[1].fenced


def test_a_controlled_shutdown_ends_when_all_brokers_have_applied_it() -> None:
    cluster = Cluster()
    epochs = cluster.serve(1, 2, 3)
    cluster.create()
    got = cluster.beat(2, epochs[2], want_shut_down=True)
    assert (got.is_fenced, got.should_shut_down) == (False, False)
    assert cluster.leaders() == [1, 3, 3]
    assert cluster.in_sync() == [[1, 3]] * 3
    assert not cluster.beat(2, epochs[2], want_shut_down=True).should_shut_down
    cluster.beat(1, epochs[1])
    assert not cluster.beat(2, epochs[2], want_shut_down=True).should_shut_down
    cluster.beat(3, epochs[3])
    got = cluster.beat(2, epochs[2], want_shut_down=True)
    assert (got.is_fenced, got.should_shut_down) == (True, True)
    assert cluster.image.brokers[2].fenced
    cluster.sessions.link_closed(2, 1)
    again = cluster.register(2, 20, previous_epoch=epochs[2])
    assert again.error_code == 0
    assert not cluster.beat(2, again.broker_epoch).is_fenced


def test_a_broker_that_leads_nothing_may_shut_down_at_once() -> None:
    cluster = Cluster()
    epochs = cluster.serve(1)
    assert cluster.beat(1, epochs[1], want_shut_down=True).should_shut_down


def test_min_isr_survivors_of_unclean_restarts_stay_eligible() -> None:
    cluster = Cluster()
    epochs = cluster.serve(1, 2, 3)
    cluster.create(partitions=1)
    for broker_id in (1, 2):
        cluster.listening.remove(broker_id)
        cluster.sessions.link_closed(broker_id, 1)
        cluster.runtime.advance(0.01)
    (state,) = cluster.image.topics["t"].partitions.values()
    assert (state.leader, state.isr, state.eligible_leader_replicas) == (3, [3], [2])
    cluster.register(2, 22)  # without a clean stop
    (state,) = cluster.image.topics["t"].partitions.values()
    assert (state.leader, state.isr, state.eligible_leader_replicas) == (3, [3], [])
    assert epochs


def test_a_paused_controller_extends_all_sessions() -> None:
    cluster = Cluster()
    epochs = cluster.serve(1, 2)
    cluster.runtime.hold_until(cluster.runtime.monotonic() + 60)
    cluster.runtime.advance(61)
    assert not any(broker.fenced for broker in cluster.image.brokers.values())
    cluster.beat(1, epochs[1])
    cluster.runtime.advance(8.5)
    assert [broker.fenced for broker in cluster.image.brokers.values()] == [False, True]


def test_a_broker_that_could_not_be_fenced_is_fenced_later() -> None:
    cluster = Cluster()
    cluster.serve(1)
    cluster.disk.fault = lambda operation, _path: errno.ENOSPC if operation == "write" else None
    cluster.runtime.advance(9.5)
    assert not cluster.image.brokers[1].fenced
    cluster.disk.fault = None
    cluster.runtime.advance(0.5)
    assert cluster.image.brokers[1].fenced


def test_a_fencing_that_fails_at_once_is_retried_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As the log of a leader that has slept does, until it has looked at the clock."""
    cluster = Cluster()
    cluster.serve(1)
    asked = 0

    def refuse(_operation: object, _done: object, failed: Callable[[ErrorCode, str], object]) -> None:
        nonlocal asked
        asked += 1
        assert asked < 100, "it is asked again and again at one moment"
        failed(ErrorCode.NOT_CONTROLLER, "it has slept")

    with monkeypatch.context() as patches:
        patches.setattr(cluster.controller, "run", refuse)
        cluster.runtime.advance(9 + 10 * RETRY_S)
    assert 5 <= asked <= 12
    cluster.runtime.advance(2 * RETRY_S)
    assert cluster.image.brokers[1].fenced


def test_a_controlled_shutdown_does_not_wait_for_later_metadata() -> None:
    cluster = Cluster()
    epochs = cluster.serve(1, 2, 3)
    cluster.create()
    cluster.beat(2, epochs[2], want_shut_down=True)
    left = cluster.image.offset
    cluster.run(lambda _: Decision([FeatureLevelRecord(name="later", feature_level=1)], None))
    cluster.beat(1, epochs[1], offset=left)
    cluster.beat(3, epochs[3], offset=left - 1)
    assert not cluster.beat(2, epochs[2], want_shut_down=True).should_shut_down
    cluster.beat(3, epochs[3], offset=left)
    assert cluster.image.offset > left
    assert cluster.beat(2, epochs[2], want_shut_down=True).should_shut_down


def test_a_new_active_controller_needs_heartbeats_of_all_before_a_shutdown() -> None:
    cluster = Cluster()
    epochs = cluster.serve(1, 2, 3)
    cluster.create()
    cluster.beat(2, epochs[2], want_shut_down=True)
    left = cluster.image.offset
    cluster.sessions.close()
    cluster.sessions = BrokerSessions(
        cluster.controller, Settings(), cluster.runtime, "cluster", cluster.probe
    )
    cluster.sessions.start()
    cluster.run(lambda _: Decision([FeatureLevelRecord(name="later", feature_level=1)], None))
    cluster.beat(1, epochs[1], offset=left)
    assert not cluster.beat(2, epochs[2], want_shut_down=True).should_shut_down
    cluster.beat(3, epochs[3], offset=left)
    assert cluster.beat(2, epochs[2], want_shut_down=True).should_shut_down


def test_an_inactive_controller_answers_not_controller() -> None:
    cluster = Cluster()
    epochs = cluster.serve(1)
    cluster.sessions.close()
    assert cluster.beat(1, epochs[1]).error_code == ErrorCode.NOT_CONTROLLER
    cluster.runtime.advance(20)
    assert not cluster.image.brokers[1].fenced


def test_min_isr_forgotten_survivors_are_a_change_of_the_partition() -> None:
    cluster = Cluster()
    cluster.serve(1, 2, 3)
    cluster.create(partitions=1)
    for broker_id in (1, 2):
        cluster.listening.remove(broker_id)
        cluster.sessions.link_closed(broker_id, 1)
        cluster.runtime.advance(0.01)
    (before,) = cluster.image.topics["t"].partitions.values()
    cluster.run(lambda _: Decision([ClearElrRecord(topic_name="t")], None))
    (after,) = cluster.image.topics["t"].partitions.values()
    assert (after.eligible_leader_replicas, after.partition_epoch) == ([], before.partition_epoch + 1)
    assert after.leader_epoch == before.leader_epoch


def test_a_broker_that_has_ended_before_its_heartbeat_is_decided_is_fenced_at_once() -> None:
    """The heartbeat waits behind an operation in steps meanwhile."""
    cluster = Cluster()
    cluster.serve(1)
    epoch = cluster.register(2, 2).broker_epoch
    cluster.sessions.link_opened(2, 1)
    cluster.run_in_steps()
    request = BrokerHeartbeatRequest(
        broker_id=2, broker_epoch=epoch, current_metadata_offset=cluster.image.offset
    )
    answers: list[BrokerHeartbeatResponse] = []
    cluster.sessions.heartbeat(request, answers.append)
    assert not answers
    cluster.listening.discard(2)
    cluster.sessions.link_closed(2, 1)
    cluster.runtime.advance(0.1)
    assert [answer.is_fenced for answer in answers] == [False]
    assert cluster.image.brokers[2].fenced


def test_of_two_incarnations_that_register_the_later_one_stays() -> None:
    """The first has ended before its registration is decided, as both wait behind an operation in steps."""
    cluster = Cluster()
    cluster.run_in_steps()
    answers: list[BrokerRegistrationResponse] = []
    for incarnation in (7, 8):
        cluster.sessions.register(registration(1, incarnation), answers.append)
    assert not answers
    cluster.settle()
    assert cluster.image.brokers[1].incarnation_id == bytes([8]) * 16
    assert cluster.image.brokers[1].broker_epoch == answers[1].broker_epoch > answers[0].broker_epoch


@pytest.mark.parametrize("ends", [False, True])
def test_a_broker_is_watched_from_the_step_that_unfences_it(
    monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    """The next step can't be written, and nothing more is heard of the broker: it hangs, or its process has ended."""
    monkeypatch.setattr(controller, "STEP_RECORDS", 1)
    cluster = Cluster()
    cluster.sessions.link_opened(1, 1)
    epoch = cluster.register(1, 1).broker_epoch
    state = PartitionState([1], [1], leader=-1, leader_epoch=1, partition_epoch=1)
    topic = TopicRecord(name="t", topic_id=b"t" * 16)
    cluster.run(lambda _: Decision([topic, partition_record(topic.topic_id, 0, state)], None))

    def full(image: MetadataImage) -> None:
        if not image.brokers[1].fenced:
            cluster.disk.fault = lambda operation, _: errno.ENOSPC if operation == "write" else None

    cluster.controller.add_image_listener(full)
    assert cluster.beat(1, epoch).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert not cluster.image.brokers[1].fenced
    cluster.disk.fault = None
    cluster.controller._image_listeners.remove(full)
    if ends:
        cluster.listening.discard(1)
        cluster.sessions.link_closed(1, 1)
        cluster.runtime.advance(0.1)
    else:
        cluster.runtime.advance(9.1)
    assert cluster.image.brokers[1].fenced


def test_a_broker_that_is_heard_of_while_its_fencing_waits_is_not_fenced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster()
    epochs = cluster.serve(1, 2)
    cluster.runtime.advance(5)
    cluster.beat(1, epochs[1])
    changes: list[bool] = []
    cluster.controller.add_broker_listener(lambda image, _: changes.append(image.brokers[2].fenced))
    cluster.runtime.thread_delay_s = lambda: 1.0
    cluster.runtime.advance(3.9)
    cluster.run_in_steps()
    cluster.runtime.advance(0.2)  # the session of 2 ends behind that
    answers: list[BrokerHeartbeatResponse] = []
    request = BrokerHeartbeatRequest(
        broker_id=2, broker_epoch=epochs[2], current_metadata_offset=cluster.image.offset
    )
    cluster.sessions.heartbeat(request, answers.append)
    assert not answers
    cluster.runtime.advance(8)
    assert [answer.is_fenced for answer in answers] == [False]
    assert True not in changes
    cluster.runtime.advance(20)
    assert cluster.image.brokers[2].fenced


def test_a_broker_that_was_unfenced_meanwhile_has_to_apply_a_shutdown_too() -> None:
    """The heartbeat of broker 1, which may stop when it arrives, waits behind that of broker 3."""
    cluster = Cluster()
    epochs = cluster.serve(1, 2)
    epochs[3] = cluster.register(3, 3).broker_epoch
    cluster.sessions.link_opened(3, 1)
    cluster.create()
    cluster.beat(1, epochs[1], want_shut_down=True)
    leaving = cluster.image.offset
    cluster.beat(2, epochs[2])
    cluster.run_in_steps()
    answers: dict[int, BrokerHeartbeatResponse] = {}
    for broker_id, offset in ((3, epochs[3]), (1, leaving)):
        request = BrokerHeartbeatRequest(
            broker_id=broker_id,
            broker_epoch=epochs[broker_id],
            current_metadata_offset=offset,
            want_shut_down=broker_id == 1,
        )
        cluster.sessions.heartbeat(request, partial(answers.__setitem__, broker_id))
    cluster.settle()
    assert (answers[3].is_fenced, answers[1].should_shut_down) == (False, False)
    cluster.beat(3, epochs[3])
    assert cluster.beat(1, epochs[1], want_shut_down=True).should_shut_down
