"""Records are deleted between two runs of a streaming job: `failOnDataLoss` decides whether it stops or continues."""

from __future__ import annotations

import pytest
from pyspark.errors import StreamingQueryException

from compat_tests.spark.streams import JobFactory, numbered, once
from compat_tests.spark.topics import Topics

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(600)]

LOST = r"(?i)data.?loss|some data may have been lost|failOnDataLoss"


def test_deleted_records_stop_the_job(topics: Topics, job: JobFactory) -> None:
    topic = topics.create_unique("trimmed")
    topics.produce_values(topic, numbered("v", 10))
    stream = job(subscribe=topic, failOnDataLoss="true")
    stream.run()
    topics.produce_values(topic, numbered("v", 10, start=10))
    topics.delete_records(topic, {0: 15})
    with pytest.raises(StreamingQueryException, match=LOST):
        stream.run()
    assert stream.values() == once(*numbered("v", 10))


@pytest.mark.long
def test_deleted_records_are_skipped(topics: Topics, job: JobFactory) -> None:
    topic = topics.create_unique("trimmed")
    topics.produce_values(topic, numbered("v", 10))
    stream = job(subscribe=topic, failOnDataLoss="false")
    stream.run()
    topics.produce_values(topic, numbered("v", 10, start=10))
    topics.delete_records(topic, {0: 15})
    stream.run()
    assert stream.values() == once(*numbered("v", 10), *numbered("v", 5, start=15))


@pytest.mark.long
def test_everything_deleted_at_once(topics: Topics, job: JobFactory) -> None:
    topic = topics.create_unique("emptied")
    topics.produce_values(topic, numbered("v", 10))
    stream = job(subscribe=topic, failOnDataLoss="false")
    stream.run()
    topics.produce_values(topic, numbered("lost", 10))
    topics.delete_records(topic, {0: 20})
    stream.run()
    topics.produce_values(topic, numbered("new", 5))
    stream.run()
    assert stream.values() == once(*numbered("v", 10), *numbered("new", 5))


@pytest.mark.long
def test_records_deleted_before_the_first_run_are_no_loss(topics: Topics, job: JobFactory) -> None:
    topic = topics.create_unique("late")
    topics.produce_values(topic, numbered("v", 10))
    topics.delete_records(topic, {0: 4})
    stream = job(subscribe=topic, failOnDataLoss="true")
    stream.run()
    assert stream.values() == once(*numbered("v", 6, start=4))


@pytest.mark.long
def test_a_recreated_topic_stops_the_job(topics: Topics, job: JobFactory) -> None:
    topic = topics.create_unique("anew")
    topics.produce_values(topic, numbered("old", 10))
    stream = job(subscribe=topic, failOnDataLoss="true")
    stream.run()
    topics.delete(topic)
    topics.create(topic)
    topics.produce_values(topic, numbered("new", 3))
    with pytest.raises(StreamingQueryException, match=LOST):
        stream.run()
    assert stream.values() == once(*numbered("old", 10))


def test_the_job_continues_with_a_recreated_topic(topics: Topics, job: JobFactory) -> None:
    topic = topics.create_unique("anew")
    topics.produce_values(topic, numbered("old", 10))
    stream = job(subscribe=topic, failOnDataLoss="false")
    stream.run()
    topics.delete(topic)
    topics.create(topic)
    topics.produce_values(topic, numbered("new", 3))
    stream.run()
    topics.produce_values(topic, numbered("new", 12, start=3))
    stream.run()
    values = stream.values()
    assert values & once(*numbered("old", 10)) == once(*numbered("old", 10))
    assert set(numbered("new", 12, start=3)) <= set(values)
    assert max(values.values()) == 1


@pytest.mark.long
def test_a_deleted_topic_stops_the_job(topics: Topics, job: JobFactory) -> None:
    kept, gone = topics.create_unique("kept"), topics.create_unique("gone")
    for topic in (kept, gone):
        topics.produce_values(topic, numbered(topic, 5))
    pattern = f"{kept}|{gone}"
    stream = job(subscribePattern=pattern, failOnDataLoss="true")
    stream.run()
    topics.delete(gone)
    topics.produce_values(kept, numbered("more", 5))
    with pytest.raises(StreamingQueryException, match=LOST):
        stream.run()
    stream.run(failOnDataLoss="false")
    assert stream.values() == once(*numbered(kept, 5), *numbered(gone, 5), *numbered("more", 5))
