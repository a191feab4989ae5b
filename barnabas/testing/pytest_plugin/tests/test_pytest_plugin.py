"""The pytest plugin, in test runs of its own: what its fixtures give, that tests do not see each other, what a report says."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from barnabas.api_table import registrations
from barnabas.testing import Broker

pytestmark = pytest.mark.sockets

pytest_plugins = ["pytester"]


@pytest.fixture(scope="module", autouse=True)
def handlers() -> None:
    """A run of pytester drops the modules that it was the first to import; a handler that is imported again registers again."""
    registrations()


@pytest.fixture
def elsewhere() -> Iterator[Broker]:
    """A broker that somebody else has started."""
    with Broker() as broker:
        yield broker


def run(pytester: pytest.Pytester, source: str, *options: str) -> pytest.RunResult:
    """A run in this process, of a file with these tests."""
    pytester.makepyfile(source)
    return pytester.runpytest_inprocess("-q", "-p", "no:cacheprovider", "-W", "ignore", *options)


def test_tests_share_a_broker_and_see_nothing_of_each_other(pytester: pytest.Pytester) -> None:
    before = threading.enumerate()
    result = run(
        pytester,
        """
        seen = {}

        def test_first(kafka):
            seen["port"] = kafka.broker.port
            seen["topic"] = kafka.topic("orders", 2)
            kafka.broker.seed(seen["topic"], [b"v"])
            kafka.broker.seed("made beside".replace(" ", "-"), [b"v"])
            assert kafka.topic("orders") == seen["topic"] + "-2"

        def test_second(kafka):
            assert kafka.broker.port == seen["port"]
            assert kafka.broker.topics() == {}
            assert kafka.topic("orders") != seen["topic"]
            assert kafka.name("group").startswith(kafka.prefix)
        """,
    )
    result.assert_outcomes(passed=2)
    assert not set(threading.enumerate()).difference(before)


def test_faults_of_a_test_end_with_it(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import pytest

        @pytest.fixture(scope="session")
        def lasting(kafka_session):
            kafka_session.broker.seed("lasting", [b"v"])

        @pytest.mark.parametrize(
            "fault", ["rule", "latency", "limit", "clock", "paused", "killed", "stopped", "loading"]
        )
        def test_it(lasting, kafka, fault):
            broker = kafka.broker
            assert len(broker.requests) == 0 and broker.clock.ahead_s == 0
            topic = kafka.topic()
            producer = kafka.producer()
            producer.send(topic, b"v").get(30)
            consumer = kafka.consumer(topic)
            assert next(consumer).value == b"v"
            assert [record.value for record in broker.records("lasting")] == [b"v"]
            consumer.close()
            if fault != "rule":
                producer.close()
            match fault:
                case "rule": broker.on("*").error("UNKNOWN_SERVER_ERROR")
                case "latency": broker.faults.latency(3600)
                case "limit": broker.faults.limit_api("Produce", None)
                case "clock": broker.clock.advance(60)
                case "paused": broker.pause_node(1)
                case "killed": broker.kill_node(1)
                case "stopped": broker.stop()
                case "loading": broker.load_coordinator(broker.groups()[0])

        def test_it_is_well(lasting, kafka):
            test_it(lasting, kafka, None)
            assert set(kafka.broker.topics()) - {"lasting"} == {kafka.prefix + "topic"}
        """,
    )
    result.assert_outcomes(passed=9)


