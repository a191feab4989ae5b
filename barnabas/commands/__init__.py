"""Kafka's command-line tools without a JVM: `barnabas topics`, `produce`, `consume`, `groups`, `configs` and so on.

Each module is one tool: a table of options (options.py) and a function. They take the options of Kafka's tool of that name, print
what it prints and exit with its codes; deploy/bin/ has a script of Kafka's name for each. docs/command-line.md says where they
differ. They are clients: they talk to a cluster by kafka-python's admin client, consumer and producer (connection.py), which are
imported when a command runs (pip install 'barnabas[cli]').

This room may import wire. It imports no controller, storage or broker, with one exception: client_properties.py reads files of
client properties, key stores and JAAS settings with the broker's readers, when a command has such a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Final

# Each command with its one line in `barnabas --help`. The module of the same name (`-` is `_`) is imported when it runs.
SUMMARIES: Final = {
    "topics": "create, list, describe, change and delete topics",
    "produce": "send the lines of standard input to a topic",
    "consume": "write the records of topics to standard output",
    "groups": "list, describe and delete consumer groups, set their offsets",
    "configs": "describe and change configs of topics, brokers, groups and users, also their credentials",
    "acls": "list, add and remove ACLs",
    "offsets": "print the first, last or other offsets of partitions",
    "cluster": "print the id of a cluster or its brokers, unregister a broker",
    "api-versions": "print which versions of each API the brokers have",
}


def run(command: str, arguments: Sequence[str]) -> int:
    """Run a command of SUMMARIES; the exit code."""
    from barnabas.commands.options import run_tool

    return run_tool(import_module(f"{__name__}.{command.replace('-', '_')}").TOOL, arguments)
