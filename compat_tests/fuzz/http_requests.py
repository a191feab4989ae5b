"""Cases for the HTTP ports: metrics, and the control port of a test broker."""

from __future__ import annotations

import random

from barnabas.wire.tests.mutations import damage
from compat_tests.fuzz.case import Case, Pace
from compat_tests.fuzz.requests import World

_METHODS = ("GET", "GET", "GET", "HEAD", "POST", "PUT", "DELETE", "get", "", "G" * 9000)
_TARGETS = (
    "/metrics",
    "/metrics?a=b",
    "/",
    "*",
    "",
    "http://[::1",
    "/%ff%00",
    "/../../etc/passwd",
    "/rules",
    "/topics/a/records",
    "/openapi.json",
    "/" + "x" * 70_000,
    "//" * 100,
)
_VERSIONS = ("HTTP/1.1", "HTTP/1.0", "HTTP/2", "HTTP/9.9", "", "HTTP/1.1 more")
_LENGTHS = (
    "0",
    "-1",
    "5",
    "67108864",
    "67108865",
    "99999999999999999999",
    "0x10",
    "",
    "1_0",
    "٣",
    "9" * 5000,
)
_BODIES = (b"", b"{}", b"[" * 100_000, b'{"api": "*"}', b'{"api": 1e999}', b"\xff\xfe", b'"' + b"x" * 100_000)


def http(port: str, seed: int, _world: World) -> Case:
    """One HTTP request, possibly malformed."""
    rng = random.Random(f"{port} {seed}")
    method, target, version = rng.choice(_METHODS), rng.choice(_TARGETS), rng.choice(_VERSIONS)
    headers = [f"Host: {rng.choice(('127.0.0.1', 'localhost', 'evil.example', 'x' * 5000, ''))}"]
    body = rng.choice(_BODIES)
    if rng.random() < 0.5:
        headers.append(f"Content-Length: {rng.choice((str(len(body)), rng.choice(_LENGTHS)))}")
    for _ in range(rng.choice((0, 0, 1, 100, 5000))):
        headers.append(
            rng.choice(
                (
                    "X: y",
                    "Transfer-Encoding: chunked",
                    "Origin: http://evil.example",
                    "no colon",
                    " : ",
                    "\0: \0",
                )
            )
        )
    line_end = rng.choice(("\r\n", "\r\n", "\r\n", "\n", "\r"))
    head = line_end.join((f"{method} {target} {version}", *headers, "", ""))
    data = head.encode() + body
    story = [f"{method[:20]} {target[:40]} {version}, {len(headers)} headers, {len(body)} bytes of body"]
    if rng.random() < 0.4:
        data, how = damage(data, rng)
        story.append(how)
    pace = rng.choice((Pace.ONE_WRITE, Pace.ONE_WRITE, Pace.SILENT))
    return Case([data], pace, story=story, connections=rng.choice((1, 1, 1, 20)))
