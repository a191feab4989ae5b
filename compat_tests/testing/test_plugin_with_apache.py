"""With `--kafka=apache` the pytest plugin's fixtures start Apache Kafka; run by `make test-apache`."""

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

        def test_records(kafka):
            topic = kafka.topic("orders", 2)
            kafka.broker.seed(topic, [("order-1", {"amount": 12}), b"v"])
            assert sorted(record.value for record in kafka.broker.records(topic)) == [b"v", b'{"amount":12}']
            stored = kafka.broker.produce("made", "v", key="k", headers={"h": "1"})
            assert kafka.broker.records("made") == [stored]

        def test_records_of_transactions(kafka):
            topic = kafka.topic()
            producer = kafka.producer(transactional_id=kafka.name("sender"))
            producer.init_transactions()
            for value, end in ((b"no", producer.abort_transaction), (b"yes", producer.commit_transaction)):
                producer.begin_transaction()
                producer.send(topic, value).get(30)
                end()
            assert [(record.offset, record.value) for record in kafka.broker.records(topic)] == [(2, b"yes")]

        def test_faults(kafka):
            kafka.broker.on("Produce").error("NOT_LEADER_OR_FOLLOWER")

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
    result.assert_outcomes(passed=5, failed=1, skipped=1)
    result.stdout.fnmatch_lines(["*- Kafka broker's log -*", "*reported*"])
