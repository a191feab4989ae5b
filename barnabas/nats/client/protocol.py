"""The NATS client protocol without sockets: bytes in, events out, and the lines that a client sends.

The protocol is text: a line of a verb and its arguments; MSG and HMSG are followed by a payload whose length the line states.
A connection begins with the server's INFO line, which may come again. Source: docs.nats.io, "Client Protocol"; headers: ADR-4.

- Hundreds of thousands of messages arrive per second, so the loop in `feed` does nothing that can be done once: a dictionary
  maps whole lines (the same subject, subscription and size) to their sinks and sizes. Lines with a reply subject hardly
  ever repeat and are not kept; they take the shortest path through `_read_line`, because all messages of a stream have one.
- An incomplete message at the end of a read waits in a buffer that grows as bytes arrive, and is parsed when it can be
  complete: a large payload is copied three times, however many reads it arrives in.
- Only blanks and tabs separate fields. A server lets publishers write any other byte into a subject, form feeds and
  carriage returns among them. `bytes.split` would take these for separators, and part of a subject for a subscription's id.
- Every size is checked before the parser waits for so many bytes. Invalid input raises NatsProtocolError: the connection
  can't be used any more, and `reset` prepares the parser for the next one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

# A message can be larger than the server's max_payload: one that passed a server with another limit, or got headers
# from JetStream.
SIZE_SLACK_BYTES: Final = 1024 * 1024
# JetStream's answers are larger than max_payload as well: a page names 100,000 subjects (kv/recreated_bucket.py).
API_ANSWER_BYTES: Final = 32 * 1024 * 1024
# nats-server knows no larger max_payload than 64 MiB.
SIZE_MAX_BYTES: Final = 64 * 1024 * 1024 + SIZE_SLACK_BYTES


class NatsProtocolError(Exception):
    """Input that is not the NATS protocol, or larger than it may be."""


class ServerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of INFO that the client uses or shows."""

    server_name: str = ""
    version: str = ""
    max_payload: int = 1024 * 1024
    jetstream: bool = False
    tls_required: bool = False
    tls_available: bool = False
    nonce: str = ""
    connect_urls: tuple[str, ...] = ()
    ldm: bool = False  # lame duck mode: the server shuts down soon

    @property
    def size_max(self) -> int:
        """Largest message to expect, headers and payload, in bytes."""
        return min(max(self.max_payload, API_ANSWER_BYTES) + SIZE_SLACK_BYTES, SIZE_MAX_BYTES)


def read_info(line: bytes) -> ServerInfo:
    """Parses the line INFO {...}, without its end. NatsProtocolError for any other."""
    if line[:5].upper() not in (b"INFO ", b"INFO\t"):
        raise NatsProtocolError(f"not the NATS protocol: {shown(line)}")
    try:
        return msgspec.json.decode(line[5:], type=ServerInfo)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise NatsProtocolError(f"INFO that cannot be read: {error}: {shown(line)}") from error


def shown(line: bytes) -> str:
    """A line as a log may show it."""
    return repr(line[:200])[1:]


# Called with each message: subject, reply and header block (b"" when there is none; else the block whole, from
# b"NATS/1.0" to its empty line) and payload.
Sink: TypeAlias = "Callable[[bytes, bytes, bytes, bytes], object]"

LINE_BYTES_MAX: Final = (
    64 * 1024
)  # for INFO of a large cluster; the lines of messages have a few kilobytes at most
CONTROL_LINES_MAX: Final = 1000  # of one `feed`: lines other than those of messages
KNOWN_LINES_MAX: Final = 16_384
KNOWN_LINE_BYTES_MAX: Final = 512  # longer lines are not kept
NOT_REMEMBERED: Final = 16 * KNOWN_LINES_MAX  # lines that are not kept after few have repeated
SIZE_DIGITS_MAX: Final = 10
_USUAL_SIZES: Final = {b"%d" % size: size for size in range(4096)}  # fewer than any `size_max`
_FIELDS: Final = re.compile(rb"[^ \t]+").findall
# As numbers: `in` tries a byte string as a number first, which takes ten times as long.
_TAB: Final = 9
_CARRIAGE_RETURN: Final = 13
_LINE_FEED: Final = 10


class ParserHandler(Protocol):
    """Callbacks for everything but messages, from within `feed`."""

    def on_info(self, info: ServerInfo) -> None: ...

    def on_ping(self) -> None: ...

    def on_pong(self) -> None: ...

    def on_ok(self) -> None: ...

    def on_error(self, text: str) -> None:
        """-ERR, its text without the quotes."""
        ...

    def on_sink_error(self, subject: bytes, error: Exception) -> None:
        """A sink has raised. The next message follows."""
        ...


# sink, subject, reply, bytes of the header block, bytes of header block and payload
_Message: TypeAlias = "tuple[Sink, bytes, bytes, int, int]"


def _ignore(_subject: bytes, _reply: bytes, _header_block: bytes, _payload: bytes) -> None:
    """The sink of messages that arrive after their subscription has ended."""


