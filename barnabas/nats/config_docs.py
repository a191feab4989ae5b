"""The documentation of the configs in configs.py, as DescribeConfigs shows it. Loaded when a client asks for it."""

from __future__ import annotations

from functools import cache
from typing import Final

from barnabas.controller.metadata.image import BROKER_RESOURCE, TOPIC_RESOURCE
from barnabas.nats.configs import split_connection

_TOPIC_DOCS: Final = """
nats.subjects|Subjects of NATS whose messages become records of this topic, with the wildcards * and >. Empty binds none.
nats.exclude|Subjects that are left out of nats.subjects, with wildcards, too.
nats.mode|The source of messages: subscriptions (core), a stream (jetstream) or a key-value bucket (kv).
nats.connection|The connection to use: NAME of the brokers' nats.connection.NAME.servers; empty is that of nats.servers.
nats.paused|Whether the binding is paused: while true, no message is stored and no record published.
nats.key|The record's key: subject, token:N, tokens:N,N, header:NAME, regex:PATTERN, reply, json:$.path or none.
nats.partitioner|How the partition is chosen: by the key as in Java producers (murmur2), as in the server's partition() (fnv1a), or by a number in the subject (token:N). A header Kafka-Partition takes precedence.
nats.acks|In mode core: which messages are acknowledged once stored: none (off), messages with a header Kafka-Ack (header), or all that can be replied to (reply).
nats.dedup.window.ms|In mode core: how long a message with the same Nats-Msg-Id counts as a duplicate, in ms; 0 turns this off.
nats.queue.group|The queue group the brokers join, to share subjects with other subscribers. Order across members is lost.
nats.topic.template|Names of topics made of the subject, as {1}.{2} or {subject}; they are created with their first message.
nats.topic.max|How many topics nats.topic.template may create.
nats.template.of|The bound topic whose nats.topic.template this topic belongs to. Set when the template creates a topic.
nats.dead.letter.topic|The topic for messages that can't be stored; without one they are counted and dropped.
nats.buffer.bytes|How many bytes of messages may wait in a broker before it stops reading from the server.
nats.stream|The stream to read in mode jetstream, the whole of it where nats.subjects is empty; when empty, the broker asks the server which stream has the subjects.
nats.delivery|Mode jetstream: each message once, by its sequence number in the log (exactly-once), or at least once.
nats.durable|The name of the durable consumer with nats.delivery=at-least-once; empty makes one of the cluster's and the topic's names.
nats.start|Where a new consumer begins in mode jetstream: all, new, seq:N or time:T (RFC 3339).
nats.max.deliver|With nats.delivery=at-least-once: how often a message is tried before it is a dead letter; -1 is without limit.
nats.bucket|The key-value bucket in mode kv.
nats.direction|Mode kv: from the bucket to the topic (in), from the topic to the bucket (out), or both.
nats.publish.subject|Where this topic's records are published, made of {key}, {topic}, {partition}, {header:NAME} and text. Empty publishes none.
nats.publish.jetstream|Whether the position moves behind a published record only when a stream has acknowledged it.
nats.publish.group|The consumer group whose offsets are the position of publishing; empty makes one of the topic's name.
"""

_BROKER_DOCS: Final = """
nats.servers|Servers of NATS, nats://host:port or tls://host:port, optionally with user:password@ before the host. Empty connects to none.
nats.user|The user to log in to NATS as.
nats.password|The password of nats.user.
nats.token|The token to log in to NATS with.
nats.nkey.seed.file|A file with the NKEY seed to log in to NATS with.
nats.credentials.file|A .creds file (a user's JWT and seed) to log in to NATS with.
nats.tls.ca.file|Certificates of the authorities that sign the server's certificate, in PEM; by default the system's.
nats.tls.certificate.file|This broker's own certificate, in PEM, where the server asks for one.
nats.tls.key.file|The key of nats.tls.certificate.file.
nats.tls.handshake.first|Whether TLS begins at once, as with handshake_first in the server's configuration.
nats.jetstream.domain|The JetStream domain to use; empty is that of the server.
nats.connect.timeout.ms|How long connecting to one server may take, in ms.
nats.ping.interval.ms|The interval of pings to the server, in ms.
"""

_BY_RESOURCE: Final = {TOPIC_RESOURCE: _TOPIC_DOCS, BROKER_RESOURCE: _BROKER_DOCS}


def documentation(resource_type: int, name: str) -> str | None:
    """The text for a property of a resource type (ConfigResource.Type); None when there is none."""
    if resource_type == BROKER_RESOURCE:
        found = split_connection(name)  # the texts are those of the connection without a name
        name = name if found is None else found[1]
    return _texts(resource_type).get(name)


@cache
def _texts(resource_type: int) -> dict[str, str]:
    return dict(line.split("|", 1) for line in _BY_RESOURCE.get(resource_type, "").splitlines() if line)