def test_schemas_of_a_test_end_with_it(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import json
        import urllib.request

        import pytest

        SCHEMA = {"type": "record", "name": "Order", "fields": []}

        def ask(url, body=None):
            data = None if body is None else json.dumps(body).encode()
            with urllib.request.urlopen(urllib.request.Request(url, data)) as answer:
                return json.load(answer)

        @pytest.fixture(scope="session")
        def lasting(kafka_session):
            url = kafka_session.schema_registry_url
            subject = kafka_session.name("lasting")
            ask(f"{url}/subjects/before/versions", {"schema": '"int"'})
            return subject

        @pytest.mark.parametrize("number", [1, 2])
        def test_it(lasting, kafka, number):
            url = kafka.schema_registry_url
            assert ask(f"{url}/subjects") == (["before"] if number == 1 else ["before", lasting])
            assert ask(f"{url}/subjects/before/versions") == [1]
            assert ask(f"{url}/config") == {"compatibilityLevel": "BACKWARD"}
            answer = ask(f"{url}/subjects/{kafka.name('orders')}/versions", {"schema": json.dumps(SCHEMA)})
            assert answer["id"] == 2  # of the schema, whatever subjects have come and gone
            ask(f"{url}/subjects/before/versions", {"schema": '"long"'})
            ask(f"{url}/subjects/{lasting}/versions", {"schema": '"string"'})
            kafka.broker.stop()
            kafka.broker.start()
            assert len(ask(f"{url}/subjects")) == 3

        def test_without(kafka):
            assert kafka.broker.schema_registry.subjects() == ["before", kafka_session_prefix(kafka) + "lasting"]

        def kafka_session_prefix(kafka):
            return kafka._backend.lasting_prefixes[0]

        def test_of_its_own(kafka_broker):
            assert ask(f"{kafka_broker.schema_registry_url}/subjects") == []
        """,
    )
    result.assert_outcomes(passed=4)


def test_the_rest_is_ended_where_something_does_not_end(pytester: pytest.Pytester) -> None:
    before = threading.enumerate()
    result = run(
        pytester,
        """
        import functools

        def test_client(kafka):
            def close():
                producer.close()
                raise OSError("does not close")

            kafka.topic()
            producer = kafka.producer()
            kafka._clients += [type("Client", (), {"close": staticmethod(close)})]

        def test_after_it(kafka):
            assert kafka.broker.topics() == {}

        def test_cluster(kafka_cluster):
            def stop(own_stop):
                own_stop()
                raise OSError("does not stop")

            for _ in range(2):
                broker = kafka_cluster(1)
                broker.stop = functools.partial(stop, broker.stop)
        """,
    )
    result.assert_outcomes(passed=3, errors=2)
    assert not set(threading.enumerate()).difference(before)


def test_ready_made_clients(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import asyncio

        def test_topic_producer_and_consumer(kafka, kafka_topic, kafka_producer, kafka_consumer):
            kafka_producer.send(kafka_topic, b"v").get(30)
            assert next(kafka_consumer).value == b"v"
            assert [record.value for record in kafka.broker.records(kafka_topic)] == [b"v"]

        def test_asynchronous_ones(kafka):
            async def main():
                topic = kafka.topic()
                async with kafka.aio_producer() as producer:
                    await producer.send_and_wait(topic, b"v")
                async with kafka.aio_consumer(topic), kafka.aio_consumer(topic) as consumer:
                    assert (await consumer.getone()).value == b"v"

            asyncio.run(main())
        """,
    )
    result.assert_outcomes(passed=2)


def test_a_fresh_broker_and_a_cluster(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import pytest

        pytestmark = pytest.mark.kafka({"num.partitions": 3})

        @pytest.mark.kafka(num_partitions=5)
        def test_fresh(kafka_broker):
            kafka_broker.create_topic("five")
            assert kafka_broker.topics() == {"five": 5}

        def test_fresh_again(kafka_broker):
            assert kafka_broker.topics() == {}

        def test_cluster(kafka_cluster):
            cluster = kafka_cluster(2, {"default.replication.factor": 2})
            cluster.create_topic("three")
            assert cluster.topics() == {"three": 3}
            assert len(cluster.bootstrap_servers.split(",")) == 2
        """,
    )
    result.assert_outcomes(passed=3)


def test_the_session_s_broker_has_properties_of_the_ini_file(pytester: pytest.Pytester) -> None:
    pytester.makeini(
        "[pytest]\nkafka_properties =\n    num.partitions=7\n    auto.create.topics.enable = false\n"
    )
    result = run(
        pytester,
        """
        def test_it(kafka):
            kafka.broker.create_topic("seven")
            assert kafka.broker.topics() == {"seven": 7}
        """,
    )
    result.assert_outcomes(passed=1)


def test_a_failing_test_s_report_has_log_and_requests(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import logging

        def test_before(kafka, kafka_producer, kafka_topic):
            kafka_producer.send(kafka_topic, b"v").get(30)

        def test_it(kafka):
            topic = kafka.topic("mine")
            producer = kafka.producer(client_id="asker")
            producer.send(topic, b"v").get(30)
            logging.getLogger("barnabas.node").warning("said by the broker")
            assert False
        """,
    )
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "*- Kafka broker's log -*",
            "*WARNING barnabas.node: said by the broker*",
            "*- Kafka requests -*",
            "*asker Produce v*test-it-*mine*answered*",
        ]
    )
    result.stdout.no_fnmatch_line("*test-before-*")


