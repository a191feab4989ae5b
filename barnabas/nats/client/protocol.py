"""The NATS client protocol without sockets: bytes in, events out. What a client sends stands in client/lines.py.

The protocol is text: a line of a verb and its arguments, and behind the lines MSG and HMSG a payload of the length that
the line tells (docs.nats.io, "Client Protocol"; headers: ADR-4).

- Messages are what arrives, hundreds of thousands a second, so the loop in `feed` does nothing that could be done once:
  a line that was seen before (the same subject, subscription and size) is found whole in a dictionary, with its sink and
  its sizes. Lines with a reply subject are as good as unique and are not kept; they take the shortest way there is
  through `_read_line`, since all that a stream delivers has one.
- What is incomplete at the end of a piece waits in a buffer that grows as bytes arrive, and is not looked at before
  it can be complete: a large payload is copied three times, however many pieces it comes in.
- Fields end at blanks and tabs alone. A server lets publishers write any other byte into a subject, form feeds and
  carriage returns among them, which for `bytes.split` would begin a field: another subscription's number, say.
- Every size is checked before anything waits for it. Whatever is not understood is a NatsProtocolError: the
  connection is of no use any more, and `reset` makes the parser ready for the next one.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from barnabas.nats.client.server_info import (
    SIZE_MAX_BYTES,
    NatsProtocolError,
    ServerInfo,
    read_info,
    shown,
)

if TYPE_CHECKING:
    from collections.abc import Callable

# Called with each message: subject, reply and header block (b"" when there is none; else the block whole, from
# b"NATS/1.0" to its empty line) and payload.
Sink: TypeAlias = "Callable[[bytes, bytes, bytes, bytes], object]"

LINE_BYTES_MAX: Final = (
    64 * 1024
)  # INFO of a large cluster; the lines of messages are at most a few kilobytes
CONTROL_LINES_MAX: Final = 1000  # of one `feed`: lines other than those of messages
KNOWN_LINES_MAX: Final = 16_384
KNOWN_LINE_BYTES_MAX: Final = 512  # a longer one is not kept
NOT_REMEMBERED: Final = (
    16 * KNOWN_LINES_MAX
)  # lines, after so few have come twice that keeping them is a waste
SIZE_DIGITS_MAX: Final = 10
_USUAL_SIZES: Final = {b"%d" % size: size for size in range(4096)}  # fewer than any `size_max`
_FIELDS: Final = re.compile(rb"[^ \t]+").findall
_CARRIAGE_RETURN: Final = 13
_LINE_FEED: Final = 10


class ParserHandler(Protocol):
    """Who is told of everything but messages. Called while `feed` runs."""

    def on_info(self, info: ServerInfo) -> None: ...

    def on_ping(self) -> None: ...

    def on_pong(self) -> None: ...

    def on_ok(self) -> None: ...

    def on_error(self, text: str) -> None:
        """-ERR, its text without the quotes."""
        ...

    def on_sink_error(self, subject: bytes, error: Exception) -> None:
        """A sink has raised; its message is dealt with and the next one follows."""
        ...


# sink, subject, reply, bytes of the header block, bytes of header block and payload
_Message: TypeAlias = "tuple[Sink, bytes, bytes, int, int]"


def _nobody(_subject: bytes, _reply: bytes, _header_block: bytes, _payload: bytes) -> None:
    """The sink of messages that were on their way when their subscription ended."""


class NatsParser:
    """Reads what a server sends. `sinks` says who takes the messages of a subscription id; change it by `add_sink` and
    `remove_sink`, at any time, also from within a sink. `messages` counts those that were read. `is_behind`: more lines were
    fed than one turn of the loop deals with; feed nothing more than b"" until it is over."""

    __slots__ = (
        "_handler",
        "_held",
        "_known",
        "_messages_then",
        "_needed",
        "_not_remembered",
        "is_behind",
        "messages",
        "sinks",
        "size_max",
    )

    def __init__(self, handler: ParserHandler) -> None:
        self.sinks: dict[bytes, Sink] = {}
        self.size_max = ServerInfo().size_max
        self.messages = 0
        self.is_behind = False
        self._handler = handler
        self._known: dict[bytes, _Message] = {}
        self._messages_then = 0  # `messages`, when the known lines were forgotten
        self._not_remembered = 0  # how many more lines are not kept
        self._held = bytearray()  # the beginning of a line, or a line and the beginning of its payload
        self._needed = 0  # length of `_held` from which it is complete; 0: its line is not

    def add_sink(self, subscription_id: bytes, sink: Sink) -> None:
        self.remove_sink(subscription_id)
        self.sinks[subscription_id] = sink

    def remove_sink(self, subscription_id: bytes) -> None:
        """From now on nobody gets its messages, not even those that `feed` has in hand."""
        if self.sinks.pop(subscription_id, None) is not None:
            self._known.clear()

    def reset(self) -> None:
        """Forget what is incomplete: the next bytes are of another connection."""
        self._held = bytearray()
        self._needed = 0
        self.is_behind = False

    def feed(self, data: bytes | memoryview) -> None:
        """Read the next bytes, cut anywhere. NatsProtocolError: they make no sense; nothing may be fed before `reset`."""
        if self._held:
            complete = self._with_held(data)
            if complete is None:
                return
            data = complete
        elif not isinstance(data, bytes):
            data = bytes(data)
        find, known = data.find, self._known.get
        length = len(data)
        position = messages = needed = control_lines = 0
        while (line_end := find(b"\r\n", position)) >= 0:
            line = data[position:line_end]
            message = known(line)
            if message is None:
                message = self._read_line(line)
                if message is None:
                    position = line_end + 2
                    control_lines += 1
                    if control_lines == CONTROL_LINES_MAX and position < length:
                        self.is_behind = True
                        needed = 1  # the next call goes on with what is held
                        break
                    continue
            sink, subject, reply, header_bytes, total_bytes = message
            start = line_end + 2
            end = start + total_bytes
            if end + 2 > length:
                needed = end + 2 - position
                break
            if data[end] != _CARRIAGE_RETURN or data[end + 1] != _LINE_FEED:
                raise NatsProtocolError(f"no end of line behind the payload of {shown(line)}")
            position = end + 2
            messages += 1
            try:
                if header_bytes:
                    body = start + header_bytes
                    sink(subject, reply, data[start:body], data[body:end])
                else:
                    sink(subject, reply, b"", data[start:end])
            except Exception as error:  # noqa: BLE001 - of whoever takes the messages; the others' go on
                self._handler.on_sink_error(subject, error)
        self.messages += messages
        if position < length:
            if not needed and length - position > LINE_BYTES_MAX:
                raise NatsProtocolError(f"a line without end: {shown(data[position : position + 100])}")
            self._held += memoryview(data)[position:]
            self._needed = needed

    def _with_held(self, data: bytes | memoryview) -> bytes | None:
        """`data` behind what is held; None, and it is held too, when the first thing in it can't be complete."""
        held = self._held
        if self._needed:
            is_incomplete = len(held) + len(data) < self._needed
        else:
            data = bytes(data)
            is_incomplete = b"\n" not in data
            if is_incomplete and len(held) + len(data) > LINE_BYTES_MAX:
                raise NatsProtocolError(f"a line without end: {shown(bytes(held[:100]))}")
        if is_incomplete:
            held += data
            return None
        complete = b"".join((held, data))
        self.reset()
        return complete

    def _read_line(self, line: bytes) -> _Message | None:
        """A line that is not known: that of a message, or one that is dealt with at once."""
        if len(line) > LINE_BYTES_MAX:
            raise NatsProtocolError(f"a line of {len(line)} bytes: {shown(line[:100])}")
        if b"\t" in line:
            return self._read_any_line(line)
        if line[:4] == b"MSG ":
            fields = line.split(b" ")  # one blank is what servers write; of two, `_message` knows
            total_bytes = _USUAL_SIZES.get(fields[-1])
            if len(fields) == 4 and total_bytes is not None:
                sink = self.sinks.get(fields[2])
                if sink is not None:
                    message = sink, fields[1], b"", 0, total_bytes
                    self._remember(line, message)
                    return message
            elif len(fields) == 5 and fields[1] and total_bytes is not None:
                sink = self.sinks.get(fields[2])
                if sink is not None:
                    return sink, fields[1], fields[3], 0, total_bytes
        elif line[:5] == b"HMSG ":
            fields = line.split(b" ")
            if len(fields) == 6 and fields[1]:
                _, subject, subscription_id, reply, header_size, size = fields
                header_bytes = _USUAL_SIZES.get(header_size, SIZE_MAX_BYTES)
                total_bytes = _USUAL_SIZES.get(size)
                sink = self.sinks.get(subscription_id)
                if sink is not None and total_bytes is not None and header_bytes <= total_bytes:
                    return sink, subject, reply, header_bytes, total_bytes
        return self._read_any_line(line)

    def _read_any_line(self, line: bytes) -> _Message | None:
        """As `_read_line`, which has a quick way for usual messages."""
        verb = line[:5].upper()
        if verb[:4] in (b"MSG ", b"MSG\t"):
            return self._message(line, header_fields=0)
        if verb in (b"HMSG ", b"HMSG\t"):
            return self._message(line, header_fields=1)
        self._control(line)
        return None

    def _message(self, line: bytes, header_fields: int) -> _Message:
        """MSG subject sid [reply] bytes, and HMSG subject sid [reply] header-bytes bytes."""
        fields = _FIELDS(line)
        without_reply = 4 + header_fields
        if len(fields) not in (without_reply, without_reply + 1):
            raise NatsProtocolError(f"wrong number of fields: {shown(line)}")
        total_bytes = self._size(fields[-1], line)
        header_bytes = self._size(fields[-2], line) if header_fields else 0
        if header_bytes > total_bytes:
            raise NatsProtocolError(f"more header than message: {shown(line)}")
        reply = fields[3] if len(fields) > without_reply else b""
        sink = self.sinks.get(fields[2])
        if sink is None:
            return _nobody, b"", b"", 0, total_bytes
        message = sink, fields[1], reply, header_bytes, total_bytes
        if not reply:
            self._remember(line, message)
        return message

    def _remember(self, line: bytes, message: _Message) -> None:
        """Have a line known, unless lines seldom come twice."""
        if self._not_remembered:
            self._not_remembered -= 1
            return
        if len(line) > KNOWN_LINE_BYTES_MAX:
            return
        known = self._known
        if len(known) >= KNOWN_LINES_MAX:
            known.clear()
            if self.messages - self._messages_then < 2 * KNOWN_LINES_MAX:
                self._not_remembered = NOT_REMEMBERED
            self._messages_then = self.messages
        known[line] = message

    def _size(self, field: bytes, line: bytes) -> int:
        if not field.isdigit() or len(field) > SIZE_DIGITS_MAX:
            raise NatsProtocolError(f"no size: {shown(line)}")
        size = int(field)
        if size > self.size_max:
            raise NatsProtocolError(
                f"a message of {size} bytes, at most {self.size_max} can be: {shown(line)}"
            )
        return size

    def _control(self, line: bytes) -> None:
        handler = self._handler
        verb = line.rstrip(b" \t").upper()
        if verb == b"PING":
            handler.on_ping()
        elif verb == b"PONG":
            handler.on_pong()
        elif verb == b"+OK":
            handler.on_ok()
        elif verb[:5].rstrip(b" \t") == b"-ERR":
            handler.on_error(line[4:].strip().strip(b"'").decode("utf-8", "replace"))
        else:
            handler.on_info(read_info(line))
