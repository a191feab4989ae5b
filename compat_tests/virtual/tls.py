"""TLS over a virtual connection, as an event loop's: a protocol for the network, a transport for the protocol above."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from functools import partial
from typing import Any


class TlsSide:
    """One side of a connection. `failed(error)`: a client's handshake has failed, and no other callback follows."""

    def __init__(
        self,
        context: ssl.SSLContext,
        make_protocol: Callable[[], Any],
        *,
        server_name: str | None = None,
        is_server: bool = False,
        failed: Callable[[OSError], object] = lambda _error: None,
    ) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=is_server, server_hostname=server_name
        )
        self._make_protocol = make_protocol
        self._failed = failed
        self._protocol: Any = None  # once the handshake is done
        self._is_over = False
        self._transport: Any = None

    # -- the network's protocol

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._progress()

    def data_received(self, data: bytes) -> None:
        self._incoming.write(data)
        self._progress()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        if self._protocol is not None:
            self._protocol.connection_lost(error)
        elif not self._is_over:
            self._is_over = True
            self._failed(ConnectionResetError(104, "closed during the TLS handshake"))

    def pause_writing(self) -> None:
        if self._protocol is not None:
            self._protocol.pause_writing()

    def resume_writing(self) -> None:
        if self._protocol is not None:
            self._protocol.resume_writing()

    # -- the protocol's transport

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if data and not self._transport.is_closing():
            self.tls.write(bytes(data))
            self._flush()

    def writelines(self, pieces: list[bytes]) -> None:
        self.write(b"".join(pieces))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    # -- both

    def _flush(self) -> None:
        if self._outgoing.pending:
            self._transport.write(self._outgoing.read())

    def _progress(self) -> None:
        try:
            if self._protocol is None:
                self.tls.do_handshake()
                self._flush()
                self._protocol = self._make_protocol()
                self._protocol.connection_made(self)
            while data := self.tls.read(65536):
                self._give(data)
            self._transport.close()
        except ssl.SSLWantReadError:
            self._flush()
        except ssl.SSLError as error:
            self._flush()
            self._transport.close()
            if self._protocol is None and not self._is_over:
                self._is_over = True
                self._failed(error)

    def _give(self, data: bytes) -> None:
        if not hasattr(self._protocol, "get_buffer"):
            self._protocol.data_received(data)
            return
        while data:
            buffer = self._protocol.get_buffer(-1)
            count = min(len(buffer), len(data))
            buffer[:count] = data[:count]
            data = data[count:]
            self._protocol.buffer_updated(count)


def client_side(
    context: ssl.SSLContext, host: str, make_protocol: Callable[[], Any], failed: Callable[[OSError], object]
) -> Callable[[], TlsSide]:
    return partial(TlsSide, context, make_protocol, server_name=host, failed=failed)


def server_side(context: ssl.SSLContext, make_protocol: Callable[[], Any]) -> Callable[[], TlsSide]:
    return partial(TlsSide, context, make_protocol, is_server=True)
