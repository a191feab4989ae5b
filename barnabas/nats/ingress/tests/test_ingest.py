"""Messages that wait while logs fail and leaders move, over real partitions of two replicas."""

from __future__ import annotations

import itertools
import logging
from typing import Any

import pytest

from barnabas.broker.partitions.partition import Partition
from barnabas.broker.tests.replicas import Replicas
from barnabas.nats.binding.binding import Binding
from barnabas.nats.ingress.lane import RETRY_MAX_S
from barnabas.nats.ingress.roles import Roles
from barnabas.nats.tests.ingests import make_ingest
from barnabas.storage.errors import StorageError
from barnabas.wire.errors import ErrorCode


class Taker:
    """The ingest of one broker; the test calls `refresh` to give it the roles."""

    def __init__(self, replicas: Replicas, broker_id: int, **binding: Any) -> None:
        replica = replicas[broker_id]
        self.partition = replica.partition
        self.fullness: list[bool] = []
        self.ingest = make_ingest(
            replica.runtime,
            Binding("t", subjects=("a.>",), **binding),
            lambda _data, _count: None,
            on_full=self.fullness.append,
        )
        self._encoder_take = self.ingest.encoder().take
        self.refresh()

    def refresh(self) -> None:
        hosted = {0: self.partition}
        self.ingest.serve(Roles(hosted, {}) if self.partition.is_leader else Roles({}, hosted))

    def take(self, *values: str) -> None:
        for value in values:
            self._encoder_take(b"a.b", b"", b"", value.encode())
        self.ingest.close()


def test_messages_that_waited_are_dropped_when_another_broker_leads() -> None:
    replicas = Replicas(ids=(1, 2))
    taker = Taker(replicas, 1, buffer_bytes=1000)
    replicas.run()
    replicas[1].partition.follow(replicas[2].partition.state)  # it was told to go, and the ingest was not yet
    taker.take("x" * 2000)
    assert taker.fullness == [True]
    taker.refresh()
    assert taker.fullness == [True, False]


def test_a_leader_again_does_not_append_what_leaders_between_have_appended() -> None:
    replicas = Replicas(ids=(1, 2))
    first, second = Taker(replicas, 1), Taker(replicas, 2)
    for taker in (first, second):
        taker.take("1", "2")
    replicas.run()
    replicas.elect(2, [1, 2])
    second.refresh()  # the first one's ingest hears of nothing
    for taker in (first, second):
        taker.take("3", "4")
    replicas.run(2)
    assert replicas[1].messages == ["1", "2", "3", "4"]
    replicas.elect(1, [1, 2])
    for taker in (first, second):
        taker.take("5")
        taker.refresh()
    replicas.run(3)
    assert replicas[1].messages == ["1", "2", "3", "4", "5"]
    replicas.check_identical()


def test_appends_to_a_failing_log_back_off_and_are_logged_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.WARNING, "barnabas.nats")
    replicas = Replicas(ids=(1, 2))
    taker = Taker(replicas, 1)
    full = StorageError(ErrorCode.KAFKA_STORAGE_ERROR, "there is no room")
    asked: list[float] = []

    def refuse(*_arguments: object) -> None:
        asked.append(replicas.world.now)
        raise full

    with monkeypatch.context() as patch:
        patch.setattr(Partition, "append", refuse)
        taker.take("1")
        replicas.run(30)
        taker.take("2")
    assert 30 <= len(asked) <= 35
    assert max(later - sooner for sooner, later in itertools.pairwise(asked)) <= RETRY_MAX_S + 0.01
    assert caplog.text.count("there is no room") == 1
    replicas.run(2)
    assert replicas[1].messages == ["1", "2"]
