"""Repeats requests that fail because the cluster changes.

This happens on a busy machine: during an election, while a coordinator is loading, or when a broker is fenced for a moment and
librdkafka drops it together with its outstanding requests.
"""

from __future__ import annotations

from collections.abc import Callable

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from compat_tests.harness.confluent_admin import NewTopic
from compat_tests.harness.eventually import eventually

_ASK_AGAIN = (
    KafkaError.NOT_CONTROLLER,
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError._DESTROY_BROKER,
    KafkaError._TRANSPORT,
    KafkaError._TIMED_OUT,
)


def ask(request: Callable[[], object]) -> None:
    """Repeat an idempotent request until it succeeds. Raises KafkaException for an error that is not transient."""
    eventually(lambda: not _is_lost(request))


def ask_for_topic(admin: AdminClient, new: NewTopic) -> None:
    """Create the topic. Raises KafkaException if it existed before."""
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
    except TimeoutError:  # of the future of a request
        return True
    except KafkaException as error:
        if error.args[0].code() in _ASK_AGAIN:
            return True
        raise
    return False
