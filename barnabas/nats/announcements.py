"""What the log says of a binding when it begins to be carried out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from barnabas.nats.binding.binding import KV

if TYPE_CHECKING:
    from barnabas.nats.binding.binding import Binding


def for_whom(binding: Binding, leading: Iterable[int]) -> str:
    """What a core binding takes its messages for."""
    if binding.topic_template is not None:
        return f"for the topics of {binding.topic_template.text}"
    if binding.queue_group:
        return f"as a member of the queue group {binding.queue_group}"
    partitions = _listed(leading)
    return f"for {partitions}" if partitions else "to stand in for the leaders of its partitions"


def reading(binding: Binding, leading: Iterable[int]) -> str:
    """Of a stream or bucket that is read."""
    if binding.mode == KV:
        return f"reads the bucket {binding.bucket} for {_listed(leading)}"
    stream = f"the stream {binding.stream}" if binding.stream else "a stream"
    subjects = "all subjects" if binding.takes_whole_stream else ", ".join(binding.patterns)
    return f"reads {stream} ({subjects}), {binding.delivery}, for {_listed(leading)}"


def publishing(binding: Binding, group: str, leading: Iterable[int]) -> str:
    """Of records that go out."""
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
