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
remote.storage.enable|Whether the topic is tiered: its closed segments go to the object store (KIP-405).
barnabas.remote.restore|With which topic of remote storage a new topic begins, as <cluster id>/<topic id>/<leader epoch>; set by `barnabas tier restore`.
remote.log.copy.disable|Whether a tiered topic stops copying segments to remote storage.
remote.log.delete.on.disable|Whether remote data is deleted when tiering is switched off.
retention.bytes|The most bytes a partition keeps before its oldest segments go; -1 is no limit.
retention.ms|How long a segment is kept, in ms; -1 is for ever.
segment.bytes|The size at which a segment's file is closed and a new one begun.
segment.index.bytes|The largest size of a segment's index; a full index begins a new segment.
segment.jitter.ms|At most this much is taken off segment.ms at random, so that segments do not all roll at once.
segment.ms|The age in ms at which a segment is closed and a new one begun.
unclean.leader.election.enable|Whether a replica that is not in sync may lead when no other can, at the price of lost records.
barnabas.isr.hedge.ms|How long acknowledgements wait in ms until a replica that holds them up leaves the ISR, if two or min.insync.replicas stay; -1: as in Kafka, until replica.lag.time.max.ms.
barnabas.observers|Ids of brokers that hold an observer of each partition: a replica for reads that never joins the ISR.
barnabas.retention.messages|How many messages a partition keeps before its oldest segments go, by offsets; -1 is no limit.
barnabas.validate.records|Whether each record inside a batch is checked when it is produced; otherwise batches pass unopened.
"""

_BROKER_DOCS: Final = """
add.partitions.to.txn.retry.backoff.max.ms|How long the broker repeats an add of partitions to a transaction, in ms.
add.partitions.to.txn.retry.backoff.ms|The longest wait between two adds of partitions to a transaction, in ms; the first is shorter.
advertised.listeners|Addresses that clients connect to, one per listener; by default those of listeners.
authorizer.class.name|The class of the authorizer. Without one every client may do everything.
auto.create.topics.enable|Whether a topic that a client asks for is created.
auto.leader.rebalance.enable|Whether leadership goes back to preferred replicas by itself.
barnabas.balancer|Whether the active controller spreads the load over the brokers: off, on, or plan, which only logs what on would move.
barnabas.balancer.gone.ms|For how many ms a broker is away before the balancer replaces its replicas on other brokers; at least barnabas.balancer.rest.ms. -1: never.
barnabas.balancer.interval.ms|How often the balancer makes a plan, in ms.
barnabas.balancer.report.interval.ms|How often each broker reports its load to the balancer, in ms; after three intervals without a report there is no plan.
barnabas.balancer.rest.ms|For how many ms a partition stays where the balancer has moved it. So long a new active controller waits before its first move, and the balancer for a broker that is away.
barnabas.controller.secret.file|The file with the secret by which the cluster's nodes authenticate each other.
barnabas.cores|How many nodes `barnabas start` runs on this machine, each a process of its own: a number, or auto, one for each CPU that it may use.
barnabas.event.loop|Which event loop runs the broker: uvloop, asyncio, or uvloop where it is installed (auto).
barnabas.log.format|text, or json: one object a line, with timestamp, level, logger and message.
barnabas.log.slow.request.ms|A request on which the broker has worked for longer is logged. -1: none is.
barnabas.metrics.listener|Where Prometheus reads metrics, HOST:PORT, as http://HOST:PORT/metrics; port 0 picks one. Empty: nowhere. /livez, /readyz and /startupz tell the node's health there.
barnabas.metrics.partitions.max|For how many partitions, of topics and of groups, for how many topics and for how many groups there are metrics of their own.
barnabas.ready.lines|Lines that are printed behind the one that begins with ready, for tools that wait for those of Kafka's images.
barnabas.reassignment.throttled.rate|Bytes a second that the broker fetches for all replicas that reassignments add to it, those of the balancer and of users.
broker.heartbeat.interval.ms|How often a broker reports to the active controller, in ms.
broker.id|The node's id by its older name; node.id is the one to set.
broker.rack|The rack or zone of the broker.
broker.session.timeout.ms|A broker without a heartbeat for this long in ms is fenced: its partitions get other leaders.
config.providers|Names of config providers, which replace ${provider:path:key} in values of other properties.
connection.failed.authentication.delay.ms|How long the answer to a failed login is held back, in ms.
connections.max.idle.ms|A connection without requests is closed after this time in ms.
connections.max.reauth.ms|A SASL client must log in again after this time in ms; 0 asks for no second login.
controlled.shutdown.enable|Whether a broker that stops hands its leaderships on first.
controller.listener.names|Listeners between controllers. A single node does not open them.
controller.quorum.bootstrap.servers|Addresses of controllers, host:port, where the metadata names the voters.
controller.quorum.election.timeout.ms|Has no effect: a voter that hears nothing of the leader waits 0.3 to 0.5 s for an election, and begins one sooner when the leader's connections break.
controller.quorum.fetch.timeout.ms|Has no effect: leaders send to voters, which do not fetch; one without answers of a majority steps down after 0.6 s.
controller.quorum.voters|The controllers as id@host:port. A single node may name itself.
controller.quota.window.num|Windows over which the rate of changes to metadata is measured.
controller.quota.window.size.seconds|The length of one of these windows.
cordoned.log.dirs|Log directories that get no new partitions; * names all.
default.replication.factor|Replicas of topics created without a number.
delegation.token.expiry.check.interval.ms|How often expired delegation tokens are removed, in ms.
delegation.token.expiry.time.ms|How long a delegation token is valid before it is renewed, in ms.
delegation.token.max.lifetime.ms|How long a delegation token can be renewed, in ms.
delegation.token.secret.key|The secret with which delegation tokens are signed, the same on all nodes; without it there are none.
delete.topic.enable|Whether topics can be deleted.
early.start.listeners|Listeners that open before the node knows the ACLs. Those of controllers alone do.
fetch.max.bytes|The most bytes a fetch response carries.
follower.replication.throttled.rate|Bytes a second that the broker fetches for throttled replicas.
group.consumer.assignors|Server-side assignors, the default first: uniform, range.
group.consumer.max.size|The most members a group of the consumer protocol may have.
group.consumer.migration.policy|Which groups change between the classic and the consumer protocol while they have members.
group.coordinator.rebalance.protocols|Which types of groups are served: classic, consumer, share, streams.
group.initial.rebalance.delay.ms|How long a new group waits for more members before its first rebalance, in ms.
group.max.session.timeout.ms|The longest session timeout a member may ask for, in ms.
group.max.size|The most members a group may have.
group.min.session.timeout.ms|The shortest session timeout a member may ask for, in ms.
group.share.max.share.sessions|The most share sessions the broker keeps.
group.share.max.size|The most members a share group may have.
group.streams.max.size|The most members a streams group may have.
inter.broker.listener.name|The listener brokers use among themselves.
leader.imbalance.check.interval.seconds|How often the controller looks for leaders that are not the preferred replicas.
leader.replication.throttled.rate|Bytes a second that the broker sends to throttled replicas.
listener.security.protocol.map|Each listener's name and the protocol spoken on it.
listeners|Addresses to listen on, as NAME://host:port; an empty host is every interface, port 0 a free port.
log.cleaner.backoff.ms|How long the cleaner waits when there is nothing to compact, in ms.
log.cleaner.dedupe.buffer.size|Memory for the keys of a compaction, of all threads together, in bytes.
remote.log.storage.system.enable|Whether topics may be tiered: rsm.config.url names the object store.
remote.log.storage.manager.impl.prefix|What the names of the object store's properties begin with.
remote.log.index.file.cache.total.size.bytes|Bytes of what has been read from the object store and is kept in remote-log-index-cache of the first log directory; here chunks of logs too.
remote.log.manager.copy.max.bytes.per.second|The most bytes that are copied to the object store in a second; uploads wait between their parts.
remote.log.manager.copy.quota.window.num|Over how many windows that is measured.
remote.log.manager.copy.quota.window.size.seconds|How long each of them is.
remote.log.manager.fetch.max.bytes.per.second|The most bytes that consumers and share groups get from the object store in a second; beyond it, fetches of such records are empty.
remote.log.manager.fetch.quota.window.num|Over how many windows that is measured.
remote.log.manager.fetch.quota.window.size.seconds|How long each of them is.
remote.log.manager.copier.thread.pool.size|How many partitions are tiered at a time.
remote.log.manager.task.interval.ms|How often closed segments are copied to the object store and expired ones removed from it.
remote.log.reader.threads|How many reads of tiered data, and lookups in the object store, are done at a time; others wait.
remote.fetch.max.wait.ms|How long a fetch waits for the object store before it answers with what there is.
follower.fetch.last.tiered.offset.enable|Whether an empty replica begins at what is not in the object store yet, instead of copying all that its leader has on its disk (KIP-1023).
log.cleaner.enable|Whether logs are compacted.
log.cleaner.io.buffer.load.factor|The share of the memory for keys that may be filled.
log.cleaner.io.max.bytes.per.second|The most bytes that compaction reads and writes in a second.
log.cleaner.threads|Threads that compact.
log.dir|The directory of the logs where log.dirs is not set.
log.dirs|The directories of the logs.
log.flush.interval.ms|Force a log to disk after this time in ms.
log.flush.offset.checkpoint.interval.ms|How often recovery points are written, in ms.
log.flush.scheduler.interval.ms|How often logs are looked at for flushing, in ms.
log.flush.start.offset.checkpoint.interval.ms|How often start offsets of logs are written, in ms.
log.retention.check.interval.ms|How often logs are looked at for old segments, in ms.
log.retention.hours|How long a segment is kept, in hours, where ms and minutes are not set.
log.retention.minutes|How long a segment is kept, in minutes, where ms is not set.
log.roll.hours|The age in hours at which a segment is closed, where log.roll.ms is not set.
log.roll.jitter.hours|At most this much is taken off log.roll.hours at random.
max.connection.creation.rate|The most new connections in a second, also for one listener alone.
max.connections|The most connections the broker keeps open.
max.connections.per.ip|The most connections from one address.
max.connections.per.ip.overrides|Other limits for single addresses, as address:number.
max.incremental.fetch.session.cache.slots|The most incremental fetch sessions the broker keeps.
max.request.partition.size.limit|The most partitions in one answer of DescribeTopicPartitions.
metadata.log.dir|The directory of the cluster's metadata; by default the first of log.dirs.
node.id|The node's id, unique in the cluster.
num.partitions|Partitions of topics created without a number.
num.replica.fetchers|Connections to each leader for replication.
offset.metadata.max.bytes|The longest text a committed offset may carry.
offsets.commit.timeout.ms|How long a commit of offsets waits for its replicas, in ms.
offsets.retention.check.interval.ms|How often expired offsets are removed, in ms.
offsets.retention.minutes|How long offsets of a group without members are kept, in minutes.
offsets.topic.num.partitions|Partitions of the topic of committed offsets.
offsets.topic.replication.factor|Replicas of the topic of committed offsets.
offsets.topic.segment.bytes|Segment size of the topic of committed offsets.
process.roles|What the node is: broker, controller, or both.
producer.id.expiration.check.interval.ms|How often producers are checked for their expiry, in ms.
producer.id.expiration.ms|A producer's state is dropped this long after its last write, in ms.
queued.max.request.bytes|The most bytes of requests in memory; -1 is no limit.
queued.max.requests|Requests waiting before the network stops reading.
quota.window.num|Windows over which the rates of clients are measured.
quota.window.size.seconds|The length of one of these windows.
replica.alter.log.dirs.io.max.bytes.per.second|Bytes a second that moves between log directories copy.
replica.fetch.backoff.ms|How long a follower waits after a failed fetch, in ms.
replica.fetch.max.bytes|The most bytes of one partition in a follower's fetch.
replica.fetch.min.bytes|The fewest bytes for which a leader answers a follower before replica.fetch.wait.max.ms.
replica.fetch.response.max.bytes|The most bytes in a follower's fetch.
replica.fetch.wait.max.ms|How long a leader holds a follower's fetch that has nothing to get, in ms.
replica.high.watermark.checkpoint.interval.ms|How often high watermarks are written, in ms.
replica.lag.time.max.ms|A follower that has not caught up for this long in ms leaves the in-sync replicas.
replica.selector.class|Which replica a consumer reads from: Kafka's LeaderSelector or RackAwareReplicaSelector.
replica.socket.timeout.ms|A request to a leader without an answer for this long in ms has failed.
replication.quota.window.num|Windows over which the rates of replication are measured.
replication.quota.window.size.seconds|The length of one of these windows.
request.timeout.ms|How long a request may wait for its answer, in ms.
sasl.enabled.mechanisms|SASL mechanisms of the listeners: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER.
sasl.jaas.config|The users of PLAIN, or this node's own login to other nodes, as an entry of a JAAS file.
sasl.login.callback.handler.class|Kafka's login handlers of OAUTHBEARER; no other class runs.
sasl.login.connect.timeout.ms|How long a request for a token may take, in ms; the longer one of this and the read timeout counts.
sasl.login.read.timeout.ms|How long a request for a token may take, in ms; the longer one of this and the connect timeout counts.
sasl.login.refresh.buffer.seconds|A token is renewed this long before its end, where its lifetime allows.
sasl.login.refresh.min.period.seconds|The shortest time between two renewals of a token.
sasl.login.refresh.window.factor|The share of its lifetime after which a token is renewed.
sasl.login.refresh.window.jitter|How much that share varies at random.
sasl.login.retry.backoff.max.ms|The longest wait between two requests for a token, in ms.
sasl.login.retry.backoff.ms|The first wait between two requests for a token, in ms.
sasl.mechanism.controller.protocol|The mechanism with which this node logs in to controllers.
sasl.mechanism.inter.broker.protocol|The mechanism with which this broker logs in to others.
sasl.oauthbearer.client.credentials.client.id|The client id with which this node asks for tokens.
sasl.oauthbearer.client.credentials.client.secret|The secret with which this node asks for tokens.
sasl.oauthbearer.clock.skew.seconds|By how much the clocks of the token's issuer and of this node may differ.
sasl.oauthbearer.expected.audience|Audiences of which a token must name one.
sasl.oauthbearer.expected.issuer|The issuer that a token must name.
sasl.oauthbearer.jwks.endpoint.refresh.ms|How often the issuer's keys are read again, in ms.
sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms|The longest wait between two attempts to read them, in ms.
sasl.oauthbearer.jwks.endpoint.retry.backoff.ms|The first wait between two attempts to read them, in ms.
sasl.oauthbearer.jwks.endpoint.url|The URL of the keys of the issuer.
sasl.oauthbearer.jwt.retriever.class|How tokens are fetched: with one of Kafka's retrievers, which the URL decides.
sasl.oauthbearer.scope|The scope for which this node asks for tokens.
sasl.oauthbearer.scope.claim.name|The claim with the scopes of a token.
sasl.oauthbearer.sub.claim.name|The claim with the name of the user.
sasl.oauthbearer.token.endpoint.url|The URL where this node asks for tokens.
sasl.server.callback.handler.class|Kafka's validator of tokens for OAUTHBEARER; no other class runs.
sasl.server.max.receive.size|The largest message of a client during its login, in bytes.
security.inter.broker.protocol|The security protocol of the listener among brokers, where inter.broker.listener.name is not set.
share.coordinator.snapshot.update.records.per.snapshot|Updates of a share partition's state before its whole state is written again.
share.coordinator.state.topic.min.isr|min.insync.replicas of the topic of share groups' state.
share.coordinator.state.topic.num.partitions|Partitions of the topic of share groups' state.
share.coordinator.state.topic.replication.factor|Replicas of the topic of share groups' state.
share.coordinator.state.topic.segment.bytes|Segment size of the topic of share groups' state.
share.coordinator.write.timeout.ms|How long a write of share groups' state waits for its replicas, in ms.
socket.listen.backlog.size|Connections the kernel holds until the broker accepts them.
socket.receive.buffer.bytes|The receive buffer of the broker's sockets; -1 is the system's. Where it is not set, it is the system's.
socket.request.max.bytes|The largest request that is read, in bytes.
socket.send.buffer.bytes|The send buffer of the broker's sockets; -1 is the system's. Where it is not set, it is 200000.
ssl.allow.dn.changes|Whether a new certificate of the server may name another subject.
ssl.allow.san.changes|Whether a new certificate of the server may lack names that the old one has.
ssl.cipher.suites|TLS cipher suites, by IANA's names; empty: all that are safe.
ssl.client.auth|Whether clients need a certificate: none, requested or required.
ssl.enabled.protocols|TLSv1.2, TLSv1.3 or both.
ssl.endpoint.identification.algorithm|https: this node checks the host names of servers it connects to; empty: it does not.
ssl.engine.factory.class|Kafka's own class.
ssl.key.password|The password of the private key.
ssl.keystore.certificate.chain|The server's certificates, as PEM.
ssl.keystore.key|The server's private key, as PEM.
ssl.keystore.location|The file with the server's key and certificates.
ssl.keystore.password|The password of that file.
ssl.keystore.type|PEM, PKCS12 or JKS.
ssl.principal.mapping.rules|How the name of a user is made of the subject of a client's certificate.
ssl.truststore.certificates|Certificates that are trusted, as PEM.
ssl.truststore.location|The file with the certificates that are trusted.
ssl.truststore.password|The password of that file.
ssl.truststore.type|PEM, PKCS12 or JKS.
telemetry.max.bytes|The largest push of a client's metrics, in bytes.
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
consumer.assignment.interval.ms|The shortest time between two assignments of a group, in ms (consumer protocol).
share.assignment.interval.ms|The shortest time between two assignments of a group, in ms (share groups).
share.delivery.count.limit|How often a record is delivered before it counts as failed for good.
share.partition.max.record.locks|The most records of a partition that members hold at a time.
share.renew.acknowledge.enable|Whether members may prolong their hold on a record.
streams.assignment.interval.ms|The shortest time between two assignments of a group, in ms (streams groups).
streams.initial.rebalance.delay.ms|How long a new group waits for more members before its first assignment, in ms (streams groups).
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
        from barnabas.controller.config.group_configs import GROUP_SYNONYMS
        from barnabas.controller.config.topic_configs import TOPIC_SYNONYMS

        topic_texts, group_texts = _texts(2), _texts(32)
        for topic_name, synonyms in TOPIC_SYNONYMS.items():
            # The broker's property is the default of the topics' property and has the same meaning.
            if topic_name in topic_texts:
                texts.setdefault(synonyms[0][0], topic_texts[topic_name])
        for group_name, broker_name in GROUP_SYNONYMS.items():
            if group_name in group_texts:
                texts.setdefault(broker_name, group_texts[group_name])
            kind, _, rest = group_name.partition(".")
            for bound, word in (("min", "smallest"), ("max", "largest")):
                bound_name = f"group.{kind}.{bound}.{rest.removeprefix('num.')}"
                texts.setdefault(bound_name, f"The {word} {group_name} that a group may have.")
    return texts
