"""Raw protocol access: frames, a few requests and record batches as bytes, over a plain socket.

For input that no client library can send. Encodes only what the tests need, field by field, independent of the broker's
own codec.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Final

import crc32c

STARTED_MS: Final = int(time.time() * 1000)
"""The timestamp of records whose time does not matter. With a fixed one in the past, retention removes them from brokers that
run for half a minute, which is when it looks first."""


def string(text: str | None) -> bytes:
    """STRING or NULLABLE_STRING of the non-flexible versions."""
    if text is None:
        return b"\xff\xff"
    data = text.encode()
    return struct.pack(">h", len(data)) + data


def array(items: Sequence[bytes]) -> bytes:
    """ARRAY of the non-flexible versions."""
    return struct.pack(">i", len(items)) + b"".join(items)


def varint(value: int) -> bytes:
    """UNSIGNED_VARINT."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def zigzag(value: int) -> bytes:
    """Signed VARINT / VARLONG as records use it."""
    return varint((value << 1) ^ (value >> 63))


def request(
    api_key: int, version: int, body: bytes, correlation: int = 7, *, flexible: bool = False
) -> bytes:
    """A request without its length prefix: header v1, or v2 when flexible."""
    header = struct.pack(">hhi", api_key, version, correlation) + string("raw")
    return header + (b"\x00" if flexible else b"") + body


def record(value: bytes, offset_delta: int = 0, timestamp_delta: int = 0) -> bytes:
    """One record of a v2 batch, without key and headers."""
    body = b"\x00" + zigzag(timestamp_delta) + zigzag(offset_delta) + zigzag(-1) + zigzag(len(value)) + value
    body += zigzag(0)
    return zigzag(len(body)) + body


def batch(
    records: bytes,
    count: int = 1,
    last_offset_delta: int | None = None,
    *,
    attributes: int = 0,
    timestamp: int = STARTED_MS,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    magic: int = 2,
    crc: int | None = None,
) -> bytes:
    """A v2 record batch with the given header fields; the CRC is computed unless given."""
    delta = count - 1 if last_offset_delta is None else last_offset_delta
    body = struct.pack(
        ">hiqqqhii",
        attributes,
        delta,
        timestamp,
        timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        count,
    )
    body += records
    checksum = crc32c.crc32c(body) if crc is None else crc
    return struct.pack(">qiibI", 0, len(body) + 9, -1, magic, checksum) + body


def good_batch(*values: bytes) -> bytes:
    """A valid batch of values."""
    return batch(b"".join(record(value, delta) for delta, value in enumerate(values)), len(values))


class RawConnection:
    """A socket that sends and receives frames; `ask` returns the body after the correlation id."""

    def __init__(self, address: str, timeout: float = 60) -> None:
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout=timeout)

    def __enter__(self) -> RawConnection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()

    def send(self, payload: bytes) -> None:
        """Send a frame with the right length."""
        self.socket.sendall(struct.pack(">i", len(payload)) + payload)

    def receive(self) -> bytes:
        """The next frame's payload; EOFError when the broker closed the connection."""
        (length,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(length)

    def ask(self, payload: bytes) -> bytes:
        """Send a request and return the response behind its correlation id."""
        self.send(payload)
        answer = self.receive()
        assert answer[:4] == payload[4:8], "the answer has another correlation id"
        return answer[4:]

    def is_closed(self, timeout: float = 60) -> bool:
        """Whether the broker closes the connection within the time, answering nothing before."""
        self.socket.settimeout(timeout)
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True
        except TimeoutError:
            return False

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            chunk = self.socket.recv(count - len(data))
            if not chunk:
                raise EOFError("the broker closed the connection")
            data += chunk
        return data


def produce(
    connection: RawConnection, topic: str, *batches: bytes, partition: int = 0, acks: int = -1
) -> tuple[int, int]:
    """Produce v7 to one partition: (error code, base offset)."""
    return produce_many(connection, topic, {partition: b"".join(batches)}, acks)[partition]


def produce_many(
    connection: RawConnection, topic: str, records: dict[int, bytes], acks: int = -1
) -> dict[int, tuple[int, int]]:
    """Produce v7 (acks 1 or -1 for all) to several partitions of a topic: partition -> (error code, base offset)."""
    partitions = [struct.pack(">ii", number, len(data)) + data for number, data in records.items()]
    body = string(None) + struct.pack(">hi", acks, 10_000) + array([string(topic) + array(partitions)])
    answer = connection.ask(request(0, 7, body))
    position = 4 + 2 + len(topic)
    (count,) = struct.unpack_from(">i", answer, position)
    position += 4
    found: dict[int, tuple[int, int]] = {}
    for _ in range(count):
        index, error, base_offset = struct.unpack_from(">ihq", answer, position)
        found[index] = (error, base_offset)
        position += 4 + 2 + 8 + 8 + 8
    return found


def fetch(
    connection: RawConnection,
    topic: str,
    offset: int,
    partition: int = 0,
    *,
    max_bytes: int = 1 << 20,
    min_bytes: int = 1,
    max_wait_ms: int = 500,
) -> tuple[int, int, bytes]:
    """Fetch v4 of one partition: (error code, high watermark, records)."""
    partitions = array([struct.pack(">iqi", partition, offset, max_bytes)])
    body = struct.pack(">iiiib", -1, max_wait_ms, min_bytes, 50 << 20, 0) + array(
        [string(topic) + partitions]
    )
    answer = connection.ask(request(1, 4, body))
    position = 4 + 4 + 2 + len(topic) + 4
    _, error, high_watermark, _, aborted = struct.unpack_from(">ihqqi", answer, position)
    position += 26 + max(aborted, 0) * 16
    (length,) = struct.unpack_from(">i", answer, position)
    return error, high_watermark, answer[position + 4 : position + 4 + max(length, 0)]


def api_versions_v0(connection: RawConnection) -> int:
    """Ask ApiVersions v0; its error code."""
    (error,) = struct.unpack_from(">h", connection.ask(request(18, 0, b"")))
    return int(error)
