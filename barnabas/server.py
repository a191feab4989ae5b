"""The process of one node: reads the configuration, prints the ready line, stops cleanly at SIGTERM or SIGINT.

Exit codes: 0 after a clean stop, 1 when the node could not start or its last log directory has failed. Every failure to start
prints one line on standard error that names what to change.
"""

from __future__ import annotations

import gc
import logging
import os
import resource
import signal
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.config.listeners import format_address
from barnabas.controller.config.validators import ConfigError
from barnabas.cores import NODE_FOLDER, SUPERVISOR_PIPE, names_in
from barnabas.extensions import EXTENSIONS
from barnabas.log_format import log_to_stderr, use_json
from barnabas.start_errors import CannotStart, bind, explain
from barnabas.systemd import Notifier

if TYPE_CHECKING:
    from barnabas.broker.node import Node
    from barnabas.runtime.asyncio_runtime import AsyncioRuntime

log = logging.getLogger("barnabas.server")

# How long a thread that computes (compaction) may keep the loop from the interpreter; Python's own is 5 ms.
SWITCH_INTERVAL_S = 0.0005
HANDLER_PAUSE_S = 0.002  # between the loading of two handlers
ORPHAN_STOP_S = 5.0  # for the controlled shutdown of a node whose supervisor has ended
_LEVELS = {"warning": logging.WARNING, "info": logging.INFO}


def serve(file: str | None, settings: Iterable[str]) -> int:
    """Run one broker until a signal stops it; the process's exit code."""
    log_to_stderr(logging.INFO)
    try:
        settings = list(settings)
        config = _load(file, settings)
        if config.barnabas_cores != "1":
            from barnabas.cores.layout import count_of  # late: a node alone needs none of it

            if (count := count_of(config.barnabas_cores)) > 1:
                from barnabas.cores.supervisor import supervise

                return supervise(config, count, file, settings)
        _check_folders(config)
        _log_notes(config)
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
    return config


def _check_folders(config: BrokerConfig) -> None:
    """CannotStart where several nodes have run in the log directories (barnabas.cores)."""
    if any(name.startswith(NODE_FOLDER) for each in config.log_dirs for name in names_in(each)):
        from barnabas.cores.layout import check_folders

        try:
            check_folders(config, 1)
        except ConfigError as error:
            raise CannotStart(str(error)) from error


def _log_notes(config: BrokerConfig) -> None:
    for level, note in config.notes:
        log.log(_LEVELS[level], "%s", note)
    open_to_all = config.open_listeners()
    if open_to_all:
        log.warning("%s", open_to_all)


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
        stop = _Stop(node, runtime, notifier)
        for number in (signal.SIGTERM, signal.SIGINT):
            runtime.on_signal(number, stop)
        _end_with_supervisor(runtime, stop)
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


def _end_with_supervisor(runtime: AsyncioRuntime, stop: _Stop) -> None:
    """Stop when the supervisor that has started this node (barnabas.cores) has ended in any way: its end of a pipe is closed then."""
    text = os.environ.pop(SUPERVISOR_PIPE, "")
    if not text:
        return
    pipe = int(text)

    def supervisor_ended() -> None:
        runtime.remove_reader(pipe)
        log.warning("the supervisor has ended: stopping")
        stop()
        runtime.call_later(ORPHAN_STOP_S, stop)

    runtime.add_reader(pipe, supervisor_ended)


def _raise_open_files_limit() -> None:
    """Raise the limit of open files to the maximum, as a JVM does: connections and segments need many."""
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
                bind(listener.host, listener.port)
        node.start()
    except (LogDirectoryError, MetadataError) as error:
        raise CannotStart(str(error)) from error
    except OSError as error:
        raise CannotStart(explain(error, config)) from error
    except (ConfigError, ValueError, RuntimeError) as error:
        if type(error) in (ValueError, RuntimeError):
            raise  # a bug: show its traceback
        raise CannotStart(str(error)) from error


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
