"""Descriptions of the properties, for DescribeConfigs with documentation (KIP-569).

Loaded on first use. Not every property has one.
"""

from __future__ import annotations

from functools import cache
from typing import Final

_TOPIC_DOCS: Final = """
cleanup.policy|What happens to old segments: delete them (delete), keep the last record of each key (compact), or both.
compression.type|Codec of the batches on disk; producer keeps the codec each batch came in.
compression.gzip.level|Level for gzip when the broker compresses; -1 is the codec's own choice.
compression.lz4.level|Level for lz4 when the broker compresses.
compression.zstd.level|Level for zstd when the broker compresses.
delete.retention.ms|How long the deletion marker of a key stays in a compacted topic, in ms.
file.delete.delay.ms|How long a deleted segment's files stay on disk, in ms.
flush.messages|Force the log to disk after this many records. Replication protects records too; 1 survives power failing everywhere.
flush.ms|Force the log to disk after this time in ms.
follower.replication.throttled.replicas|Replicas whose fetching as followers is throttled: partition:broker pairs, or * for all.
leader.replication.throttled.replicas|Replicas whose serving as leaders is throttled: partition:broker pairs, or * for all.
index.interval.bytes|The offset index has an entry about every so many bytes of log.
local.retention.bytes|Bytes of a partition kept locally when it is tiered; -2 takes retention.bytes.
local.retention.ms|Time in ms that a tiered partition's segments are kept locally; -2 takes retention.ms.
max.compaction.lag.ms|A record is compacted at the latest this long after it was written, in ms.
min.compaction.lag.ms|A record is not compacted before this time has passed, in ms.
max.message.bytes|The largest record batch that is accepted, in bytes, after compression.
message.timestamp.type|Whose clock a record's timestamp is from: the producer's (CreateTime) or the broker's (LogAppendTime).
message.timestamp.before.max.ms|How far behind the broker's clock a CreateTime timestamp may lie, in ms.
message.timestamp.after.max.ms|How far ahead of the broker's clock a CreateTime timestamp may lie, in ms.
min.cleanable.dirty.ratio|The share of a log that must be uncompacted before it is compacted again.
min.insync.replicas|How many replicas must have a record before acks=all is answered; with fewer in sync, writing is refused.
preallocate|Whether a new segment's file gets its full size at once.
remote.storage.enable|Whether the topic is tiered. Not supported here.
remote.log.copy.disable|Whether a tiered topic stops copying segments to remote storage.
remote.log.delete.on.disable|Whether remote data is deleted when tiering is switched off.
retention.bytes|The most bytes a partition keeps before its oldest segments go; -1 is no limit.
retention.ms|How long a segment is kept, in ms; -1 is for ever.
segment.bytes|The size at which a segment's file is closed and a new one begun.
segment.index.bytes|The largest size of a segment's index; a full index begins a new segment.
segment.jitter.ms|At most this much is taken off segment.ms at random, so that segments do not all roll at once.
segment.ms|The age in ms at which a segment is closed and a new one begun.
unclean.leader.election.enable|Whether a replica that is not in sync may lead when no other can, at the price of lost records.
barnabas.observers|Ids of brokers that hold an observer of each partition: a replica for reads that never joins the ISR.
barnabas.retention.messages|How many messages a partition keeps before its oldest segments go, by offsets; -1 is no limit.
barnabas.validate.records|Whether each record inside a batch is checked when it is produced; otherwise batches pass unopened.
"""

