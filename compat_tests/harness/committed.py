"""Committed offsets of a group; waits while its coordinator loads, as librdkafka's admin client returns that error and
does not retry as its consumers do."""

from __future__ import annotations

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from compat_tests.harness.eventually import eventually

NOT_YET = (
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
)


def committed(admin: AdminClient, group: str) -> list[TopicPartition]:
    """Each partition with its offset; raises KafkaException for an error that is not transient."""

    def answer() -> tuple[list[TopicPartition]] | None:
        try:
            found = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(30)
        except KafkaException as error:
            if error.args[0].code() in NOT_YET:
                return None
            raise
        return (list(found.topic_partitions or ()),)

    answered = eventually(answer)
    assert answered is not None
    return answered[0]
