"""AlterReplicaLogDirs with a single directory: refused requests, and requests that change nothing."""

from __future__ import annotations

from barnabas.wire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from barnabas.wire.messages.describe_log_dirs import DescribeLogDirsRequest
from compat_tests.conform.case import case
from compat_tests.conform.cases.fetch import filled
from compat_tests.conform.session import Session


def alter(*moves: tuple[str, str, list[int]]) -> AlterReplicaLogDirsRequest:
    """(path, topic, partitions) each."""
    return AlterReplicaLogDirsRequest(
        dirs=[
            AlterReplicaLogDir(path=path, topics=[AlterReplicaLogDirTopic(name=topic, partitions=indexes)])
            for path, topic, indexes in moves
        ]
    )


@case("AlterReplicaLogDirs")
def one_directory(session: Session) -> None:
    topic = filled(session, partitions=2).name
    (result,) = session.quiet(DescribeLogDirsRequest(topics=None), version=1).results
    here, unknown = result.log_dir, session.name("unknown")
    session.ask(alter((here, topic, [0, 1])), note="where it is")
    session.ask(alter((here + "/", topic, [0])), note="not quite its path")
    session.ask(alter(("/nowhere", topic, [0])), note="unknown directory")
    session.ask(alter(("", topic, [0])), note="no directory")
    session.ask(alter((here, topic, [0, 7])), note="unknown partition")
    session.ask(alter((here, unknown, [0])), note="unknown topic")
    session.ask(alter(("/nowhere", unknown, [0])), note="neither is known")
    session.ask(alter((here, "x" * 249, [0])), note="a long name")
    session.ask(alter(("/nowhere", topic, [0]), (here, topic, [0])), note="twice, the second one is right")
    session.ask(alter((here, topic, [0]), ("/nowhere", topic, [0])), note="twice, the second one is wrong")
    session.ask(alter((here, topic, [])), note="no partitions")
    session.ask(alter(), note="nothing")
