"""Number of committed records of a topic, by raw ListOffsets requests, which are fast enough for a hundred a second."""

from __future__ import annotations

import struct

from compat_tests.bench.driver import Connection

_LIST_OFFSETS = 2
_VERSION = 1
_LATEST = -1


class TopicEnd:
    """The ends of a topic's partitions at its one broker; `with` closes the connection."""

    def __init__(self, address: str, topic: str, partitions: int) -> None:
        self._connection = Connection(address, 1 << 16)
        name = struct.pack(f">h{len(topic)}s", len(topic), topic.encode())
        asked = b"".join(struct.pack(">iq", index, _LATEST) for index in range(partitions))
        header = struct.pack(">hhihi", _LIST_OFFSETS, _VERSION, 1, -1, -1)
        body = header + struct.pack(">i", 1) + name + struct.pack(">i", partitions) + asked
        self._request = struct.pack(">i", len(body)) + body
        self._partitions = partitions
        self._start = 4 + 4 + 4 + len(name) + 4

    def __call__(self) -> int:
        """The sum of the high watermarks."""
        response = self._connection.ask(self._request)
        total = 0
        for index in range(self._partitions):
            _, error, _, offset = struct.unpack_from(">ihqq", response, self._start + 22 * index)
            assert error == 0, f"partition {index}: error {error}"
            total += offset
        return total

    def __enter__(self) -> TopicEnd:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._connection.close()
