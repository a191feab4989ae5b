"""What the consumer of a stream logs when it fails again and again, under a virtual clock."""

from __future__ import annotations

import logging
from unittest.mock import MagicMock

import pytest

from barnabas.nats.jetstream.ack_subject import Delivery
from barnabas.nats.jetstream.consumer import BLOCKED_RETRY_S, StreamConsumer
from barnabas.nats.tests.stream_world import binding
from barnabas.runtime.repeated_warnings import INTERVAL_S
from barnabas.wire.errors import ErrorCode
from compat_tests.virtual.runtime import VirtualRuntime


class RefusedAtOnce(StreamConsumer):
    """Its set-up succeeds; then the first message is refused for a reason that an administrator must correct."""

    set_ups = 0

    async def _set_up(self) -> None:
        self.set_ups += 1
        self._runtime.call_later(0.1, lambda: self._block("its record is too large"))

    def _take(self, subject: bytes, reply: bytes, header_block: bytes, payload: bytes) -> None:
        raise AssertionError

    def _received(self, count: int, size: int, last: Delivery | None) -> None:
        raise AssertionError

    def _refused(self, index: int, count: int, error: ErrorCode, why: str) -> None:
        raise AssertionError

    def _pull_failed(self, why: str) -> None:
        raise AssertionError

    def _run_ended(self) -> None:
        """No run was begun."""

    def _stopped(self) -> None:
        """Nothing is left to close."""


def test_a_blocked_stream_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "barnabas.nats")
    runtime = VirtualRuntime()
    consumer = RefusedAtOnce(runtime, MagicMock(), binding(), MagicMock(), None)
    consumer.start({})
    minutes = 5
    runtime.advance(minutes * INTERVAL_S)
    assert consumer.set_ups > minutes * INTERVAL_S / BLOCKED_RETRY_S / 2
    assert consumer.state.startswith("blocked")
    consumer.stop()
    assert caplog.text.count("its record is too large") <= minutes + 1
    assert caplog.text.count("is read again") <= minutes + 1
