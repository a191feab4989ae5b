"""The floor: what this machine's system calls cost, without a broker around them.

A process that does for the bench's prepared requests what a log over sockets can't do without: epoll, recv, one pwrite for what has
come in, one send for its answers, sendfile for a fetch. It checks, counts and promises nothing: no CRC, no index, no topic but the
last one named. It is a Python loop, which takes about 4 us of a small request; of a large one its share does not
matter. With followers, processes like it that fetch from it and write what they get, it acknowledges to acks=all what all of them
have confirmed with their next fetch, and sends a few records in one piece, without sendfile.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import subprocess
import sys
import tempfile
from collections import deque
from typing import Final

from compat_tests.bench.prepared import CLIENT_ID, compact, fetch, unsigned_varint

_PRODUCE, _FETCH = 0, 1
_ACKS_ALL: Final = b"\xff\xff"
_HEADER: Final = (
    4 + 8 + 2 + len(CLIENT_ID) + 1
)  # of a request: its size, the fixed fields, the client's name, no tags
_ACKS: Final = _HEADER + 1
_PRODUCED_TOPIC: Final = _ACKS + 2 + 4 + 1  # where a Produce request has the topic's length
_REPLICA_ID: Final = _HEADER  # where a Fetch request has it
_FETCHED_TOPIC: Final = _HEADER + 4 + 4 + 4 + 4 + 1 + 4 + 4 + 1
_BUFFER: Final = 4 << 20
_ANSWERED_WHOLE: Final = 64 << 10  # requests above it are received to their end and no further
_ONE_PIECE: Final = 8 << 10  # of records: followers get as many in one send, without sendfile


class Floor:
    """The process, as far as the workloads know a broker: `bootstrap` and `pid`."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "compat_tests.bench.floor"], stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self.bootstrap = f"127.0.0.1:{int(self._process.stdout.readline())}"
        self.pid = self._process.pid
        self._topics = 0

    def new_topic(self) -> str:
        """The name of a topic, whose records replace those of the one before."""
        self._topics += 1
        return f"bench-{self._topics}"

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()


class ReplicatedFloor:
    """A leader and two followers of one topic, each a process. Both followers fetch when it is complete."""

    topic: Final = "bench"

    def __init__(self) -> None:
        command = [sys.executable, "-m", "compat_tests.bench.floor"]
        leader = subprocess.Popen([*command, "2"], stdout=subprocess.PIPE, text=True)
        self._processes = [leader]
        assert leader.stdout is not None
        self.address = f"127.0.0.1:{int(leader.stdout.readline())}"
        for replica_id in ("1", "2"):
            self._processes.append(
                subprocess.Popen([*command, self.address, self.topic, replica_id], text=True)
            )
        leader.stdout.readline()

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def stop(self) -> None:
        for process in reversed(self._processes):  # or the followers would see the leader go
            process.kill()
            process.wait()


class _Topic:
    """The records of one topic, in a file without a name."""

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - closed when there is a next topic
        self.end = 0  # in bytes
        self.next_offset = 0
        self.batches: dict[int, tuple[int, int]] = {}  # base offset -> position, size
        self.waiting: dict[int, list[_Client]] = {}  # offset -> whose fetches wait for it
        self.confirmed: dict[int, int] = {}  # replica id -> offset up to which the follower has the records
        self.uncommitted: deque[tuple[int, _Client, bytes]] = (
            deque()
        )  # answers and the offset that they wait for


class _Client:
    """One connection."""

    def __init__(self, connection: socket.socket, log: _Log) -> None:
        self.socket = connection
        self._log = log
        self._buffer = bytearray(_BUFFER)
        self._view = memoryview(self._buffer)
        self._filled = 0
        self._wanted = 0  # size of the request that has begun, when it is large

    def receive(self) -> bool:
        """Take what has come; False when the client has gone."""
        end = self._wanted or _BUFFER
        count = self.socket.recv_into(self._view[self._filled : end])
        if not count:
            return False
        self._filled += count
        start, filled = 0, self._filled
        while filled - start >= 4:
            size = 4 + int.from_bytes(self._buffer[start : start + 4], "big")
            if size > filled - start:
                self._wanted = size if size > _ANSWERED_WHOLE else 0
                break
            self._wanted = 0
            self._log.take(self, self._view[start : start + size])
            start += size
        self._log.finish(self)
        if start:
            self._buffer[: filled - start] = self._buffer[start:filled]
            self._filled = filled - start
        return True