def test_a_request_that_is_repeated_is_reported_once(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        def test_it(kafka):
            consumer = kafka.consumer(client_id="asker")
            for _ in range(20):
                consumer.topics()
            assert False
        """,
    )
    result.stdout.fnmatch_lines(["*asker Metadata*answered*", "*... and * more of the same until then"])
    assert sum("asker Metadata" in line for line in result.outlines) < 10


def test_caplog_has_what_the_code_under_test_says(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import logging
        import pytest

        @pytest.fixture
        def listening():
            handler = logging.NullHandler()
            logging.getLogger("barnabas").addHandler(handler)
            yield handler
            logging.getLogger("barnabas").removeHandler(handler)

        @pytest.mark.parametrize("number", [1, 2])
        def test_it(kafka, listening, caplog, number):
            logging.getLogger("barnabas.node").warning("said by the broker")
            logging.getLogger("mine").warning("said by the code")
            kafka.broker.call(lambda: logging.getLogger("barnabas.node").warning("said on its loop"))
            assert caplog.messages == ["said by the code"]
            assert listening in logging.getLogger("barnabas").handlers
        """,
    )
    result.assert_outcomes(passed=2)


def test_a_fixture_of_the_session(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import pytest

        @pytest.fixture(scope="session")
        def app(kafka_session):
            return kafka_session.topic("orders")

        def test_first(app, kafka, kafka_session):
            assert kafka.bootstrap_servers == kafka_session.bootstrap_servers
            kafka_session.broker.seed(app, [b"v"])
            kafka_session.topic("made-later")
            kafka.topic("own")

        def test_second(app, kafka, kafka_session):
            assert sorted(kafka.broker.topics()) == [kafka_session.prefix + "made-later", app]
            assert len(kafka.broker.records(app)) == 1
        """,
    )
    result.assert_outcomes(passed=2)


def test_marks_that_can_t_be_heeded(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import pytest

        @pytest.mark.kafka({"num.partitions": 3})
        def test_shared(kafka_topic): pass

        @pytest.mark.kafka("num.partitions=3")
        def test_text(kafka_broker): pass

        @pytest.mark.kafka({"num.partitions": 3})
        class TestsOfBothKinds:
            def test_shared(self, kafka): pass

            def test_own(self, kafka, kafka_broker): pass
        """,
    )
    result.assert_outcomes(passed=2, errors=2)
    result.stdout.fnmatch_lines(
        [
            "@pytest.mark.kafka needs kafka_broker *kafka_properties",
            "@pytest.mark.kafka takes a mapping, such as {'num.partitions': 3}, and not 'num.partitions=3'",
        ]
    )


