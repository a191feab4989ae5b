"""What an ingest does with what waits while logs refuse and leaders move, over real partitions of two replicas."""

from __future__ import annotations

import itertools
import logging
from typing import Any

import pytest

from barnabas.broker.partitions.partition import Partition
from barnabas.broker.tests.replicas import Replicas
from barnabas.nats.binding.binding import Binding
from barnabas.nats.ingress.lane import RETRY_MAX_S
from barnabas.nats.tests.ingests import make_ingest
from barnabas.storage.errors import StorageError
from barnabas.wire.errors import ErrorCode


class Taker:
    """The ingest of one of the brokers, which is told of roles when the test says so."""

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
        self.ingest.serve(*((hosted, {}) if self.partition.is_leader else ({}, hosted)))

    def take(self, *values: str) -> None:
        for value in values:
            self._encoder_take(b"a.b", b"", b"", value.encode())
        self.ingest.close()


def test_who_waited_for_a_log_that_another_one_leads_now_lets_go() -> None:
    replicas = Replicas(ids=(1, 2))
    taker = Taker(replicas, 1, buffer_bytes=1000)
    replicas.run()
    replicas[1].partition.follow(replicas[2].partition.state)  # it was told to go, and the ingest was not yet
    taker.take("x" * 2000)
    assert taker.fullness == [True]
    taker.refresh()
    assert taker.fullness == [True, False]


def test_a_leader_that_others_have_followed_and_gone_before_does_not_append_what_they_have() -> None:
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


def test_a_log_that_refuses_for_long_is_asked_seldom_and_told_of_once(
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
