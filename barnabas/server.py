"""The process of one node: reads the configuration, prints the ready line, stops cleanly at SIGTERM or SIGINT.

Exit codes: 0 after a clean stop, 1 when the node could not start or its last log directory has failed. Every failure to start
prints one line on standard error that names what to change.
"""

from __future__ import annotations

import errno
import gc
import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.config.listeners import format_address
from barnabas.controller.config.validators import ConfigError
from barnabas.extensions import EXTENSIONS
from barnabas.log_format import TEXT, use_json

if TYPE_CHECKING:
    from barnabas.broker.node import Node
    from barnabas.runtime.asyncio_runtime import AsyncioRuntime
    from barnabas.runtime.interface import Runtime

log = logging.getLogger("barnabas.server")

# How long a thread that computes (compaction) may keep the loop from the interpreter; Python's own is 5 ms.
SWITCH_INTERVAL_S = 0.0005
HANDLER_PAUSE_S = 0.002  # between the loading of two handlers
_LEVELS = {"warning": logging.WARNING, "info": logging.INFO}


class CannotStart(Exception):
    """The reason why the broker cannot start, and what to do about it, in one line."""


def serve(file: str | None, settings: Iterable[str]) -> int:
    """Run one broker until a signal stops it; the process's exit code."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format=TEXT)
    try:
        config = _load(file, settings)
        return _run(config)
    except CannotStart as reason:
        print(f"barnabas: {reason}", file=sys.stderr)  # noqa: T201 - the terminal is the interface here
        return 1


def _load(file: str | None, settings: Iterable[str]) -> BrokerConfig:
    try:
        config = BrokerConfig.load(None if file is None else Path(file), os.environ, settings, EXTENSIONS)
    except ConfigError as error:
        raise CannotStart(str(error)) from error
    except OSError as error:
        raise CannotStart(f"cannot read {file}: {error.strerror}") from error
    if config.barnabas_log_format == "json":
        use_json()
    for level, note in config.notes:
        log.log(_LEVELS[level], "%s", note)
    open_to_all = config.open_listeners()
    if open_to_all:
        log.warning("%s", open_to_all)
    return config


def _run(config: BrokerConfig) -> int:
    # Imported late, so that `--help` and a wrong property answer at once.
    from barnabas.broker.node import Node
    from barnabas.runtime.asyncio_runtime import AsyncioRuntime, loop_name

    _raise_open_files_limit()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    loop = os.environ.get("BARNABAS_LOOP") or config.barnabas_event_loop
    runtime = AsyncioRuntime(prefer_uvloop=loop != "asyncio")
    try:
        failures: list[str] = []
        notifier = Notifier(runtime)

        def fatal(reason: str) -> None:
            failures.append(reason)
            runtime.stop()

        # `on_ready` is called on the loop, when the signal handlers are set: a signal before that would be lost.
        node = Node(
            config,
            runtime,
            extensions=EXTENSIONS,
            on_ready=lambda: _ready(node, config, runtime, notifier),
            on_fatal=fatal,
        )
        _start(node, config)
        for number in (signal.SIGTERM, signal.SIGINT):
            runtime.on_signal(number, _Stop(node, runtime, notifier))
        # The objects of the start live as long as the process: the collector need not examine them again.
        gc.freeze()
        log.info("running on %s", loop_name(runtime))
        runtime.run()
        log.info("stopping")
        node.stop()
    finally:
        runtime.close()
    if failures:
        print(f"barnabas: {failures[0]}", file=sys.stderr)  # noqa: T201 - the terminal is the interface here
        return 1
    return 0


class Notifier:
    """Tells systemd what the node does, where a unit with Type=notify has started it (sd_notify(3)): READY=1, STOPPING=1, and
    WATCHDOG=1 at half of the unit's WatchdogSec, as long as the event loop runs."""

    def __init__(self, runtime: Runtime, environment: Mapping[str, str] = os.environ) -> None:
        self._runtime = runtime
        path = environment.get("NOTIFY_SOCKET", "")
        self._address = "\0" + path[1:] if path.startswith("@") else path  # @: the abstract namespace
        is_watched = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        watchdog = environment.get("WATCHDOG_USEC", "") if is_watched else ""
        self._interval_s = int(watchdog) / 2e6 if watchdog.isdigit() else 0.0

    def ready(self) -> None:
        self._send("READY=1")
        if self._interval_s and self._address:
            self._runtime.call_later(self._interval_s, self._keep_alive)

    def stopping(self) -> None:
        self._send("STOPPING=1")

    def _keep_alive(self) -> None:
        self._send("WATCHDOG=1")
        self._runtime.call_later(self._interval_s, self._keep_alive)

    def _send(self, state: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified:
                notified.sendto(state.encode(), self._address)
        except OSError as error:
            log.warning("systemd could not be notified of %s: %s", state, error)


class _Stop:
    """Handles a signal: a controlled shutdown; at a second signal the node stops at once."""

    def __init__(self, node: Node, runtime: AsyncioRuntime, notifier: Notifier) -> None:
        self._node = node
        self._runtime = runtime
        self._notifier = notifier
        self._is_asked = False

    def __call__(self) -> None:
        if self._is_asked:
            self._runtime.stop()
        else:
            self._is_asked = True
            self._notifier.stopping()
            self._node.begin_stop(self._runtime.stop)


def _raise_open_files_limit() -> None:
    """Raise the limit of open files to the maximum, as a JVM does: each connection needs two descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError) as error:  # macOS allows less than it says
        log.warning("the limit of open files stays at %d: %s", soft, error)


def _start(node: Node, config: BrokerConfig) -> None:
    from barnabas.controller.metadata.errors import MetadataError
    from barnabas.storage.errors import LogDirectoryError

    try:
        if not config.quorum.is_alone:  # this one listens at once
            for listener in config.listeners:
                _bind(listener.host, listener.port)
        node.start()
    except (LogDirectoryError, MetadataError) as error:
        raise CannotStart(str(error)) from error
    except OSError as error:
        raise CannotStart(_explain(error, config)) from error
    except (ConfigError, ValueError, RuntimeError) as error:
        if type(error) in (ValueError, RuntimeError):
            raise  # a bug: show its traceback
        raise CannotStart(str(error)) from error


def _explain(error: OSError, config: BrokerConfig) -> str:
    opened = config.listeners + config.controller_listeners
    if isinstance(error, socket.gaierror):
        hosts = ", ".join(each.host for each in opened if each.host)
        return f"cannot resolve a host of `listeners` ({hosts}): {error.strerror}"
    if error.filename is None and error.errno == errno.EADDRINUSE:
        taken = [each for each in opened if each.port and not _can_bind(each.host, each.port)]
        addresses = ", ".join(format_address(each.host, each.port) for each in taken or opened)
        return f"cannot listen on {addresses}: a port is in use; stop what uses it or choose another in `listeners`"
    if error.filename is None and error.errno == errno.EADDRNOTAVAIL:
        given = [each.host for each in opened if each.host]
        foreign = [host for host in given if not _can_bind(host, 0)]
        return f"{', '.join(foreign or given)} is no address of this machine (listeners)"
    if error.filename is None and error.errno == errno.EACCES:
        addresses = ", ".join(format_address(each.host, each.port) for each in opened)
        return f"cannot listen on {addresses}: {error.strerror}; correct `listeners`"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return (
            f"no permission for {error.filename}: {error.strerror}; give it to this user or change `log.dirs`"
        )
    return f"{error}; see `log.dirs` and `listeners`"


def _can_bind(host: str, port: int) -> bool:
    """Whether the address can be bound (port 0: some port of it); after a failure, to name the listener that caused it."""
    try:
        _bind(host, port)
    except OSError:
        return False
    return True


def _bind(host: str, port: int) -> None:
    """OSError when the address cannot be bound. So a broker that waits for a quorum fails now, and not when it has formed."""
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    found.sort(key=lambda entry: entry[0] != socket.AF_INET)  # the one that is served
    with socket.socket(found[0][0], socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the listeners themselves
        probe.bind(found[0][4])


def _ready(node: Node, config: BrokerConfig, runtime: AsyncioRuntime, notifier: Notifier) -> None:
    print(_ready_line(node, config), flush=True)  # noqa: T201 - the interface
    for line in config.barnabas_ready_lines:
        print(line, flush=True)  # noqa: T201 - as above
    notifier.ready()
    if config.is_broker:
        _load_handlers(runtime)


def _load_handlers(runtime: AsyncioRuntime) -> None:
    """Load the handlers one after the other, with pauses, so that no client has to wait for the first use of one."""
    from barnabas.broker.requests.registry import REGISTRATIONS

    keys = iter(REGISTRATIONS)

    def load_next() -> None:
        key = next(keys, None)
        if key is None:
            gc.freeze()
        else:
            REGISTRATIONS[key]
            runtime.call_later(HANDLER_PAUSE_S, load_next)

    load_next()


def _ready_line(node: Node, config: BrokerConfig) -> str:
    opened = [(each.listener, each.host, each.port) for each in node.endpoints] or [
        (each.name, each.host, each.port) for each in config.controller_listeners
    ]
    listeners = ",".join(f"{name}://{format_address(host or '0.0.0.0', port)}" for name, host, port in opened)
    logs = ",".join(config.log_dirs)
    return f"ready {listeners} node={config.node_id} cluster={node.cluster_id} logs={logs}"