def test_the_nearest_mark_counts(pytester: pytest.Pytester) -> None:
    """Of each property: parameters before the function, that before its class, a class before its bases, then the module."""
    result = run(
        pytester,
        """
        import pytest

        pytestmark = pytest.mark.kafka({"num.partitions": 2, "message.max.bytes": 70_000})

        def partitions(broker):
            broker.create_topic("t")
            assert broker.effective_config("t")["max.message.bytes"] == "70000"
            return broker.topics()["t"]

        @pytest.mark.kafka({"num.partitions": 3})
        class Base: pass

        @pytest.mark.kafka(num_partitions=4)
        class TestDerived(Base):
            def test_class(self, kafka_broker):
                assert partitions(kafka_broker) == 4

            @pytest.mark.kafka(num_partitions=5)
            @pytest.mark.parametrize("count", [
                pytest.param(6, marks=pytest.mark.kafka(num_partitions=6)), 5,
            ])
            def test_parameter(self, kafka_broker, count):
                assert partitions(kafka_broker) == count

            class TestInner:
                def test_inner(self, kafka_cluster):
                    assert partitions(kafka_cluster(1)) == 4

        class TestInherited(Base):
            def test_base(self, kafka_broker):
                assert partitions(kafka_broker) == 3

            @pytest.fixture
            def broker(self, request):
                return request.getfixturevalue("kafka_broker")

            def test_by_another_fixture(self, broker):
                assert partitions(broker) == 3

        def test_module(kafka_broker):
            assert partitions(kafka_broker) == 2
        """,
    )
    result.assert_outcomes(passed=7)


def test_a_mark_of_tests_that_all_share_a_broker_is_refused(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_module="""
        import pytest

        pytestmark = pytest.mark.kafka({"num.partitions": 3})

        def test_shared(kafka): pass
        def test_without_kafka(): pass
        """,
        test_class="""
        import pytest

        @pytest.mark.kafka({"num.partitions": 3})
        class TestShared:
            def test_shared(self, kafka_topic): pass

        def test_elsewhere(kafka_broker): pass
        """,
        test_both="""
        import pytest

        pytestmark = [pytest.mark.kafka({"num.partitions": 3})]

        def test_shared(kafka): pass
        class TestOwn:
            def test_own(self, kafka_broker): pass
        """,
    )
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=4, errors=2)
    result.stdout.fnmatch_lines(["@pytest.mark.kafka on TestShared, none of whose tests *"])
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", "-k", "test_shared and test_both")
    result.assert_outcomes(passed=1, deselected=5)
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", "test_both.py::test_shared")
    result.assert_outcomes(passed=1)


