"""The sizes of sockets' buffers: those that are set, or ours."""

from __future__ import annotations

from typing import Any

import pytest

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.network.listeners import SEND_BUFFER_BYTES, SYSTEM_BUFFER, Listeners


class Recorded(Exception):
    """Ends `Listeners.open` where the socket would be made."""


class RecordingRuntime:
    def listen(self, *_: Any, send_buffer_bytes: int, receive_buffer_bytes: int) -> None:
        raise Recorded(send_buffer_bytes, receive_buffer_bytes)


@pytest.mark.parametrize(
    ("properties", "sizes"),
    [
        ({}, (SEND_BUFFER_BYTES, SYSTEM_BUFFER)),
        ({"socket.send.buffer.bytes": "20000"}, (20_000, SYSTEM_BUFFER)),
        ({"socket.send.buffer.bytes": "102400", "socket.receive.buffer.bytes": "10000"}, (102_400, 10_000)),
        ({"socket.send.buffer.bytes": "-1"}, (-1, SYSTEM_BUFFER)),
    ],
)
def test_sizes_count_where_they_are_set(properties: dict[str, str], sizes: tuple[int, int]) -> None:
    config = BrokerConfig.from_properties(properties)
    runtime: Any = RecordingRuntime()
    connections: Any = None
    with pytest.raises(Recorded) as recorded:
        Listeners(runtime, config, connections, {}, None, {}).open()
    assert recorded.value.args == sizes