class NatsParser:
    """Parses what a server sends. `sinks` maps subscription ids to sinks; change it by `add_sink` and `remove_sink`, at any
    time, also from within a sink. `messages` counts messages. `is_behind`: it holds more lines than one turn of the loop
    takes; feed only b"" until it has parsed them."""

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
        self._messages_then = 0  # `messages` when the known lines were dropped last
        self._not_remembered = 0  # how many more lines are not kept
        self._held = bytearray()  # the beginning of a line, or a line and the beginning of its payload
        self._needed = 0  # length of `_held` from which it is complete; 0: its line is not

    def add_sink(self, subscription_id: bytes, sink: Sink) -> None:
        self.remove_sink(subscription_id)
        self.sinks[subscription_id] = sink

    def remove_sink(self, subscription_id: bytes) -> None:
        """Drops further messages, those included that `feed` is parsing."""
        if self.sinks.pop(subscription_id, None) is not None:
            self._known.clear()

    def reset(self) -> None:
        """Drops what is incomplete: the next bytes are of another connection."""
        self._held = bytearray()
        self._needed = 0
        self.is_behind = False

    def feed(self, data: bytes | memoryview) -> None:
        """Parses the next bytes, cut anywhere. NatsProtocolError: they are invalid; feed nothing before `reset`."""
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
            except Exception as error:  # noqa: BLE001 - of one sink; the others go on
                self._handler.on_sink_error(subject, error)
        self.messages += messages
        if position < length:
            if not needed and length - position > LINE_BYTES_MAX:
                raise NatsProtocolError(f"a line without end: {shown(data[position : position + 100])}")
            self._held += memoryview(data)[position:]
            self._needed = needed

    def _with_held(self, data: bytes | memoryview) -> bytes | None:
        """`data` behind what is held; None, and `data` is held too, while the first line or message can't be complete."""
        held = self._held
        if self._needed:
            is_incomplete = len(held) + len(data) < self._needed
        else:
            data = bytes(data)
            is_incomplete = _LINE_FEED not in data
            if is_incomplete and len(held) + len(data) > LINE_BYTES_MAX:
                raise NatsProtocolError(f"a line without end: {shown(bytes(held[:100]))}")
        if is_incomplete:
            held += data
            return None
        complete = b"".join((held, data))
        self.reset()
        return complete

    def _read_line(self, line: bytes) -> _Message | None:
        """Parses a line that is not known: that of a message, or a control line, which it handles."""
        if len(line) > LINE_BYTES_MAX:
            raise NatsProtocolError(f"a line of {len(line)} bytes: {shown(line[:100])}")
        if _TAB in line:
            return self._read_any_line(line)
        if line[:4] == b"MSG ":
            fields = line.split(b" ")  # servers write one blank; `_message` takes more
            total_bytes = _USUAL_SIZES.get(fields[-1])
            if len(fields) == 4 and fields[1] and total_bytes is not None:
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
        """As `_read_line`, for lines in any form."""
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
            return _ignore, b"", b"", 0, total_bytes
        message = sink, fields[1], reply, header_bytes, total_bytes
        if not reply:
            self._remember(line, message)
        return message

    def _remember(self, line: bytes, message: _Message) -> None:
        """Keeps a line, unless lines seldom repeat."""
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


def connect_line(options: Mapping[str, object]) -> bytes:
    """CONNECT with options (user, pass, verbose, ...)."""
    return b"CONNECT %b\r\n" % msgspec.json.encode(options)


def sub_line(subject: bytes, subscription_id: bytes, queue: bytes = b"") -> bytes:
    """SUB; ValueError for a subject or queue group with blanks."""
    _check_word(subject)
    if queue:
        _check_word(queue)
        return b"SUB %b %b %b\r\n" % (subject, queue, subscription_id)
    return b"SUB %b %b\r\n" % (subject, subscription_id)


def unsub_line(subscription_id: bytes) -> bytes:
    """UNSUB, at once."""
    return b"UNSUB %b\r\n" % subscription_id


def pub(subject: bytes, payload: bytes, reply: bytes = b"", headers: bytes = b"") -> bytes:
    """PUB, or HPUB when `headers` is a block (b"NATS/1.0\\r\\nName: value\\r\\n\\r\\n"). ValueError for a subject that is empty
    or has blanks: the server would parse the line in another way."""
    _check_word(subject)
    if reply:
        _check_word(reply)
        subject = b"%b %b" % (subject, reply)
    if not headers:
        return b"PUB %b %d\r\n%b\r\n" % (subject, len(payload), payload)
    header_bytes = len(headers)
    total_bytes = header_bytes + len(payload)
    return b"HPUB %b %d %d\r\n%b%b\r\n" % (subject, header_bytes, total_bytes, headers, payload)


def _check_word(word: bytes) -> None:
    if word.split() != [word]:
        raise ValueError(f"{shown(word)} is not a NATS subject: it is empty or has blanks")