def test_a_mark_without_properties_is_a_label(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import pytest

        @pytest.mark.kafka
        def test_labelled(kafka): pass

        @pytest.mark.kafka
        def test_own(kafka_broker): pass

        def test_other(): pass
        """,
        "-m",
        "kafka",
    )
    result.assert_outcomes(passed=2, deselected=1)


def test_a_passing_run_leaves_logging_as_it_was(pytester: pytest.Pytester) -> None:
    import logging

    logger = logging.getLogger("barnabas")
    before = logger.level, logger.propagate, list(logger.handlers)
    run(pytester, "def test_it(kafka): pass").assert_outcomes(passed=1)
    assert (logger.level, logger.propagate, logger.handlers) == before


def test_against_a_broker_that_runs_already(pytester: pytest.Pytester, elsewhere: Broker) -> None:
    elsewhere.create_topic("somebody-elses")
    result = run(
        pytester,
        """
        def test_shared(kafka, kafka_topic, kafka_producer, kafka_consumer):
            kafka_producer.send(kafka_topic, b"v").get(30)
            assert next(kafka_consumer).value == b"v"
            assert set(kafka.broker.topics()) == {"somebody-elses", kafka_topic}
            kafka.broker.seed(kafka_topic, [("key", {"amount": 12})])
            assert [record.key for record in kafka.broker.records(kafka_topic)] == [None, b"key"]

        def test_faults(kafka):
            kafka.broker.on("Produce").error("NOT_LEADER_OR_FOLLOWER")
            assert False

        def test_schemas(kafka):
            kafka.schema_registry_url
            assert False

        def test_fresh(kafka_broker):
            assert False
        """,
        f"--kafka={elsewhere.bootstrap_servers}",
        "-rs",
    )
    result.assert_outcomes(passed=1, skipped=3)
    result.stdout.fnmatch_lines_random(
        [
            "SKIPPED*needs a broker of its own*",
            f"SKIPPED*'on' takes Barnabas in this process, and this is another broker ({elsewhere.bootstrap_servers})",
        ]
    )
    assert elsewhere.topics() == {"somebody-elses": 1}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--kafka=apache", "ERROR: --kafka apache needs Apache Kafka*--kafka-home*KAFKA_HOME*"),
        ("--kafka-home=/nowhere", "ERROR: --kafka-home is for --kafka=apache*--kafka=barnabas"),
        ("--kafka=apache --kafka-home=/nowhere", "ERROR: --kafka apache: /nowhere is no Apache Kafka*jar"),
        ("--kafka=rabbit", "ERROR: --kafka rabbit: it is barnabas, apache, or HOST:PORT*"),
        (
            "--kafka=127.0.0.1:1",
            "ERROR: --kafka 127.0.0.1:1: no broker answers at 127.0.0.1:1: *Connection refused",
        ),
        ("-o kafka_properties=num.partitions", "ERROR: kafka_properties: 'num.partitions' is no name=value"),
    ],
)
def test_what_is_missing_is_said_once(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, options: str, message: str
) -> None:
    monkeypatch.delenv("KAFKA_HOME", raising=False)
    result = run(pytester, "def test_it(kafka): pass", *options.split())
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert [line for line in result.stdout.lines + result.stderr.lines if line] == result.stderr.lines[:1]
    result.stderr.fnmatch_lines([message])


def test_a_missing_client_is_named(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import sys

        def test_it(monkeypatch, kafka):
            monkeypatch.setitem(sys.modules, "kafka", None)
            kafka.producer()
        """,
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*kafka-python, which is not installed*pip install kafka-python*"])


def test_nothing_is_loaded_where_nothing_is_used(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import sys

        def test_it():
            loaded = {name for name in sys.modules if name.split(".")[0] in ("barnabas", "msgspec", "kafka")}
            assert loaded == {"barnabas", "barnabas.testing", "barnabas.testing.pytest_plugin"}
        """
    )
    pytester.runpytest_subprocess("-q", "-p", "no:cacheprovider").assert_outcomes(passed=1)


def test_a_cluster_of_processes_ends_with_its_test_and_its_log_is_shown(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import os

        seen = []

        def test_dies(kafka_cluster):
            broker = kafka_cluster(1, {"num.partitions": 3}, processes=True)
            seen.append(broker.nodes[0].pid)
            assert seen[0] != os.getpid()
            broker.kill_node(1)
            broker.start_node(1)
            broker.create_topic("orders")
            seen.append(broker.nodes[0].pid)
            assert broker.topics() == {"orders": 4}

        def test_ends():
            assert len(seen) == 2
            assert not [pid for pid in seen if os.path.exists(f"/proc/{pid}")]
        """,
    )
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        ["*{'orders': 3} == {'orders': 4}*", "*- Kafka broker's log -*", "*running on*"]
    )


def test_a_mark_secures_the_brokers_of_a_test(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import pytest
        from barnabas.testing import Security
        from kafka import KafkaProducer

        SECURED = Security(protocol="SASL_PLAINTEXT", mechanisms=["PLAIN"], users={"alice": "secret"})

        @pytest.mark.kafka({"num.partitions": 3}, security=SECURED)
        def test_secured(kafka_broker, kafka_security):
            producer = KafkaProducer(**kafka_security.client("kafka-python", user="alice"))
            producer.send("orders", b"1").get(30)
            producer.close()
            assert kafka_broker.topics() == {"orders": 3}

        def test_open(kafka_cluster):
            assert kafka_cluster(1, security=SECURED).security.users == ["alice"]
            with pytest.raises(ValueError, match="open to everyone"):
                kafka_cluster(1).security

        @pytest.mark.kafka(security="SASL_SSL")
        def test_none(kafka_broker): ...
        """,
    )
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines(["*takes security=Security(...), and not str*"])
