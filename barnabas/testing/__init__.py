"""What tests of brokers and of programs that use one need: `Broker` is a whole broker inside the test's process,
`BrokerProcesses` one whose nodes are processes of their own; `Security` and `Acl` make a `Broker` a secured one.

Importing this costs nothing; what is named here is loaded when it is first used (PEP 562).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from barnabas.testing.broker import Broker, BrokerFailed
    from barnabas.testing.external.broker_processes import BrokerProcesses
    from barnabas.testing.security import Acl, Security

__all__ = ["Acl", "Broker", "BrokerFailed", "BrokerProcesses", "Security"]


def __getattr__(name: str) -> object:
    if name == "BrokerProcesses":
        import barnabas.testing.external.broker_processes

        return barnabas.testing.external.broker_processes.BrokerProcesses
    if name in ("Acl", "Security"):
        import barnabas.testing.security

        return getattr(barnabas.testing.security, name)
    if name in __all__:
        import barnabas.testing.broker

        return getattr(barnabas.testing.broker, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
