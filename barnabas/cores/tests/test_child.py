"""What nodes write, in the supervisor's log, and how they are started."""

from __future__ import annotations

import io
import json

from barnabas.cores import SUPERVISOR_PIPE
from barnabas.cores.child import LINE_BYTES_MAX, Lines, NodeLog, command_of, environment_of
from barnabas.cores.supervisor import ready_line


def test_lines() -> None:
    lines = Lines()
    assert lines.feed(b"a\nb") == [b"a"]
    assert lines.feed(b"c\n") == [b"bc"]
    assert lines.feed(b"x" * (LINE_BYTES_MAX + 1)) == [b"x" * (LINE_BYTES_MAX + 1)]
    assert lines.feed(b"end") == []
    assert lines.end() == [b"end"]
    assert lines.end() == []


def test_text() -> None:
    stream = io.BytesIO()
    NodeLog(stream, is_json=False).write(2, b"INFO x: y")
    assert stream.getvalue() == b"node=2 INFO x: y\n"


def test_json() -> None:
    stream = io.BytesIO()
    node_log = NodeLog(stream, is_json=True)
    node_log.write(2, b'{"timestamp":"now","message":"m"}')
    node_log.write(3, b"Traceback %s")
    first, second = map(json.loads, stream.getvalue().splitlines())
    assert first == {"node": 2, "timestamp": "now", "message": "m"}
    assert (second["node"], second["level"], second["message"]) == (3, "ERROR", "Traceback %s")


def test_how_a_node_is_started() -> None:
    command = command_of("server.properties", ["a=b"], {"node.id": "2"})
    assert command[1:] == [
        "-m",
        "barnabas.cli",
        "start",
        "server.properties",
        "--set",
        "a=b",
        "--set",
        "node.id=2",
    ]
    assert environment_of({"A": "b", "NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "1"}, 5) == {
        "A": "b",
        SUPERVISOR_PIPE: "5",
    }


def test_the_ready_line() -> None:
    lines = ["ready A://h:1,B://h:2 node=1 cluster=c logs=/a,/b", "ready A://h:3 node=2 cluster=c logs=/c"]
    assert ready_line(lines, [1, 2]) == "ready A://h:1,B://h:2,A://h:3 nodes=1,2 cluster=c logs=/a,/b,/c"
