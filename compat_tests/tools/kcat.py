"""kcat: librdkafka 2.0 of Debian, as a command."""

from __future__ import annotations

import json
import re
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from compat_tests.harness.broker import Broker
from compat_tests.harness.topics import create_topic
from compat_tests.tools.found import codecs, ends, lag, offsets, send, values
from compat_tests.tools.installed import DebianTool
from compat_tests.tools.process import Background, run
from compat_tests.tools.tool import Tool, Trial

_KCAT = DebianTool("kcat", ("kcat", "librdkafka1", "libyajl2"))
_CODECS = ("gzip", "snappy", "lz4", "zstd")
_TIME_MS = 1_700_000_000_000
_KEEP = {"retention.ms": "-1"}  # records of that time are old


def check(trial: Trial) -> str:
    """All of it."""
    with trial.broker() as broker:
        _codecs_headers_and_tombstones(broker)
        _queries_by_time(broker)
        _ranges(broker)
        for strategy in ("range", "cooperative-sticky"):
            _group(broker, strategy, trial.directory / strategy)
        _transaction(broker)
        _metadata(broker)
    return (
        "records in four codecs with keys, headers and tombstones, as JSON; offsets of times; ranges by offset, time and from the "
        "end; two members by range and by cooperative-sticky; a transaction; metadata"
    )


def _kcat(broker: Broker, *arguments: str, given: str = "") -> str:
    return run(_KCAT.command("-b", broker.bootstrap, *arguments), _KCAT.environment(), given)


def _read(broker: Broker, topic: str, *arguments: str) -> list[dict[str, Any]]:
    """As kcat's JSON."""
    output = _kcat(broker, "-C", "-t", topic, "-e", "-q", "-J", *arguments)
    return [json.loads(line) for line in output.splitlines()]


def _codecs_headers_and_tombstones(broker: Broker) -> None:
    for codec in _CODECS:
        topic = create_topic(broker.bootstrap, f"kcat-{codec}")
        lines = [f"key {number}:{'value ' * 20}{number}" for number in range(100)]
        arguments = ("-P", "-t", topic, "-z", codec, "-K:", "-H", "colour=blue", "-H", "empty=")
        _kcat(broker, *arguments, "-Z", given="\n".join((*lines, "key 1:")) + "\n")
        found = _read(broker, topic)
        assert [f"{each['key']}:{each['payload']}" for each in found[:-1]] == lines
        assert found[-1]["payload"] is None
        assert [each["offset"] for each in found] == list(range(101))
        assert all(each["headers"] == ["colour", "blue", "empty", ""] for each in found), found[0]
        assert set(codecs(broker, topic)) == {codec}, codecs(broker, topic)


def _queries_by_time(broker: Broker) -> None:
    topic = create_topic(broker.bootstrap, "kcat-times", 2, _KEEP)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(100):
        producer.produce(topic, f"{number}", partition=number % 2, timestamp=_TIME_MS + number * 1000)
    producer.flush(30)
    output = _kcat(
        broker, "-Q", "-t", f"{topic}:0:{_TIME_MS + 10_001}", "-t", f"{topic}:1:{_TIME_MS + 11_000}"
    )
    assert {f"{topic} [0] offset 6", f"{topic} [1] offset 5"} <= set(output.splitlines()), output
    output = _kcat(broker, "-Q", "-t", f"{topic}:0:-2", "-t", f"{topic}:1:-1")
    assert {f"{topic} [0] offset 0", f"{topic} [1] offset 50"} <= set(output.splitlines()), output


def _ranges(broker: Broker) -> None:
    topic = "kcat-times"  # of _queries_by_time

    def payloads(*arguments: str) -> list[str]:
        return [each["payload"] for each in _read(broker, topic, "-p", "0", *arguments)]

    assert payloads("-o", "45") == ["90", "92", "94", "96", "98"]
    assert payloads("-o", "-2") == ["96", "98"]
    assert payloads("-o", "3", "-c", "2") == ["6", "8"]
    assert payloads("-o", f"s@{_TIME_MS + 20_000}", "-o", f"e@{_TIME_MS + 26_000}") == ["20", "22", "24"]


def _group(broker: Broker, strategy: str, directory: Path) -> None:
    """The second member gets partitions of the first; each record is printed once, and what was printed is committed."""
    topic, group = create_topic(broker.bootstrap, f"kcat-{strategy}", 4), f"kcat-{strategy}"
    names = ("first", "second")

    def sent(numbers: range) -> None:
        send(broker, topic, ((f"{number}", f"{number}") for number in numbers), 4)

    def printed(*members: Background) -> list[int]:
        return sorted(int(line) for member in members for line in member.output.splitlines())

    def member(name: str) -> Background:
        settings = (
            f"partition.assignment.strategy={strategy}",
            "auto.offset.reset=earliest",
            f"client.id={name}",
        )
        further = tuple(part for each in settings for part in ("-X", each))
        return Background(
            _KCAT.command("-b", broker.bootstrap, *further, "-u", "-G", group, topic),
            directory,
            _KCAT.environment(),
            name,
        )

    sent(range(100))
    with ExitStack() as stack:
        first = stack.enter_context(member(names[0]))
        first.wait_until(lambda: printed(first) == list(range(100)))
        second = stack.enter_context(member(names[1]))
        second.wait_until(lambda: re.search(rf"assign.*{topic} \[", second.errors))
        sent(range(100, 200))
        second.wait_until(lambda: len(printed(first, second)) >= 200)
        assert printed(first, second) == list(range(200))
        assert len(printed(second)) == 50, second.tail()  # two of four partitions
    assert lag(broker, group, topic) == 0, offsets(broker, group, topic)


def _transaction(broker: Broker) -> None:
    topic = create_topic(broker.bootstrap, "kcat-transaction")
    lines = [f"{number}" for number in range(100)]
    _kcat(broker, "-P", "-t", topic, "-X", "transactional.id=kcat", given="\n".join(lines) + "\n")
    assert [each["payload"] for each in _read(broker, topic, "-X", "isolation.level=read_committed")] == lines
    assert values(broker, topic) == lines
    assert ends(broker, topic) == {0: 101}  # the commit marker


def _metadata(broker: Broker) -> None:
    found = json.loads(_kcat(broker, "-L", "-J"))
    assert [each["name"] for each in found["brokers"]] == [broker.bootstrap], found["brokers"]
    partitions = {each["topic"]: len(each["partitions"]) for each in found["topics"]}
    assert partitions["kcat-times"] == 2
    assert partitions["kcat-range"] == 4


def _version() -> str:
    output = run(_KCAT.command("-V"), _KCAT.environment())
    found = re.search(r"Version (\S+) \(.*librdkafka (\d[\d.]*)", output)
    return f"{found[1]} (librdkafka {found[2]})" if found else "unknown"


KCAT = Tool("kcat", _KCAT.missing, _version, check)
