"""A topic's binding to NATS: its nats.* configs with their types, and what follows from them."""

from __future__ import annotations

from typing import Final

import msgspec

from barnabas.nats.binding.keys import SUBJECT_KEY, KeySpec, PartitionerSpec, StartSpec
from barnabas.nats.binding.subjects import ONE, REST, covers, overlap, without_covered
from barnabas.nats.binding.templates import PublishTemplate, TopicTemplate

CORE: Final = "core"
JETSTREAM: Final = "jetstream"
KV: Final = "kv"

# Subjects that are left out of a pattern that begins with a wildcard: the server's own, and answers to requests.
INTERNAL: Final = (
    *("$BARNABAS.>", "$SYS.>", "$JS.>", "$JSC.>", "$NRG.>", "$SRV.>", "$KV.>", "$O.>", "$MQTT.>", "$G.>"),
    *("_INBOX.>", "_R_.>", "_GR_.>", "_BARNABAS.>"),
)
# Those of them that streams may have, and that are read like any other.
IN_STREAMS: Final = ("$KV.>", "$O.>", "$MQTT.>", "$SRV.>")


class Binding(msgspec.Struct, frozen=True):
    """The nats.* configs of a topic, typed. Equal bindings behave alike."""

    topic: str
    subjects: tuple[str, ...] = ()  # as given; `patterns` is what is subscribed to
    excludes: tuple[str, ...] = ()
    mode: str = CORE
    connection: str = ""  # "" is the one of nats.servers
    paused: bool = False
    key: KeySpec = SUBJECT_KEY
    partitioner: PartitionerSpec = PartitionerSpec("murmur2")
    acks: str = "header"
    dedup_window_ms: int = 120_000
    queue_group: str = ""
    topic_template: TopicTemplate | None = None
    topic_max: int = 100
    dead_letter_topic: str = ""
    buffer_bytes: int = 67_108_864
    stream: str = ""
    delivery: str = "exactly-once"
    durable: str = ""
    start: StartSpec = StartSpec("all")
    max_deliver: int = -1
    bucket: str = ""
    direction: str = "both"
    publish_subject: PublishTemplate | None = None
    publish_jetstream: bool = False
    publish_group: str = ""

    @property
    def takes_whole_stream(self) -> bool:
        """Whether the stream is read as a whole, whatever its subjects are."""
        return self.mode == JETSTREAM and bool(self.stream) and not self.subjects

    @property
    def patterns(self) -> tuple[str, ...]:
        """The patterns to subscribe to, none of which covers another; empty when the topic only publishes."""
        if self.mode == KV:
            return (f"$KV.{self.bucket}.>",) if self.direction != "out" else ()
        if self.takes_whole_stream:
            return (REST,)
        return without_covered(self.subjects)

    @property
    def unwanted(self) -> tuple[str, ...]:
        """Excluded patterns: `excludes` and, where a pattern begins with a wildcard, subjects internal to NATS."""
        if self.takes_whole_stream or all(
            pattern.split(".", 1)[0] not in (ONE, REST) for pattern in self.patterns
        ):
            return self.excludes
        # A stream may hold such subjects, as that of a bucket does.
        internal = [each for each in INTERNAL if self.mode != JETSTREAM or each not in IN_STREAMS]
        return (*self.excludes, *internal)

    @property
    def ingests(self) -> bool:
        """Whether messages become records."""
        return bool(self.patterns)

    @property
    def publishes(self) -> bool:
        """Whether records become messages."""
        return self.publish_subject is not None or (self.mode == KV and self.direction != "in")

    @property
    def published_pattern(self) -> str | None:
        """A pattern that matches all subjects it can publish to, for `overlap`; None when it does not publish."""
        if self.mode == KV:
            return f"$KV.{self.bucket}.>" if self.direction != "in" else None
        return None if self.publish_subject is None else self.publish_subject.pattern(self.topic)

    def takes_of(self, pattern: str) -> bool:
        """Whether it receives some of the messages published to `pattern`."""
        unwanted = self.unwanted
        return any(
            overlap(each, pattern)
            and not any(covers(other, pattern) or covers(other, each) for other in unwanted)
            for each in self.patterns
        )
