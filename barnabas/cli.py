"""The `barnabas` command. It starts nodes, and mends a quorum that can't be; Kafka's own tools administer them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from barnabas import __version__

_START_HELP = """\
Run one broker in the foreground. Property names and meanings are Kafka's.

A property's value is the first of: --set name=value; a KAFKA_* variable (KAFKA_LOG_DIRS is log.dirs, as the
apache/kafka image maps them: _ is ., __ is _, ___ is -); the properties file; the default. Without a file the
broker listens on 127.0.0.1:9092 and keeps its data in ./barnabas-data. With a file that does not name them: all
interfaces, port 9092, as Kafka; the data still in ./barnabas-data.

When it serves, it prints one line to standard output:
  ready PLAINTEXT://127.0.0.1:9092 node=1 cluster=<id> logs=<directory>
Logs go to standard error. SIGTERM and SIGINT stop it cleanly.
"""

_LEAVE_HELP = """\
When a voter's disk is lost for good, or most voters' disks are, a new quorum begins with the metadata of one that is
left:

1. Stop all voters.
2. barnabas leave-quorum --show server.properties, on each that still has its disk, tells how far its metadata goes.
3. barnabas leave-quorum server.properties, on the one with the highest offset.
4. Remove __cluster_metadata-0 from the metadata directories (metadata.log.dir, or the first of log.dirs) of all other
   voters; their partitions stay.
5. Start all of them: the others take the metadata of that one.

What only lost voters had committed is gone.
"""


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="barnabas", description="A Kafka-wire-compatible broker.")
    parser.add_argument("--version", action="version", version=f"barnabas {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    start = commands.add_parser(
        "start",
        help="run one broker in the foreground",
        description=_START_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_properties(start)
    leave = commands.add_parser(
        "leave-quorum",
        help="make a stopped voter's metadata that of a single node, to begin a new quorum with",
        description=_LEAVE_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    leave.add_argument(
        "--show", action="store_true", help="only tell how far the metadata goes; nothing is changed"
    )
    _add_properties(leave)
    return parser


def _add_properties(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "file", nargs="?", metavar="server.properties", help="properties, as Kafka's broker takes them"
    )
    command.add_argument(
        "--set",
        dest="settings",
        action="append",
        default=[],
        metavar="name=value",
        help="set one property; may be repeated; goes before everything else",
    )
    command.set_defaults(refuse=command.error)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit code (argparse itself exits with 2 at wrong usage)."""
    parsed, unknown = build_parser().parse_known_args(arguments)
    if unknown:
        # From here and not from parse_args, which would show the usage of `barnabas` alone.
        parsed.refuse(
            f"unrecognized arguments: {' '.join(unknown)}; properties are set with --set, "
            "for example --set listeners=PLAINTEXT://127.0.0.1:9093"
        )
    # Late: --help needs none of it.
    if parsed.command == "leave-quorum":
        from barnabas.leave_quorum import leave

        return leave(parsed.file, parsed.settings, show=parsed.show)
    from barnabas.server import serve

    return serve(parsed.file, parsed.settings)


if __name__ == "__main__":
    sys.exit(main())
