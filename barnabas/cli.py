"""The `barnabas` command. It starts nodes, formats directories, recovers the metadata of a lost quorum, and has the commands of
clients (barnabas/commands/)."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from barnabas import __version__, commands

_START_HELP = """\
Run one broker in the foreground, or with barnabas.cores several under a supervisor. Property names and meanings are Kafka's.

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
2. barnabas leave-quorum --show server.properties, on each that still has its disk, shows how far its metadata goes.
3. barnabas leave-quorum server.properties, on the one with the highest offset.
4. Remove __cluster_metadata-0 from the metadata directories (metadata.log.dir, or the first of log.dirs) of all other
   voters; their partitions stay.
5. Start all of them: the others take the metadata of that one.

What only lost voters had committed is gone.
"""

_FORMAT_HELP = """\
Prepare the empty directories of a node, with users of SCRAM in the metadata, so that clients can log in. A node
that starts on empty directories without this makes what it needs; it has no users then. Of several voters format one: the
others take its metadata when the quorum forms.

--add-scram takes what kafka-storage takes, and may be repeated:
  SCRAM-SHA-256=[name=admin,password=secret]
  SCRAM-SHA-512=[name="admin",iterations=8192,salt="...",saltedpassword="..."]
"""

_HEALTH_HELP = """\
Print one line, and exit with 0 where the broker answers, the cluster has a controller and every partition has a leader;
with 1 otherwise. With --http: whether /readyz of barnabas.metrics.listener answers 200, for brokers whose listeners ask
for TLS or a login.
"""

_TESTBROKER_HELP = """\
Run a broker for a test suite: on 127.0.0.1, with free ports and its data in memory unless set otherwise. It ends when the
process that has started it ends.

When it serves, it prints one line to standard output:
  ready PLAINTEXT://127.0.0.1:34567 nodes=1 bootstrap=127.0.0.1:34567 control=http://127.0.0.1:34568
/openapi.json at the control's address describes what it can be made to do: errors, delays, lost answers, leaders that move,
nodes that die, a clock that is put forward.
"""


_TIER_HELP = """\
The object store of tiered topics, as rsm.config.url and its other properties name it; a server.properties will do.

list             one line a topic: cluster id, topic id, name, partitions, segments, bytes
remove-unknown   note that these topics (--topic-id, may be repeated) are deleted; the brokers of their cluster, which has
                 to run and must not know them, remove them an hour later
restore          create topics that begin with what is in the store of them (all of --cluster-id but deleted ones, or --topic,
                 --topic-id), in the cluster of --bootstrap-server; one line a topic: name, partitions, segments, bytes
