"""The metrics and the health of all nodes of a supervisor, at the address that barnabas.metrics.listener names.

The paths are those of a node (broker/metrics/listener.py). At each request the nodes are asked, all at a time; several requests for one path
share the answers. A node that does not answer within ANSWER_S seconds is named and not waited for. Each sample of a node's page gets the
label `node`; `barnabas_cores_node_up` says which nodes have answered.
"""

from __future__ import annotations

import logging
import re
import zlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from barnabas.broker.metrics.families import (
    CONTENT_TYPE,
    COUNTER,
    GAUGE,
    OPENMETRICS,
    OPENMETRICS_END,
    Family,
    exposition,
)
from barnabas.broker.metrics.listener import LIVE, METRICS, READY, REDPANDA_READY, PagesListener, path_of
from barnabas.cores.supervision import State
from barnabas.runtime.http_server import HttpRequest
from barnabas.runtime.http_server import State as RequestState

if TYPE_CHECKING:
    from barnabas.cores.supervision import Supervision
    from barnabas.runtime.interface import Runtime, Timer

log = logging.getLogger("barnabas.metrics")

ANSWER_S: Final = 3.0
PAGES_BYTES_MAX: Final = 64 << 20  # of all nodes
HEALTH_BYTES_MAX: Final = 64 << 10
_JSON: Final = "application/json"
_GZIP_HEADER: Final = 16 + zlib.MAX_WBITS
_NAME: Final = re.compile(rb"[a-zA-Z_:][a-zA-Z0-9_:]*")
_WHERE: Final = {
    State.NEW: "it has not been started yet",
    State.WAITING: "its process has ended, and is started again",
    State.ENDED: "its process has ended",
}


class Answer(msgspec.Struct, frozen=True):
    """What a node has answered. `why`: why it has not; status 0 then."""

    status: int
    body: bytes
    why: str = ""


class NodeQuestion:
    """One GET to a node, with a limit of time and bytes. `done(answer)` is called once."""

    def __init__(
        self,
        runtime: Runtime,
        port: int,
        path: str,
        accept: str,
        bytes_max: int,
        done: Callable[[Answer], object],
    ) -> None:
        self._request = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: {accept}\r\n\r\n".encode()
        self._bytes_max = bytes_max
        self._done: Callable[[Answer], object] | None = done
        self._received = bytearray()
        self._transport: Any = None
        self._timer: Timer = runtime.call_later(
            ANSWER_S, lambda: self._end(Answer(0, b"", f"it has not answered within {ANSWER_S:g} s"))
        )
        self._connecting = runtime.connect(
            "127.0.0.1",
            port,
            lambda: self,
            lambda error: self._end(Answer(0, b"", f"it does not answer: {error}")),
        )

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._received += data
        if len(self._received) > self._bytes_max:
            self._end(Answer(0, b"", f"its answer has more than {self._bytes_max} bytes"))

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        head, end, body = bytes(self._received).partition(b"\r\n\r\n")
        status = head.split(b" ", 2)[1:2]
        if error is not None or not end or not status or not status[0].isdigit():
            self._end(Answer(0, b"", f"it has closed the connection{f': {error}' if error else ''}"))
        else:
            self._end(Answer(int(status[0]), body))

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...

    def _end(self, answer: Answer) -> None:
        done, self._done = self._done, None
        if done is None:
            return
        self._received = bytearray()
        self._timer.cancel()
        if self._transport is not None:
            self._transport.abort()
        else:
            self._connecting.cancel()
        done(answer)


