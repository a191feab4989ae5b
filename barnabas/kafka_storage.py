"""`barnabas storage`: prepares the directories of a node as kafka-storage.sh does, for start scripts that call it.

A node needs no such step. `format` gives empty directories their cluster id, so that nodes of one cluster agree on it, and puts
the users of --add-scram into the metadata, as `barnabas format` does.
"""

from __future__ import annotations

import os
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Final

from barnabas.commands.options import CommandFailed, Option, Options, Tool, UsageError
from barnabas.commands.terminal import say

if TYPE_CHECKING:
    from barnabas.broker.config.broker_config import BrokerConfig

_COMMANDS: Final = ("format", "random-uuid")
_QUORUMS: Final = ("standalone", "no-initial-controllers", "initial-controllers")
_NOT_HERE: Final = {
    "initial-controllers": "the first voters are those of controller.quorum.voters",
    "release-version": "a cluster begins with the features of this version",
    "feature": "a cluster begins with the features of this version",
}

_OPTIONS: Final = (
    Option("config", "The properties of the node.", "FILE", short="c"),
    Option("cluster-id", "The id of the cluster.", "ID", short="t"),
    Option("add-scram", "A user; may be repeated.", "MECHANISM=[name=NAME,password=PASSWORD]", short="S"),
    Option("ignore-formatted", "No error when directories are formatted already.", short="g"),
    Option("standalone", "Has no effect: a node without controller.quorum.voters is alone.", short="s"),
    Option("no-initial-controllers", "Has no effect.", short="N"),
    Option("initial-controllers", "Not here.", "VOTERS", short="I"),
    Option("release-version", "Not here.", "RELEASE", short="r"),
    Option("feature", "Not here.", "NAME=LEVEL", short="f"),
)


def _run(options: Options) -> int:
    command = options.words[0] if options.words else ""
    if command not in _COMMANDS:
        raise UsageError(f"The command is one of {', '.join(_COMMANDS)}")
    if command == "random-uuid":
        from barnabas.wire.uuids import random_uuid, uuid_to_string

        say(uuid_to_string(random_uuid(os.urandom)))
        return 0
    options.require("config", "cluster-id")
    for name in options.which_of(_NOT_HERE):
        raise CommandFailed(f"--{name}: {_NOT_HERE[name]}")
    if len(options.which_of(_QUORUMS)) > 1:
        raise UsageError("--standalone can't be used with --no-initial-controllers")
    return _format(options)


def _format(options: Options) -> int:
    from barnabas.broker.config.broker_config import BrokerConfig
    from barnabas.controller.config.validators import ConfigError
    from barnabas.extensions import EXTENSIONS
    from barnabas.storage.errors import LogDirectoryError

    file, cluster_id = options.value("config"), options.value("cluster-id")
    try:
        config = BrokerConfig.load(Path(file), os.environ, [], EXTENSIONS)
        config.check_is_one_node("barnabas format takes --set for the node.id and the log.dirs of one node")
        if not _is_left_to_do(config, ignores_formatted=options.has("ignore-formatted")):
            say("All of the log directories are already formatted.")
            return 0
        if options.has("add-scram"):
            from barnabas.format_storage import format_storage

            with redirect_stdout(StringIO()):  # it says it in words of its own
                code = format_storage(file, [], cluster_id, options.values("add-scram"))
        else:
            code = 0
            _give_cluster_id(config, cluster_id)
    except (ConfigError, LogDirectoryError, OSError) as error:
        raise CommandFailed(str(error)) from None
    if not code:
        for directory in config.log_dirs:
            say(f"Formatting data directory {directory}.")
    return code


def _is_left_to_do(config: BrokerConfig, *, ignores_formatted: bool) -> bool:
    """Whether a directory has no cluster id yet. CommandFailed for one that has, with Kafka's text, unless that is ignored."""
    from barnabas.storage.manager.directory import META_PROPERTIES

    formatted = [each for each in config.log_dirs if (Path(each) / META_PROPERTIES).exists()]
    if formatted and not ignores_formatted:
        raise CommandFailed(
            f"Log directory {formatted[0]} is already formatted. Use --ignore-formatted to ignore this directory and format the "
            f"others."
        )
    return len(formatted) < len(config.log_dirs)


def _give_cluster_id(config: BrokerConfig, cluster_id: str) -> None:
    from barnabas.format_storage import open_directories
    from barnabas.runtime.asyncio_runtime import AsyncioRuntime
    from barnabas.storage.disk.disk import RealDisk

    runtime = AsyncioRuntime()
    try:
        open_directories(RealDisk(), config, runtime, cluster_id).close()
    finally:
        runtime.close()


TOOL: Final = Tool(
    "storage",
    "kafka-storage.sh",
    "format prepares the directories of a node, random-uuid prints an id for a cluster.",
    _OPTIONS,
    _run,
    "|".join(_COMMANDS),
)
