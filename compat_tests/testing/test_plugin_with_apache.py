"""The pytest plugin's fixtures are those of Apache Kafka where they are told to be; run by `make test-apache`."""

from __future__ import annotations

import pytest

from compat_tests.harness.kafka_jars import ensure_jars

pytest_plugins = ["pytester"]


def test_the_fixtures_are_apache_kafka(broker_kind: str, pytester: pytest.Pytester) -> None:
    if broker_kind != "apache":
        pytest.skip("about Apache Kafka: --broker apache")
    pytester.makepyfile(
        """
        import pytest

        def test_shared(kafka, kafka_topic, kafka_producer, kafka_consumer):
            kafka_producer.send(kafka_topic, b"v").get(30)
            assert next(kafka_consumer).value == b"v"
            assert set(kafka.broker.topics()) == {kafka_topic}

        def test_shared_again(kafka):
            assert kafka.broker.topics() == {}

        @pytest.mark.kafka({"num.partitions": 3})
        def test_cluster(kafka_cluster):
            cluster = kafka_cluster(2)
            cluster.create_topic("wide", replication_factor=2)
            assert cluster.topics() == {"wide": 3}
            assert len(cluster.bootstrap_servers.split(",")) == 2

        def test_log_is_reported(kafka):
            kafka.topic("reported")
            assert False
        """
    )
    result = pytester.runpytest_inprocess(
        "-q", "-p", "no:cacheprovider", "-W", "ignore", "--kafka=apache", f"--kafka-home={ensure_jars()}"
    )
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines(["*- Kafka broker's log -*", "*reported*"])