"""


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="barnabas", description="A Kafka-wire-compatible broker.")
    parser.add_argument("--version", action="version", version=f"barnabas {__version__}")
    subparsers = parser.add_subparsers(dest="command", required=True)
    start = subparsers.add_parser(
        "start",
        help="run one broker in the foreground",
        description=_START_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_properties(start)
    leave = subparsers.add_parser(
        "leave-quorum",
        help="make a stopped voter's metadata that of a single node, to begin a new quorum with",
        description=_LEAVE_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    leave.add_argument(
        "--show", action="store_true", help="only tell how far the metadata goes; nothing is changed"
    )
    _add_properties(leave)
    format_ = subparsers.add_parser(
        "format",
        help="prepare empty directories, with users of SCRAM",
        description=_FORMAT_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    format_.add_argument("--cluster-id", "-t", metavar="ID", help="default: a new one")
    format_.add_argument(
        "--add-scram",
        "-S",
        action="append",
        default=[],
        metavar="MECHANISM=[...]",
        help="a user; may be repeated",
    )
    _add_properties(format_)
    _add_testbroker(
        subparsers.add_parser(
            "testbroker",
            help="run a broker for a test suite, with controls over HTTP",
            description=_TESTBROKER_HELP,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
    )
    _add_health(
        subparsers.add_parser(
            "health",
            help="check whether a broker serves and its cluster is whole",
            description=_HEALTH_HELP,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
    )
    _add_tier(
        subparsers.add_parser(
            "tier",
            help="list what is in the object store of tiered topics, remove it, or restore topics from it",
            description=_TIER_HELP,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
    )
    # Only listed here: commands/options.py parses the options of these.
    for name, summary in {
        **commands.SUMMARIES,
        "storage": "prepare directories, as kafka-storage.sh",
    }.items():
        subparsers.add_parser(name, help=summary)
    return parser


def _add_health(command: argparse.ArgumentParser) -> None:
    where = command.add_mutually_exclusive_group()
    where.add_argument(
        "--bootstrap-server", metavar="HOST:PORT", default="127.0.0.1:9092", help="default: 127.0.0.1:9092"
    )
    where.add_argument("--http", metavar="HOST:PORT", help="the address of barnabas.metrics.listener")
    command.add_argument("--timeout", type=float, default=5.0, metavar="SECONDS", help="default: 5")
    command.set_defaults(refuse=command.error)


def _add_tier(command: argparse.ArgumentParser) -> None:
    command.add_argument("action", choices=("list", "remove-unknown", "restore"))
    command.add_argument(
        "--cluster-id", metavar="ID", help="restore: whose topics; default: the only one in the store"
    )
    command.add_argument(
        "--topic", action="append", default=[], metavar="NAME", help="restore: a topic; may be repeated"
    )
    command.add_argument(
        "--topic-id", action="append", default=[], metavar="ID", help="a topic; may be repeated"
    )
    command.add_argument(
        "--bootstrap-server", metavar="HOST:PORT", default="127.0.0.1:9092", help="default: 127.0.0.1:9092"
    )
    command.add_argument("--command-config", metavar="FILE", help="a file with properties of the client")
    command.add_argument(
        "--replication-factor",
        type=int,
        default=-1,
        metavar="NUMBER",
        help="restore: of the topics; default: the cluster's",
    )
    _add_properties(command)


def _add_testbroker(command: argparse.ArgumentParser) -> None:
    command.add_argument("--port", type=int, default=0, help="where clients connect; 0 (default): a free one")
    command.add_argument(
        "--control-port", type=int, default=0, help="where the controls are; 0 (default): a free one"
    )
    command.add_argument(
        "--control-host",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="the address they listen on; 0.0.0.0 in a container (default: 127.0.0.1)",
    )
    command.add_argument(
        "--nodes", type=int, default=1, help="how many, each broker and controller (default: 1)"
    )
    command.add_argument("--directory", help="keep the data there; default: in memory")
    command.add_argument(
        "--as-version", metavar="RELEASE", help="a release of Kafka to pass for, such as 2.8"
    )
    command.add_argument(
        "--parent", type=int, metavar="PID", help="end with this process instead of the one that started it"
    )
    command.add_argument(
        "--stay", action="store_true", help="go on when the process that started it has ended"
    )
    command.add_argument("--verbose", action="store_true", help="log more than warnings")
    command.add_argument(
        "--security",
        choices=("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
        help="the security protocol of clients; certificates are made, and the controls hand them out",
    )
    for option, metavar, text in (
        ("--user", "NAME=PASSWORD", "a user, with --security SASL_SSL or SASL_PLAINTEXT; may be repeated"),
        ("--mechanism", "MECHANISM", "a SASL mechanism, such as PLAIN; may be repeated"),
        ("--super-user", "TYPE:NAME", "who may do everything, such as User:alice; may be repeated"),
    ):
        command.add_argument(option, action="append", default=[], metavar=metavar, help=text)
    command.add_argument(
        "--client-auth",
        choices=("none", "requested", "required"),
        default="none",
        help="whether clients need a certificate (default: none)",
    )
    command.add_argument("--acls", action="store_true", help="enforce ACLs, of which there are none at first")
    command.add_argument(
        "--set",
        dest="settings",
        action="append",
        default=[],
        metavar="name=value",
        help="set one property of all nodes",
    )
    command.set_defaults(refuse=command.error)


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
    words = sys.argv[1:] if arguments is None else arguments
    if words and words[0] in commands.SUMMARIES:
        return commands.run(words[0], words[1:])
    if words and words[0] == "storage":
        from barnabas.commands.options import run_tool
        from barnabas.kafka_storage import TOOL

        return run_tool(TOOL, words[1:])
    parsed, unknown = build_parser().parse_known_args(words)
    if unknown:
        # Not from parse_args, which would show the usage of `barnabas` alone.
        parsed.refuse(
            f"unrecognized arguments: {' '.join(unknown)}; properties are set with --set, "
            "for example --set listeners=PLAINTEXT://127.0.0.1:9093"
        )
    # Imported late: --help needs none of it.
    if parsed.command == "leave-quorum":
        from barnabas.leave_quorum import leave

        return leave(parsed.file, parsed.settings, show=parsed.show)
    if parsed.command == "format":
        from barnabas.format_storage import format_storage

        return format_storage(parsed.file, parsed.settings, parsed.cluster_id, parsed.add_scram)
    if parsed.command == "testbroker":
        from barnabas.testbroker import SecurityOptions
        from barnabas.testbroker import serve as serve_tests

        options = (parsed.user, parsed.mechanism, parsed.super_user, parsed.client_auth, parsed.acls)
        if not parsed.security and options != ([], [], [], "none", False):
            parsed.refuse(
                "--user, --mechanism, --super-user, --client-auth and --acls are for a broker with --security"
            )
        return serve_tests(
            port=parsed.port,
            nodes=parsed.nodes,
            control_port=parsed.control_port,
            control_host=parsed.control_host,
            directory=parsed.directory,
            as_version=parsed.as_version,
            settings=parsed.settings,
            verbose=parsed.verbose,
            stay=parsed.stay,
            security=SecurityOptions(parsed.security, *options) if parsed.security else None,
            parent=parsed.parent,
        )
    if parsed.command == "tier":
        from barnabas.tier_command import run

        return run(parsed)
    if parsed.command == "health":
        from barnabas.health import check

        is_healthy, line = check(
            parsed.http or parsed.bootstrap_server, parsed.timeout, is_http=parsed.http is not None
        )
        print(line)  # noqa: T201 - the terminal is the interface here
        return 0 if is_healthy else 1
    from barnabas.server import serve

    return serve(parsed.file, parsed.settings)


if __name__ == "__main__":
    sys.exit(main())
