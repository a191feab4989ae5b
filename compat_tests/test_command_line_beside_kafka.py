"""Our commands beside Kafka's tools: the same arguments against the same broker print the same and exit alike.

docs/command-line.md lists the differences that are meant.
"""

from __future__ import annotations

import pytest

from compat_tests.harness.broker import Broker
from compat_tests.harness.command_line import BothTools, without_order
from compat_tests.harness.fixture_types import UniqueName
from compat_tests.harness.java_tools import JavaTools

pytestmark = pytest.mark.jvm


@pytest.fixture
def both(broker: Broker, java_tools: JavaTools) -> BothTools:
    return BothTools(broker.bootstrap, java_tools)


def test_topics(both: BothTools, unique: UniqueName) -> None:
    one, two = unique("@-one"), unique("@.two")
    create = ("topics", "--create", "--topic")
    both.compare(*create, one, "--partitions", "3", "--replication-factor", "1")
    both.compare(*create, two, "--config", "retention.ms=1000", "--config", "cleanup.policy = compact")
    both.compare(*create, one)
    both.compare(*create, one, "--if-not-exists")
    both.compare("topics", "--list", "--topic", f"{one},{two}")
    both.compare("topics", "--list", "--topic", unique("@-none"))
    both.compare("topics", "--describe", "--topic", one)
    both.compare("topics", "--describe", "--topic", f"'{one}|{two}'", view=without_order)
    both.compare("topics", "--describe", "--topic", two, "--topics-with-overrides")
    for report in ("under-replicated", "unavailable", "under-min-isr", "at-min-isr"):
        both.compare("topics", "--describe", "--topic", one, f"--{report}-partitions")
    both.compare("topics", "--alter", "--topic", one, "--partitions", "5")
    both.compare("topics", "--alter", "--topic", one, "--partitions", "5")
    both.compare("topics", "--alter", "--topic", two, "--partitions", "3", "--replica-assignment", "1,1,1")
    both.compare("topics", "--describe", "--topic", one, "--partition-size-limit-per-response", "2")
    both.compare("topics", "--delete", "--topic", f"{one}|{two}")
    for action in ("--delete", "--describe"):
        both.compare("topics", action, "--topic", one)
        both.compare("topics", action, "--topic", one, "--if-exists")


@pytest.mark.parametrize(
    "arguments",
    [
        ("--partitions", "0"),
        ("--replication-factor", "0"),
        ("--replication-factor", "7"),
        ("--partitions", "x"),
        ("--config", "no.such.config=1"),
        ("--config", "retention.ms=x"),
        ("--config", "retention.ms"),
        ("--config", "retention.ms="),
        ("--replica-assignment", "1:1"),
        ("--replica-assignment", "1:2,1"),
        ("--replica-assignment", "1:x"),
        ("--replica-assignment", "9"),
        ("--if-exists",),
        ("--list",),
        ("--topics-with-overrides",),
        ("--no-such-option",),
        ("--partitions",),
    ],
)
def test_topics_that_can_not_be_created(
    both: BothTools, unique: UniqueName, arguments: tuple[str, ...]
) -> None:
    assert both.compare("topics", "--create", "--topic", unique("@"), *arguments).status == 1


def test_wrong_command_lines_of_topics(both: BothTools) -> None:
    for arguments in (
        (),
        ("--create",),
        ("--create", "--topic", "a/b"),
        ("--describe", "--if-exists"),
        ("--describe", "--topic", "["),
        ("--describe", "--topic-id", "AAAAAAAAAAAAAAAAAAAAAQ"),
        ("--describe", "--topic-id", "AAAAAAAAAAAAAAAAAAAAAQ", "--if-exists"),
        ("--describe", "--topic-id", "AAA"),
        ("--alter", "--topic", "a"),
        ("--alter", "--topic", "no-such-topic", "--partitions", "3"),
        ("--alter", "--topic", "no-such-topic", "--partitions", "3", "--if-exists"),
        ("--alter", "--topic", "a", "--partitions", "3", "--config", "a=b"),
    ):
        both.compare("topics", *arguments)