class _Log:
    """The topic, and what is to be written and answered of the requests that came in one piece."""

    def __init__(self, followers: int) -> None:
        self._followers = followers
        self._topic = _Topic(b"")
        self._records: list[memoryview] = []
        self._answers: list[bytes] = []

    def take(self, client: _Client, request: memoryview) -> None:
        key = int.from_bytes(request[4:6], "big")
        if key == _PRODUCE:
            self._produce(client, request)
        elif key == _FETCH:
            self._fetch(client, request)
        else:  # ApiVersions, which only has to be answered
            self._answers.append(struct.pack(">iihi", 10, 1, 0, 0))

    def finish(self, client: _Client) -> None:
        """Write and answer."""
        topic = self._topic
        if self._records:
            topic.end += os.pwritev(topic.file.fileno(), self._records, topic.end)
            self._records.clear()
        if self._answers:
            client.socket.sendall(b"".join(self._answers))
            self._answers.clear()
        if topic.waiting:
            for offset in [each for each in topic.waiting if each in topic.batches]:
                for each in topic.waiting.pop(offset):
                    self._send(each, offset)

    def _produce(self, client: _Client, request: memoryview) -> None:
        position = _PRODUCED_TOPIC + request[_PRODUCED_TOPIC]
        name = bytes(request[_PRODUCED_TOPIC + 1 : position])
        topic = self._named(name)
        size, position = _varint(request, position + 1 + 4)
        batch = request[position : position + size - 1]
        written = topic.end + sum(map(len, self._records))
        offset = topic.next_offset
        topic.batches[offset] = (written, len(batch))
        topic.next_offset = offset + 1 + int.from_bytes(batch[23:27], "big")
        self._records.append(batch)
        if request[_ACKS] | request[_ACKS + 1]:  # not acks=0
            body = b"\2%b\2" % compact(name) + struct.pack(">ihqqq", 0, 0, offset, -1, 0) + b"\1\0\0\0"
            answer = _frame(body + bytes(4) + b"\0")
            if self._followers and bytes(request[_ACKS : _ACKS + 2]) == _ACKS_ALL:
                topic.uncommitted.append((topic.next_offset, client, answer))
            else:
                self._answers.append(answer)

    def _fetch(self, client: _Client, request: memoryview) -> None:
        position = _FETCHED_TOPIC + request[_FETCHED_TOPIC]
        topic = self._named(bytes(request[_FETCHED_TOPIC + 1 : position]))
        (offset,) = struct.unpack_from(">q", request, position + 1 + 4 + 4)
        (replica_id,) = struct.unpack_from(">i", request, _REPLICA_ID)
        if replica_id >= 0:
            self._confirm(replica_id, offset)
        if offset in topic.batches:
            self._send(client, offset)
        else:
            topic.waiting.setdefault(offset, []).append(client)

    def _confirm(self, replica_id: int, offset: int) -> None:
        """The follower has all records below the offset."""
        topic = self._topic
        is_new = replica_id not in topic.confirmed
        topic.confirmed[replica_id] = offset
        if len(topic.confirmed) == self._followers:
            if is_new:
                print("followed", flush=True)
            committed = min(topic.confirmed.values())
            while topic.uncommitted and topic.uncommitted[0][0] <= committed:
                _, client, answer = topic.uncommitted.popleft()
                client.socket.sendall(answer)

    def _named(self, name: bytes) -> _Topic:
        if name != self._topic.name:
            self._topic.file.close()
            self._topic = _Topic(name)
        return self._topic

    def _send(self, client: _Client, offset: int) -> None:
        topic = self._topic
        position, size = topic.batches[offset]
        head = struct.pack(">ihi", 0, 0, 0) + b"\2" + compact(topic.name) + b"\2"
        head += struct.pack(">ihqqq", 0, 0, topic.next_offset, topic.next_offset, 0) + b"\0" + bytes(4)
        head += unsigned_varint(size + 1)
        tail = b"\0\0\0"
        if self._followers and size <= _ONE_PIECE:
            body = head + os.pread(topic.file.fileno(), size, position) + tail
            client.socket.sendall(_frame(body))
            return
        client.socket.sendall(
            struct.pack(">iib", 5 + len(head) + size + len(tail), 1, 0) + head, socket.MSG_MORE
        )
        while size:
            sent = os.sendfile(client.socket.fileno(), topic.file.fileno(), position, size)
            position, size = position + sent, size - sent
        client.socket.sendall(tail)


def _frame(body: bytes) -> bytes:
    return struct.pack(">iib", 5 + len(body), 1, 0) + body


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    """An unsigned varint and where it ends."""
    value = shift = 0
    while data[position] & 128:
        value |= (data[position] & 127) << shift
        shift += 7
        position += 1
    return value | data[position] << shift, position + 1


def _follow(address: str, topic: str, replica_id: int) -> None:
    """Copy the leader's records until the process is killed."""
    host, port = address.split(":")
    connection = socket.create_connection((host, int(port)))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    buffer = memoryview(bytearray(_BUFFER))
    records = len(_frame(b"")) + 4 + 2 + 4 + 1 + len(compact(topic.encode())) + 1 + 4 + 2 + 8 + 8 + 8 + 1 + 4
    end = offset = 0
    with tempfile.TemporaryFile(buffering=0) as file:
        while True:
            request = bytearray(fetch(topic, offset, 1 << 20))
            struct.pack_into(">i", request, _REPLICA_ID, replica_id)
            connection.sendall(request)
            filled, size = 0, 4
            while filled < size:
                count = connection.recv_into(buffer[filled:])
                if not count:
                    return
                filled += count
                size = 4 + int.from_bytes(buffer[:4], "big")
            length, start = _varint(buffer, records)
            batch = buffer[start : start + length - 1]
            end += os.pwrite(file.fileno(), batch, end)
            offset += 1 + int.from_bytes(batch[23:27], "big")


def main() -> None:
    """Serve until the process is killed, for this number of followers; the first line of output is the port, and another one comes when
    all of them fetch. With the address of a leader, a topic and a replica id: follow."""
    if len(sys.argv) > 2:
        _follow(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    else:
        _serve(int(sys.argv[1]) if len(sys.argv) > 1 else 0)


def _receive(client: _Client) -> bool:
    """False when the client has gone."""
    try:
        return client.receive()
    except ConnectionError:
        return False


def _serve(followers: int) -> None:
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    print(listener.getsockname()[1], flush=True)
    poll = select.epoll()
    poll.register(listener, select.EPOLLIN)
    log = _Log(followers)
    clients: dict[int, _Client] = {}
    while True:
        for number, _ in poll.poll():
            if number == listener.fileno():
                connection, _ = listener.accept()
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                clients[connection.fileno()] = _Client(connection, log)
                poll.register(connection, select.EPOLLIN)
            elif not _receive(clients[number]):
                poll.unregister(number)
                clients.pop(number).socket.close()


if __name__ == "__main__":
    main()