class CoresListener(PagesListener):
    """Serves the metrics and the health of nodes. `ports`: where they serve theirs. OSError when the address can't be listened on."""

    def __init__(
        self, runtime: Runtime, host: str, port: int, supervision: Supervision, ports: Mapping[int, int]
    ) -> None:
        self._supervision = supervision
        self._ports = ports
        self._waiting: dict[tuple[str, str], list[HttpRequest]] = {}  # by path and format
        super().__init__(runtime, host, port)

    def serve(self, request: HttpRequest) -> None:
        path = path_of(request.head)
        is_openmetrics = path == METRICS and "application/openmetrics-text" in request.head.headers.get(
            "accept", ""
        )
        key = path, OPENMETRICS if is_openmetrics else CONTENT_TYPE
        waiting = self._waiting.setdefault(key, [])
        waiting.append(request)
        if len(waiting) == 1:
            self._ask(key)

    def _ask(self, key: tuple[str, str]) -> None:
        path, accept = key
        answers: dict[int, Answer] = {}
        states = self._supervision.states
        asked = [each for each, state in states.items() if state not in _WHERE]
        if path == LIVE:  # a node that starts has no listener yet
            asked = [each for each in asked if states[each] is State.SERVING]
        for node_id in states:
            if node_id not in asked and path != LIVE:
                answers[node_id] = Answer(0, b"", self._where(node_id))
        left = set(asked)

        def answered(node_id: int, answer: Answer) -> None:
            answers[node_id] = answer
            left.discard(node_id)
            if not left:
                self._respond(key, answers)

        if not asked:
            self._respond(key, answers)
        bytes_max = PAGES_BYTES_MAX // len(states) if path == METRICS else HEALTH_BYTES_MAX
        for node_id in asked:
            NodeQuestion(
                self._runtime,
                self._ports[node_id],
                READY if path == REDPANDA_READY else path,
                accept,
                bytes_max,
                partial(answered, node_id),
            )

    def _where(self, node_id: int) -> str:
        why, code = _WHERE[self._supervision.states[node_id]], self._supervision.last_codes.get(node_id)
        return why if code is None else f"{why} (exit code {code})"

    def _respond(self, key: tuple[str, str], answers: Mapping[int, Answer]) -> None:
        path, content_type = key
        requests = self._waiting.pop(key)
        if path == METRICS:
            page = self._page(answers, openmetrics=content_type == OPENMETRICS)
            for request in requests:
                _respond_page(request, content_type, page)
            return
        reasons = reasons_of(answers)
        status = 503 if reasons else 200
        if path == REDPANDA_READY:
            body: dict[str, object] = {"status": "booting" if reasons else "ready"}
        elif path == LIVE and not reasons:
            body = {"status": "ok"}
        else:
            body = {"status": "unavailable" if reasons else "ok", "reasons": reasons}
        for request in requests:
            request.respond(status, _JSON, msgspec.json.encode(body) + b"\n")

    def _page(self, answers: Mapping[int, Answer], *, openmetrics: bool) -> bytes:
        up = Family(
            "barnabas_cores_node_up", GAUGE, "Whether the node's process has answered with its metrics."
        )
        restarts = Family(
            "barnabas_cores_restarts_total", COUNTER, "How often the node's process was started again."
        )
        pages: dict[int, bytes] = {}
        for node_id, count in self._supervision.restarts.items():
            answer = answers[node_id]
            if answer.status == 200:
                pages[node_id] = answer.body
            elif answer.why:
                log.info("no metrics of node %d: %s", node_id, answer.why)
            up.add(int(answer.status == 200), {"node": str(node_id)})
            restarts.add(count, {"node": str(node_id)})
        own = b"".join(exposition([up, restarts], openmetrics=openmetrics))
        return own + merged(pages) + (OPENMETRICS_END if openmetrics else b"")


def reasons_of(answers: Mapping[int, Answer]) -> list[str]:
    """Why nodes are not healthy, each with the node's id."""
    found = []
    for node_id, answer in sorted(answers.items()):
        if answer.status == 200:
            continue
        try:
            reasons = msgspec.json.decode(answer.body).get("reasons") or ["it is not ready"]
        except (msgspec.DecodeError, AttributeError):
            reasons = [answer.why or f"it has answered with {answer.status}"]
        found += [f"node {node_id}: {each}" for each in reasons]
    return found


def merged(pages: Mapping[int, bytes]) -> bytes:
    """One page of those of several nodes: each sample with the label `node`, each family once."""
    heads: dict[bytes, bytes] = {}
    samples: dict[bytes, list[bytes]] = {}
    for node_id, page in pages.items():
        _collect(page, b'node="%d"' % node_id, heads, samples)
    return b"".join(part for name, head in heads.items() for part in (head, *samples[name]))


def _collect(page: bytes, label: bytes, heads: dict[bytes, bytes], samples: dict[bytes, list[bytes]]) -> None:
    found: list[bytes] = []
    for each in page.split(b"\n")[:-1]:  # a carriage return may be in a label, as the id of a group
        line = each + b"\n"
        if line.startswith(b"# EOF"):
            break
        if line.startswith(b"#"):
            name = line.split(b" ", 3)[2]
            if line.startswith(b"# HELP"):
                heads.setdefault(name, line)
            elif heads[name].count(b"\n") == 1:
                heads[name] += line
            found = samples.setdefault(name, [])
        else:
            found.append(_labelled(line, label))


def _labelled(sample: bytes, label: bytes) -> bytes:
    match = _NAME.match(sample)
    if match is None:
        return b""
    name, rest = match[0], sample[match.end() :]
    if rest.startswith(b"{"):
        return name + b"{" + label + b"," + rest[1:]
    return name + b"{" + label + b"}" + rest


def _respond_page(request: HttpRequest, content_type: str, page: bytes) -> None:
    more = "Vary: Accept, Accept-Encoding\r\n"
    if request.state is RequestState.CLOSED:
        return
    if "gzip" in request.head.headers.get("accept-encoding", ""):
        zipped = zlib.compressobj(1, wbits=_GZIP_HEADER)
        page = zipped.compress(page) + zipped.flush()
        more += "Content-Encoding: gzip\r\n"
    request.respond(200, content_type, page, more)
