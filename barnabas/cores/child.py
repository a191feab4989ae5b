"""The process of one node, as its supervisor sees it: what it prints, and its end.

Its standard error is a part of the supervisor's: each line names its node. On its standard output the line that begins with `ready` counts
alone. It ends when the supervisor ends in any way, by a pipe whose other end the supervisor keeps open (server.py). It has a session of its
own, so that Ctrl-C reaches the supervisor alone.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, BinaryIO, Final

from barnabas.cores import SUPERVISOR_PIPE
from barnabas.log_format import JsonFormatter

if TYPE_CHECKING:
    from barnabas.runtime.asyncio_runtime import AsyncioRuntime

LINE_BYTES_MAX: Final = 64 << 10  # longer lines are cut
_READ_BYTES: Final = 64 << 10
_SYSTEMD: Final = ("NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC")  # for the supervisor alone


class Lines:
    """Splits bytes into lines, of at most LINE_BYTES_MAX bytes each."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that are complete now, without their ends."""
        *found, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > LINE_BYTES_MAX:
            found.append(self._rest)
            self._rest = b""
        return found

    def end(self) -> list[bytes]:
        """What has come without an end of line."""
        rest, self._rest = self._rest, b""
        return [rest] if rest else []


class NodeLog:
    """Writes the lines of nodes to one stream: with `node=<id> ` before each, or as the first field of a JSON object."""

    def __init__(self, stream: BinaryIO, *, is_json: bool) -> None:
        self._stream = stream
        self._json = JsonFormatter() if is_json else None

    def write(self, node_id: int, line: bytes) -> None:
        if self._json is None:
            named = b"node=%d %s\n" % (node_id, line)
        else:
            if not line.startswith(
                b'{"'
            ):  # what does not come from the log, such as a traceback of the interpreter
                record = logging.makeLogRecord(
                    {
                        "name": "barnabas.stderr",
                        "levelno": logging.ERROR,
                        "levelname": "ERROR",
                        "msg": "%s",
                        "args": (line.decode(errors="replace"),),
                    }
                )
                line = self._json.format(record).encode()
            named = b'{"node":%d,%s\n' % (node_id, line[1:])
        try:
            self._stream.write(named)
            self._stream.flush()
        except OSError:  # its reader has gone; the nodes go on
            pass


class Child:
    """A running process. `on_ready(line)`: it serves. `on_end(code)`: it has ended, and all that it had written has been read."""

    def __init__(
        self,
        runtime: AsyncioRuntime,
        node_id: int,
        command: Sequence[str],
        pipe: int,
        node_log: NodeLog,
        on_ready: Callable[[str], object],
        on_end: Callable[[int], object],
    ) -> None:
        """`pipe`: the end that the process inherits. OSError when it cannot be started."""
        self.node_id = node_id
        self._runtime = runtime
        self._log = node_log
        self._on_ready = on_ready
        self._on_end = on_end
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment_of(os.environ, pipe),
            pass_fds=(pipe,),
            start_new_session=True,
        )
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self._open = {
            self._watch(self.process.stdout.fileno(), self._printed),
            self._watch(self.process.stderr.fileno(), self._logged),
        }

    def stop(self, *, at_once: bool) -> None:
        """Send SIGTERM, for a controlled shutdown. `at_once`: both signals that ask for one, of which the second stops the node."""
        self.process.send_signal(signal.SIGTERM)
        if at_once:
            self.process.send_signal(signal.SIGINT)

    def _watch(self, descriptor: int, take: Callable[[bytes], object]) -> int:
        lines = Lines()

        def read() -> None:
            data = os.read(descriptor, _READ_BYTES)
            for line in lines.feed(data) if data else lines.end():
                take(line)
            if not data:
                self._runtime.remove_reader(descriptor)
                self._open.discard(descriptor)
                if not self._open:
                    self._reap()

        self._runtime.add_reader(descriptor, read)
        return descriptor

    def _printed(self, line: bytes) -> None:
        if line.startswith(b"ready "):
            self._on_ready(line.decode(errors="replace"))

    def _logged(self, line: bytes) -> None:
        self._log.write(self.node_id, line)

    def _reap(self) -> None:
        """The process has closed its output: it ends, if it has not yet."""
        code = self.process.poll()
        if code is None:
            self._runtime.call_later(0.01, self._reap)
            return
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()
        self._on_end(code)


def environment_of(environment: Mapping[str, str], pipe: int) -> dict[str, str]:
    """The variables of a node's process."""
    return {
        **{name: value for name, value in environment.items() if name not in _SYSTEMD},
        SUPERVISOR_PIPE: str(pipe),
    }


def command_of(file: str | None, settings: Sequence[str], overrides: Mapping[str, str]) -> list[str]:
    """The command line of a node's process."""
    command = [sys.executable, "-m", "barnabas.cli", "start", *([] if file is None else [file])]
    for setting in [*settings, *(f"{name}={value}" for name, value in overrides.items())]:
        command += ["--set", setting]
    return command