_BROKER_DOCS: Final = """
add.partitions.to.txn.retry.backoff.max.ms|How long the broker repeats an add of partitions to a transaction, in ms.
add.partitions.to.txn.retry.backoff.ms|The longest wait between two adds of partitions to a transaction, in ms; the first is shorter.
advertised.listeners|Addresses that clients connect to, one per listener; by default those of listeners.
auto.create.topics.enable|Whether a topic that a client asks for is created.
barnabas.event.loop|Which event loop runs the broker: uvloop, asyncio, or uvloop where it is installed (auto).
barnabas.log.format|text, or json: one object a line, with timestamp, level, logger and message.
barnabas.log.slow.request.ms|A request on which the broker has worked for longer is logged. -1: none is.
barnabas.metrics.listener|Where Prometheus reads metrics, HOST:PORT, as http://HOST:PORT/metrics; port 0 picks one. Empty: nowhere. /livez, /readyz and /startupz tell the node's health there.
barnabas.ready.lines|Lines that are printed behind the one that begins with ready, for tools that wait for those of Kafka's images.
barnabas.metrics.partitions.max|For how many partitions, of topics and of groups, there are metrics of their own.
broker.id|The node's id by its older name; node.id is the one to set.
broker.rack|The rack or zone of the broker.
connections.max.idle.ms|A connection without requests is closed after this time in ms.
controller.listener.names|Listeners between controllers. A single node does not open them.
controller.quorum.election.timeout.ms|Has no effect: a voter that hears nothing of the leader waits 0.3 to 0.5 s for an election, and begins one sooner when the leader's connections break.
controller.quorum.fetch.timeout.ms|Has no effect: leaders send to voters, which do not fetch; one without answers of a majority steps down after 0.6 s.
controller.quorum.voters|The controllers as id@host:port. A single node may name itself.
default.replication.factor|Replicas of topics created without a number.
delete.topic.enable|Whether topics can be deleted.
fetch.max.bytes|The most bytes a fetch response carries.
group.initial.rebalance.delay.ms|How long a new group waits for more members before its first rebalance, in ms.
group.max.session.timeout.ms|The longest session timeout a member may ask for, in ms.
group.min.session.timeout.ms|The shortest session timeout a member may ask for, in ms.
group.max.size|The most members a group may have.
inter.broker.listener.name|The listener brokers use among themselves.
listener.security.protocol.map|Each listener's name and the protocol spoken on it.
listeners|Addresses to listen on, as NAME://host:port; an empty host is every interface, port 0 a free port.
log.dir|The directory of the logs where log.dirs is not set.
log.dirs|The directories of the logs.
log.flush.interval.ms|Force a log to disk after this time in ms.
log.flush.scheduler.interval.ms|How often logs are looked at for flushing, in ms.
log.retention.check.interval.ms|How often logs are looked at for old segments, in ms.
log.retention.hours|How long a segment is kept, in hours, where ms and minutes are not set.
log.retention.minutes|How long a segment is kept, in minutes, where ms is not set.
log.roll.hours|The age in hours at which a segment is closed, where log.roll.ms is not set.
log.roll.jitter.hours|At most this much is taken off log.roll.hours at random.
max.connections|The most connections the broker keeps open.
max.connections.per.ip|The most connections from one address.
node.id|The node's id, unique in the cluster.
num.partitions|Partitions of topics created without a number.
offset.metadata.max.bytes|The longest text a committed offset may carry.
offsets.retention.minutes|How long offsets of a group without members are kept, in minutes.
offsets.topic.num.partitions|Partitions of the topic of committed offsets.
offsets.topic.replication.factor|Replicas of the topic of committed offsets.
offsets.topic.segment.bytes|Segment size of the topic of committed offsets.
process.roles|What the node is: broker, controller, or both.
producer.id.expiration.check.interval.ms|How often producers are checked for their expiry, in ms.
producer.id.expiration.ms|A producer's state is dropped this long after its last write, in ms.
queued.max.requests|Requests waiting before the network stops reading.
replica.lag.time.max.ms|A follower that has not caught up for this long in ms leaves the in-sync replicas.
request.timeout.ms|How long a request may wait for its answer, in ms.
socket.listen.backlog.size|Connections the kernel holds until the broker accepts them.
socket.receive.buffer.bytes|The receive buffer of the broker's sockets; -1 is the system's.
socket.request.max.bytes|The largest request that is read, in bytes.
socket.send.buffer.bytes|The send buffer of the broker's sockets; -1 is the system's.
transaction.abort.timed.out.transaction.cleanup.interval.ms|How often transactions are checked for their timeout, in ms.
transaction.max.timeout.ms|The longest transaction timeout a producer may ask for, in ms.
transaction.partition.verification.enable|Whether the broker checks that a partition was added to its transaction before a write.
transaction.remove.expired.transaction.cleanup.interval.ms|How often expired transactional ids are removed, in ms.
transaction.state.log.load.buffer.size|Has no effect: partitions of transactional ids are read in steps of a fixed size.
transaction.state.log.min.isr|min.insync.replicas of the topic of transactional ids.
transaction.state.log.num.partitions|Partitions of the topic of transactional ids, fixed when it is created.
transaction.state.log.replication.factor|Replicas of the topic of transactional ids.
transaction.state.log.segment.bytes|Segment size of the topic of transactional ids.
transaction.two.phase.commit.enable|Has no effect: two-phase commit (KIP-939) is not built.
transactional.id.expiration.ms|A transactional id without transactions is dropped after this time in ms.
"""

_GROUP_DOCS: Final = """
consumer.session.timeout.ms|A member without a heartbeat for this long in ms is removed (consumer protocol).
consumer.heartbeat.interval.ms|How often members report, in ms (consumer protocol).
share.session.timeout.ms|A member without a heartbeat for this long in ms is removed (share groups).
share.heartbeat.interval.ms|How often members report, in ms (share groups).
share.record.lock.duration.ms|How long a record stays with the consumer that acquired it, in ms.
share.auto.offset.reset|Where a share group without a position begins: latest, earliest or by_duration.
share.isolation.level|Whether a share group sees records of open transactions.
streams.session.timeout.ms|A member without a heartbeat for this long in ms is removed (streams groups).
streams.heartbeat.interval.ms|How often members report, in ms (streams groups).
streams.num.standby.replicas|Standby copies of each task's state.
"""

_CLIENT_METRICS_DOCS: Final = """
interval.ms|How often the client sends the metrics, in ms.
match|Which clients the subscription is for: parameter=regular expression, comma-separated.
metrics|Prefixes of the names of the metrics wanted.
"""

_BY_RESOURCE: Final = {2: _TOPIC_DOCS, 4: _BROKER_DOCS, 16: _CLIENT_METRICS_DOCS, 32: _GROUP_DOCS}


def documentation(resource_type: int, name: str) -> str | None:
    """The text for a property of a resource type (ConfigResource.Type); None when there is none."""
    return _texts(resource_type).get(name)


@cache
def _texts(resource_type: int) -> dict[str, str]:
    texts = dict(line.split("|", 1) for line in _BY_RESOURCE.get(resource_type, "").splitlines() if line)
    if resource_type == 4:
        from barnabas.controller.config.topic_configs import TOPIC_SYNONYMS

        topic_texts = _texts(2)
        for topic_name, synonyms in TOPIC_SYNONYMS.items():
            # The broker's property is the default of the topics' property and has the same meaning.
            if topic_name in topic_texts:
                texts.setdefault(synonyms[0][0], topic_texts[topic_name])
    return texts
