"""Log lines about a binding that starts: what it takes or publishes, and for which partitions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from barnabas.nats.binding.binding import KV

if TYPE_CHECKING:
    from barnabas.nats.binding.binding import Binding


def purpose(binding: Binding, leading: Iterable[int]) -> str:
    """Why a core binding receives messages."""
    if binding.topic_template is not None:
        return f"for the topics of {binding.topic_template.text}"
    if binding.queue_group:
        return f"as a member of the queue group {binding.queue_group}"
    partitions = _listed(leading)
    return f"for {partitions}" if partitions else "as a standby of its partitions' leaders"


def reading(binding: Binding, leading: Iterable[int]) -> str:
    """How a stream or bucket is read."""
    if binding.mode == KV:
        return f"reads the bucket {binding.bucket} for {_listed(leading)}"
    stream = f"the stream {binding.stream}" if binding.stream else "a stream"
    subjects = "all subjects" if binding.takes_whole_stream else ", ".join(binding.patterns)
    return f"reads {stream} ({subjects}), {binding.delivery}, for {_listed(leading)}"


def publishing(binding: Binding, group: str, leading: Iterable[int]) -> str:
    """How records are published."""
    if binding.mode == KV:
        where = f"puts its records into the bucket {binding.bucket}"
    else:
        where = f"publishes its records to {binding.publish_subject.text if binding.publish_subject else ''}"
    return f"{where}, from {_listed(leading)}; its position is that of the group {group}"


def _listed(partitions: Iterable[int]) -> str:
    numbers = ", ".join(map(str, sorted(partitions)))
    if not numbers:
        return ""
    return f"its partitions {numbers}" if "," in numbers else f"its partition {numbers}"
