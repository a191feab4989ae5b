"""What nats-server's monitoring tells of what was lost: an estimate, where nats.monitoring.url names it.

Two things are asked for, and both are of the whole server or connection, not of one binding:

- /varz, every few seconds and when a gap has ended: how many messages the server has taken by then, of all subjects. The
  difference over a gap is the most that can have been lost in it. A server that was started anew counts from 0 again: then
  nothing is known.
- /connz of a connection that has ended: why the server has ended it, and how many messages it had for it.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from barnabas.nats.client.connection_settings import parse_monitoring_url
from barnabas.nats.client.listener import ClientListener

if TYPE_CHECKING:
    from barnabas.nats.carrier import Gap
    from barnabas.nats.client.client import NatsClient
    from barnabas.nats.client.errors import Cause
    from barnabas.runtime.interface import Connecting, Runtime, Timer

log = logging.getLogger("barnabas.nats")

EVERY_S: Final = 5.0
TIMEOUT_S: Final = 3.0
ANSWER_BYTES_MAX: Final = 1 << 20
SAMPLES_KEPT: Final = 720  # an hour
LOG_AGAIN_S: Final = 600.0
_NO_JSON: Final = (msgspec.MsgspecError, UnicodeError, RecursionError)

Page = Callable[["bytes | None", str], object]  # the body, or None and why there is none


class Varz(msgspec.Struct):
    """As far as it is asked for."""

    server_id: str = ""
    start: str = ""
    in_msgs: int = 0


class ClosedConnection(msgspec.Struct):
    cid: int = 0
    reason: str = ""
    out_msgs: int = 0
    pending_bytes: int = 0


class Connz(msgspec.Struct):
    server_id: str = ""
    connections: list[ClosedConnection] = []


class Sample(NamedTuple):
    """What the server had taken at `had_ms` or a moment before."""

    had_ms: int
    server: tuple[str, str]  # its id, and when it was started
    taken: int


class Monitoring(ClientListener):
    """Of the server of one client."""

    def __init__(self, runtime: Runtime, client: NatsClient, url: str) -> None:
        self._runtime = runtime
        self._client = client
        self._url = url
        self._host, self._port, self._path = parse_monitoring_url(url)
        self._samples: deque[Sample] = deque(maxlen=SAMPLES_KEPT)
        self._timer: Timer | None = None
        self._log_again_s = 0.0
        self._connection = ("", 0, 0)  # server id, number there, messages read before it
        client.listeners.append(self)

    def start(self) -> None:
        self._poll()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # -- the client

    def connected(self, info: Any) -> None:
        self._connection = info.server_id, info.client_id, self._client.stats.messages_in

    def disconnected(self, cause: Cause) -> None:
        """Let the log say what the server says of it."""
        server_id, number, before = self._connection
        read = self._client.stats.messages_in - before
        if not number:
            return

        def had(body: bytes | None, _why: str) -> None:
            try:
                connz = msgspec.json.decode(body or b"{}", type=Connz)
            except _NO_JSON:
                return
            for each in connz.connections:
                if each.cid == number and connz.server_id == server_id:
                    log.warning(
                        "%s: the server says of the connection that has ended (%s): %s; of %d messages that it had for it, "
                        "%d were not read",
                        self._client.name,
                        cause.kind,
                        each.reason,
                        each.out_msgs,
                        max(0, each.out_msgs - read),
                    )

        self._get(f"/connz?state=closed&cid={number}", had)

    # -- how many messages there were

    def estimate(self, gap: Gap, done: Callable[[], object]) -> None:
        """Set `lost_at_most` of a gap that has just ended, if that can be known; `done()` in any case, a little later."""

        def had(sample: Sample | None) -> None:
            before = [each for each in self._samples if each.had_ms <= gap.begin_ms]
            is_ours = sample is not None and sample.server[0] == self._connection[0]
            if sample is not None and is_ours and before and before[-1].server == sample.server:
                gap.lost_at_most = max(0, sample.taken - before[-1].taken)
            done()

        self._sample(had)

    def _poll(self) -> None:
        self._timer = self._runtime.call_later(EVERY_S, self._poll)
        self._sample(lambda _sample: None)

    def _sample(self, done: Callable[[Sample | None], object]) -> None:
        def had(body: bytes | None, why: str) -> None:
            sample = None
            if body is not None:
                try:
                    varz = msgspec.json.decode(body, type=Varz)
                except _NO_JSON as error:
                    why = str(error)
                else:
                    sample = Sample(self._runtime.time_ms(), (varz.server_id, varz.start), varz.in_msgs)
                    self._samples.append(sample)
            if sample is None:
                self._complain(why)
            done(sample)

        self._get("/varz", had)

    def _complain(self, why: str) -> None:
        now_s = self._runtime.monotonic()
        if now_s >= self._log_again_s:
            self._log_again_s = now_s + LOG_AGAIN_S
            log.warning("%s: %s tells nothing: %s", self._client.name, self._url, why)

    def _get(self, path: str, done: Page) -> None:
        HttpGet(self._runtime, self._host, self._port, self._path + path, done)


class HttpGet:
    """One page over HTTP/1.0; `done` is called once. Called by the event loop as asyncio's protocols are."""

    def __init__(self, runtime: Runtime, host: str, port: int, path: str, done: Page) -> None:
        self._done: Page | None = done
        self._request = f"GET {path} HTTP/1.0\r\nHost: {host}:{port}\r\nAccept: application/json\r\n\r\n"
        self._data = bytearray()
        self._transport: Any = None
        self._timer = runtime.call_later(TIMEOUT_S, lambda: self._end(None, f"nothing for {TIMEOUT_S:g} s"))
        self._connecting: Connecting = runtime.connect(
            host, port, lambda: self, lambda error: self._end(None, str(error))
        )

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        if self._done is None:
            transport.abort()
        else:
            transport.write(self._request.encode())

    def data_received(self, data: bytes) -> None:
        self._data += data
        if len(self._data) > ANSWER_BYTES_MAX:
            self._end(None, "the answer is too large")

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        head, end, body = bytes(self._data).partition(b"\r\n\r\n")
        status = head.partition(b"\r\n")[0]
        if error is None and end and b" 200 " in status + b" ":
            self._end(body, "")
        else:
            self._end(None, str(error) if error is not None else repr(status[:100]))

    def pause_writing(self) -> None:
        """One request is all that is written."""

    def resume_writing(self) -> None:
        """See pause_writing."""

    def _end(self, body: bytes | None, why: str) -> None:
        done, self._done = self._done, None
        if done is None:
            return
        self._timer.cancel()
        self._connecting.cancel()
        if self._transport is not None:
            self._transport.abort()
        done(body, why)
