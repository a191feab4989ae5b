"""`celery -A celery_app worker`, and `python celery_app.py COUNT`, which sends that many tasks to two queues."""

from __future__ import annotations

import os
import sys

from celery import Celery  # type: ignore[import-not-found]

app = Celery(
    "celery_app",
    broker=f"confluentkafka://{os.environ['BOOTSTRAP']}/",
    backend=f"file://{os.environ['RESULTS']}",
)
app.conf.update(
    task_routes={"celery_app.double": {"queue": "doubles"}, "celery_app.shout": {"queue": "shouts"}},
    worker_enable_remote_control=False,  # needs a fan-out, which this transport does not have
    worker_send_task_events=False,
    broker_transport_options={"wait_time_seconds": 1, "kafka_consumer_config": {"session.timeout.ms": 6000}},
)


def double(number: int) -> int:
    """A task of the first queue."""
    return 2 * number


def shout(text: str) -> str:
    """A task of the second queue."""
    return text.upper()


doubling, shouting = (app.task(name=f"celery_app.{each.__name__}")(each) for each in (double, shout))

if __name__ == "__main__":
    count = int(sys.argv[1])
    doubles = [doubling.delay(number) for number in range(count)]
    shouts = [shouting.delay(f"text {number}") for number in range(count)]
    assert [each.get(timeout=60) for each in doubles] == [2 * number for number in range(count)]
    assert [each.get(timeout=60) for each in shouts] == [f"TEXT {number}" for number in range(count)]
