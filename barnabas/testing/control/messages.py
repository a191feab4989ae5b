"""What goes over HTTP: each struct is a JSON object with these fields, and a schema of the description.

Names are those of the Python side. Fields that are not given have the defaults below.
"""

from __future__ import annotations

import base64
from typing import Any

import msgspec

from barnabas.testing.security import Acl


class Failure(msgspec.Struct):
    """Why a request did not succeed."""

    error: str


class NodeStatus(msgspec.Struct):
    """One node. `paused` ones keep their connections and answer nothing."""

    id: int
    port: int
    running: bool
    paused: bool


class Status(msgspec.Struct):
    """The whole broker. `time_ms` is its clock, milliseconds since the epoch."""

    version: str
    as_version: str | None
    bootstrap_servers: str
    schema_registry_url: str
    nodes: list[NodeStatus]
    time_ms: int


class NewRule(msgspec.Struct, forbid_unknown_fields=True):
    """Which requests, and what happens to them. One action or more; `delay_s` and `hold` go with another one."""

    api: str  # Kafka's name, such as Produce, or *
    topic: str | None = None  # or a pattern, such as orders-*
    topic_id: str | None = None  # in base64, as Kafka writes it; also of a topic that is gone
    partition: int | None = None
    group: str | None = None
    transactional_id: str | None = None
    client_id: str | None = None
    node: int | None = None
    nth: int | None = None  # the first call that counts, 1 or more
    times: int | None = None  # how often; not given: once with nth, else always
    probability: float | None = None  # 0 to 1
    # Actions:
    error: str | None = None  # Kafka's name, such as NOT_LEADER_OR_FOLLOWER
    error_message: str | None = None
    whole: bool | None = None  # the error is of the whole answer (true) or of its innermost elements (false)
    delay_s: float | None = None
    hold: bool = False
    drop_answer: bool = False
    close: bool = False
    truncate: int | None = None  # bytes of the answer that are sent
    answer: dict[str, Any] | None = (
        None  # fields of the answer, in snake_case; bytes as base64, records as a list of records, too
    )
    served: bool | None = (
        None  # whether the broker serves the request first; not given: what the action does in Python
    )


class RuleStatus(msgspec.Struct):
    """A rule. `calls` met its conditions, something was done to `hits` of them, and `held` wait for a release."""

    id: int
    api: str
    action: str
    calls: int
    hits: int
    held: int
    spent: bool


class Release(msgspec.Struct, forbid_unknown_fields=True):
    """How many of those that are held; not given: all, and the rule ends."""

    count: int | None = None


class NewLink(msgspec.Struct, forbid_unknown_fields=True):
    """The network to the clients of one node, or to one client (a pattern, too), or to all."""

    latency_s: float = 0.0
    bytes_per_second: float | None = None
    node: int | None = None
    client_id: str | None = None


class LinkStatus(NewLink):
    """A link."""

    id: int = 0


class ApiLimit(msgspec.Struct, forbid_unknown_fields=True):
    """The highest version of an API that is served; not given: none is."""

    api: str
    max_version: int | None = None


class RequestsQuery(msgspec.Struct, forbid_unknown_fields=True):
    """Which requests. With `timeout_s` it waits until there are `count` of them (409 if they do not come)."""

    api: str | None = None
    topic: str | None = None
    client_id: str | None = None
    node: int | None = None
    count: int = 1
    timeout_s: float | None = None
    answered: bool = False
    decoded: bool = False  # whether `request` and `answer` are wanted
    last: int | None = None  # how many of them, the newest; not given: all


class RecordedRequest(msgspec.Struct):
    """A request that came. Times are milliseconds since the epoch; `request` and `answer` are the messages, their bytes as
    base64."""

    node: int
    api: str
    version: int
    correlation_id: int
    client_id: str | None
    client_host: str
    topics: list[str]
    received_ms: int
    answered_ms: int | None
    outcome: str
    fault: str | None
    request_bytes: int
    answer_bytes: int
    request: Any = None
    answer: Any = None


class NewTopic(msgspec.Struct, forbid_unknown_fields=True):
    """A topic. Where nothing is given the broker's defaults count."""

    name: str
    partitions: int | None = None
    replication_factor: int | None = None
    configs: dict[str, str] = {}


class RecordsQuery(msgspec.Struct, forbid_unknown_fields=True):
    """Of one partition, or of all; for consumers that read what is committed, or with read_uncommitted also what is aborted or
    open."""

    partition: int | None = None
    isolation_level: str = "read_committed"


class NewRecord(msgspec.Struct, forbid_unknown_fields=True):
    """A record to append, or to answer with. A text is stored as it is, null is none (a tombstone), anything else is stored
    as JSON; bytes are given as base64. Without a partition its key decides; without a timestamp (ms) it is now. An offset
    counts in an answer (not given: the one behind the record before, 0 for the first); of a record to append it is that of
    one that was read, and is not looked at."""

    value: Any = None
    value_base64: str | None = None
    key: Any = None
    key_base64: str | None = None
    headers: list[tuple[str, str | None]] | dict[str, str | None] = []
    partition: int | None = None
    offset: int | None = None
    timestamp: int | None = None

    def seed(self) -> dict[str, Any]:
        """As `Broker.seed` takes it. ValueError."""
        return {
            "value": _given(self.value, self.value_base64),
            "key": _given(self.key, self.key_base64),
            "headers": self.headers,
            "timestamp": self.timestamp,
            "partition": self.partition,
        }


