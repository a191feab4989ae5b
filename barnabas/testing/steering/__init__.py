"""Changes of a running cluster: leaders, groups, transactions, nodes, users, ACLs, retention and compaction. They are methods of
`Broker` and of `broker.security`.

A module is loaded when it is first used (PEP 562); compaction alone takes ten milliseconds.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from barnabas.testing.steering import groups as groups
    from barnabas.testing.steering import nodes as nodes
    from barnabas.testing.steering import partitions as partitions
    from barnabas.testing.steering import security as security
    from barnabas.testing.steering import transactions as transactions
    from barnabas.testing.steering import upkeep as upkeep

_MODULES = ("groups", "nodes", "partitions", "security", "transactions", "upkeep")


def __getattr__(name: str) -> ModuleType:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f"{__name__}.{name}")
