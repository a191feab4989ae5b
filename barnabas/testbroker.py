"""`barnabas testbroker`: a broker for a test suite in any language, as a process that ends with its parent.

It prints one line when it serves,

    ready PLAINTEXT://127.0.0.1:34567 nodes=1 bootstrap=127.0.0.1:34567 control=http://127.0.0.1:34568

and ends at SIGTERM, SIGINT, or when the process that started it has ended in any way. It does not use Linux's parent-death
signal, which comes when the parent's thread ends: test runners of other languages have many threads.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import sys
import threading  # noqa: TID251 - the broker has one, and this process waits in its own
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from barnabas.controller.config.validators import ConfigError
from barnabas.log_format import log_to_stderr

if TYPE_CHECKING:
    from collections.abc import Iterable

    from barnabas.testing.broker import Broker
    from barnabas.testing.security import Security

LOOK_S: Final = 0.5  # between two checks of a parent that cannot be waited for
PARENT_ENDED: Final = "barnabas: the process that started it has ended; --stay goes on without it"


class SecurityOptions(NamedTuple):
    """What the command line says of it; `users` are NAME=PASSWORD."""

    protocol: str
    users: list[str]
    mechanisms: list[str]
    super_users: list[str]
    client_auth: str
    enforces_acls: bool

    def wanted(self) -> Security:
        """ValueError."""
        from barnabas.testing.security import Security

        users = {}
        for each in self.users:
            name, equals, password = each.partition("=")
            if not equals:
                raise ValueError(f"--user takes NAME=PASSWORD, not {name!r}")
            users[name] = password
        given = {"mechanisms": self.mechanisms} if self.mechanisms else {}
        return Security(
            protocol=self.protocol,
            users=users,
            super_users=self.super_users,
            client_auth=self.client_auth,
            acls=[] if self.enforces_acls else None,
            **given,
        )


def serve(
    *,
    port: int,
    nodes: int,
    control_port: int,
    control_host: str,
    directory: str | None,
    as_version: str | None,
    settings: Iterable[str],
    verbose: bool,
    stay: bool,
    security: SecurityOptions | None = None,
    parent: int | None = None,
) -> int:
    """Run until a signal or the end of the parent; the process's exit code."""
    log_to_stderr(logging.INFO if verbose else logging.WARNING)
    watched = os.getppid() if parent is None else parent
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    # Imported late, so that `--help` answers at once.
    from barnabas.storage.errors import LogDirectoryError
    from barnabas.testing.broker import Broker, BrokerFailed
    from barnabas.testing.control import Control

    try:
        properties = dict(_property(each) for each in settings)
        broker = Broker(
            properties,
            nodes=nodes,
            directory=directory,
            port=port,
            as_version=as_version,
            security=None if security is None else security.wanted(),
        ).start()
    except (BrokerFailed, ConfigError, ImportError, LogDirectoryError, OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.filename is None else None
        print(f"barnabas: {why or error}", file=sys.stderr)  # noqa: T201 - the terminal is the interface here
        return 1
    try:
        control = Control(broker, control_port, control_host)
        print(ready_line(broker, control.url), flush=True)  # noqa: T201 - the interface
        if not stay:
            threading.Thread(target=end_with, args=(watched, ended), daemon=True).start()
        ended.wait()
        control.close()
    except OSError as error:
        print(f"barnabas: cannot listen on {control_host}:{control_port}: {error.strerror}", file=sys.stderr)  # noqa: T201
        return 1
    finally:
        broker.stop()
    return 0


def ready_line(broker: Broker, control_url: str) -> str:
    """The line that is printed when it serves."""
    servers = broker.bootstrap_servers
    listeners = ",".join(f"{broker.security_protocol}://{each}" for each in servers.split(","))
    return f"ready {listeners} nodes={len(broker.nodes)} bootstrap={servers} control={control_url}"


def end_with(parent: int, ended: threading.Event) -> None:
    """Set `ended` when the parent has ended, and print why, unless standard error is a pipe that has lost its reader."""
    await_end_of(parent, ended)
    if not ended.is_set():
        with suppress(OSError, ValueError):
            if select.select([], [sys.stderr], [], 0)[1]:
                print(PARENT_ENDED, file=sys.stderr, flush=True)  # noqa: T201 - the terminal is the interface here
        ended.set()


def await_end_of(parent: int, ended: threading.Event) -> None:
    """Return when the parent has ended. Where process 1 or none has started this one, as in a container, there is no parent to
    wait for, only `ended`. A parent that ended before its id could be read looks the same, so a parent that may end that fast
    passes its id."""
    if parent <= 1:
        ended.wait()
        return
    is_ours = os.getppid() == parent
    try:
        descriptor = os.pidfd_open(parent)
    except (AttributeError, OSError):  # not Linux, or ended already
        while (os.getppid() == parent if is_ours else _is_there(parent)) and not ended.wait(LOOK_S):
            pass
    else:
        if not is_ours or os.getppid() == parent:  # otherwise another process has its id by now
            select.select([descriptor], [], [])
        os.close(descriptor)


def _is_there(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # of another user
        return True
    return True


def _property(setting: str) -> tuple[str, str]:
    name, equals, value = setting.partition("=")
    if not equals:
        raise ValueError(f"--set takes name=value, not {setting!r}")
    return name.strip(), value.strip()