def _given(value: Any, encoded: str | None) -> Any:
    return value if encoded is None else base64.b64decode(encoded, validate=True)


class JsonRecord(msgspec.Struct, omit_defaults=True):
    """A record; key and value as text where they are UTF-8, else as base64. `headers` are pairs of a name and a text."""

    value: str | None = None
    value_base64: str | None = None
    key: str | None = None
    key_base64: str | None = None
    headers: list[tuple[str, str | None]] = []
    partition: int | None = None
    offset: int | None = None
    timestamp: int | None = None


class SharePartitionStatus(msgspec.Struct):
    """A partition as a share group reads it. `in_flight` are [first offset, last offset, state, delivery count, member id]."""

    topic: str
    partition: int
    start_offset: int
    in_flight: list[tuple[int, int, str, int, str]] = []


class GroupStatus(msgspec.Struct):
    """A group. `members` are member ids; `offsets` are [topic, partition, offset], `assigned` [member id, topic, partition] where the
    coordinator assigns; `share_partitions` are those of a share group."""

    id: str
    state: str
    members: list[str]
    offsets: list[tuple[str, int, int]]
    type: str = "classic"
    epoch: int = 0
    assigned: list[tuple[str, str, int]] = []
    share_partitions: list[SharePartitionStatus] = []


class Locks(msgspec.Struct):
    """Of a share group: all, or those of a topic or one of its partitions."""

    topic: str | None = None
    partition: int | None = None


class TransactionStatus(msgspec.Struct):
    """A transactional id. `state` is Kafka's name, such as Ongoing; `partitions` are [topic, partition], of a transaction that is
    ending those without a marker; `start_ms` is -1 before the first transaction."""

    transactional_id: str
    state: str
    is_open: bool
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    partitions: list[tuple[str, int]]
    start_ms: int
    coordinator: int


class Markers(msgspec.Struct, forbid_unknown_fields=True):
    """Whose markers: of all partitions, of a topic's or of one."""

    topic: str | None = None
    partition: int | None = None


class Snapshot(msgspec.Struct):
    """The number of a snapshot that was taken."""

    id: int


class NodeChoice(msgspec.Struct, forbid_unknown_fields=True):
    """A node; not given: another one than now."""

    node: int | None = None


class NodeNumber(msgspec.Struct):
    """A node."""

    node: int


class Isr(msgspec.Struct, forbid_unknown_fields=True):
    """The replicas that are in sync from now on: the leader, and some of those that are."""

    isr: list[int]


class PartitionStatus(msgspec.Struct):
    """A partition as the metadata has it."""

    topic: str
    partition: int
    leader: int
    leader_epoch: int
    replicas: list[int]
    isr: list[int]


class NewNode(msgspec.Struct, forbid_unknown_fields=True):
    """A node that joins: a broker, with these properties besides those of the others."""

    properties: dict[str, str] = {}


class CoordinatorLoad(msgspec.Struct, forbid_unknown_fields=True):
    """How long it loads; without `seconds` until the request that ends it."""

    seconds: float | None = None


class Upkeep(msgspec.Struct, forbid_unknown_fields=True):
    """Of one topic, or of all."""

    topic: str | None = None


class Advance(msgspec.Struct, forbid_unknown_fields=True):
    """By how much the broker's clock goes forward."""

    seconds: float


class Clock(msgspec.Struct):
    """The broker's clock: milliseconds since the epoch, and how far it is ahead of the machine's."""

    time_ms: int
    ahead_s: float


class SecurityStatus(msgspec.Struct):
    """What a client needs: the names of `users`, and the authority `ca` (PEM, null without TLS) that it has to trust."""

    protocol: str
    mechanisms: list[str]
    client_auth: str
    users: list[str]
    ca: str | None


class ClientChoice(msgspec.Struct, forbid_unknown_fields=True):
    """Who a client is: a user, and the name in its certificate. `password`: another one than the user's."""

    user: str | None = None
    password: str | None = None
    mechanism: str | None = None
    certificate: str | None = None


class ClientSettings(msgspec.Struct):
    """`properties` is the text of a file for Java's clients and tools; `librdkafka` has names and values."""

    properties: str
    librdkafka: dict[str, str | bool]


class CertificateKind(msgspec.Struct, forbid_unknown_fields=True):
    """Which certificate: an `expired` one, or a `foreign` one, of an authority that the broker does not trust."""

    expired: bool = False
    foreign: bool = False


class ClientCertificate(msgspec.Struct):
    """PEM; the key is PKCS#8."""

    certificate: str
    key: str


class Password(msgspec.Struct, forbid_unknown_fields=True):
    """Of a user."""

    password: str


class Acls(msgspec.Struct, forbid_unknown_fields=True):
    """Each is about one of topic, group, transactional_id, cluster."""

    acls: list[Acl]
