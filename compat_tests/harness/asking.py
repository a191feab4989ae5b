"""Requests of an admin in a cluster that changes just then: clients get an error, and ask again.

A busy machine is enough for that: an election, or a broker that is missed for a moment and that librdkafka forgets together with
what it has asked of it.
"""

from __future__ import annotations

from collections.abc import Callable

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from compat_tests.harness.confluent_admin import NewTopic
from compat_tests.harness.eventually import eventually

_ASK_AGAIN = (
    KafkaError.NOT_CONTROLLER,
    KafkaError._DESTROY_BROKER,
    KafkaError._TRANSPORT,
    KafkaError._TIMED_OUT,
)


def ask(request: Callable[[], object]) -> None:
    """Make a request that may be made twice, until it has an answer. KafkaException for one that will not change."""
    eventually(lambda: not _is_lost(request))


def ask_for_topic(admin: AdminClient, new: NewTopic) -> None:
    """Have it made. KafkaException where it was there before."""
    tries = 0

    def create() -> None:
        nonlocal tries
        tries += 1
        try:
            admin.create_topics([new])[new.topic].result(30)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS or tries == 1:
                raise

    ask(create)


def _is_lost(request: Callable[[], object]) -> bool:
    try:
        request()
    except KafkaException as error:
        if error.args[0].code() in _ASK_AGAIN:
            return True
        raise
    return False
