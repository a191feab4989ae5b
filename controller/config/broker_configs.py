"""Kafka 4.3's broker properties, one a line (config_def.py explains the columns), and those of Barnabas.

Every property that Kafka knows is here, also those that nothing reads yet, so that a server.properties
made for Kafka is read without complaint and DescribeConfigs shows what Kafka shows. The properties of extensions are with the
extension.
"""

from __future__ import annotations

from typing import Final

from barnabas.controller.config.config_def import ConfigDef

# Can only be changed while the broker runs; they have no meaning in server.properties.
DYNAMIC_ONLY_TABLE: Final = """
leader.replication.throttled.rate long 9223372036854775807 [0,...] medium cluster
follower.replication.throttled.rate long 9223372036854775807 [0,...] medium cluster
replica.alter.log.dirs.io.max.bytes.per.second long 9223372036854775807 [0,...] medium cluster
"""

OWN_TABLE: Final = """
barnabas.balancer string off in:off,plan,on medium cluster
barnabas.balancer.gone.ms long 1800000 [-1,...] medium cluster
barnabas.balancer.interval.ms long 60000 [1,...] low cluster
barnabas.balancer.report.interval.ms long 10000 [1,...] low cluster
barnabas.balancer.rest.ms long 600000 [0,...] low cluster
barnabas.controller.secret.file string - * high
barnabas.cores string 1 count-or-auto low
barnabas.event.loop string auto in:auto,uvloop,asyncio low
barnabas.isr.hedge.ms long -1 [-1,...] medium cluster
barnabas.log.format string text in:text,json low
barnabas.log.slow.request.ms long 1000 [-1,...] low
barnabas.metrics.listener string "" * low
barnabas.metrics.partitions.max int 2000 [0,...] low
barnabas.ready.lines list "" * low
barnabas.reassignment.throttled.rate long 9223372036854775807 [0,...] medium cluster
barnabas.retention.messages long -1 [-1,...] medium cluster
barnabas.validate.records boolean false * medium cluster
"""

BROKER_TABLE: Final = """
remote.log.storage.system.enable boolean false * medium
remote.log.storage.manager.impl.prefix string rsm.config. nonempty medium
remote.log.metadata.manager.impl.prefix string rlmm.config. nonempty medium
remote.log.storage.manager.class.name string - nonempty medium
remote.log.storage.manager.class.path string - * medium
remote.log.metadata.manager.class.name string org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager nonempty medium
remote.log.metadata.manager.class.path string - * medium
remote.log.metadata.manager.listener.name string - nonempty medium
remote.log.metadata.custom.metadata.max.bytes int 128 [0,...] low
remote.log.index.file.cache.total.size.bytes long 1073741824 [1,...] low cluster
remote.log.index.file.cache.ttl.ms long 900000 [-1,...] low internal
remote.log.manager.thread.pool.size int 2 [1,...] medium
remote.log.manager.copier.thread.pool.size int 10 [1,...] medium cluster
remote.log.manager.expiration.thread.pool.size int 10 [1,...] medium cluster
remote.log.manager.follower.thread.pool.size int 2 [1,...] medium cluster
remote.log.manager.task.interval.ms long 30000 [1,...] low
remote.log.manager.task.retry.backoff.ms long 500 [1,...] low internal
remote.log.manager.task.retry.backoff.max.ms long 30000 [1,...] low internal
remote.log.manager.task.retry.jitter double 0.2 [0,...,0.5] low internal
remote.log.reader.threads int 10 [1,...] medium cluster
remote.log.reader.max.pending.tasks int 100 [1,...] medium
log.local.retention.ms long -2 [-2,...] medium cluster
log.local.retention.bytes long -2 [-2,...] medium cluster
remote.log.manager.copy.max.bytes.per.second long 9223372036854775807 [1,...] medium cluster
remote.log.manager.copy.quota.window.num int 11 [1,...] medium
remote.log.manager.copy.quota.window.size.seconds int 1 [1,...] medium
remote.log.manager.fetch.max.bytes.per.second long 9223372036854775807 [1,...] medium cluster
remote.log.manager.fetch.quota.window.num int 11 [1,...] medium
remote.log.manager.fetch.quota.window.size.seconds int 1 [1,...] medium
remote.fetch.max.wait.ms int 500 [1,...] medium cluster
remote.list.offsets.request.timeout.ms long 30000 [1,...] medium cluster
broker.id int -1 * high
message.max.bytes int 1048588 [0,...] high cluster
num.io.threads int 8 [1,...] high cluster
num.replica.alter.log.dirs.threads int - * high
background.threads int 10 [1,...] high cluster
request.timeout.ms int 30000 * high
socket.connection.setup.timeout.ms long 10000 * medium
socket.connection.setup.timeout.max.ms long 30000 * medium
config.providers list "" list low cluster
authorizer.class.name string "" nonnull low
early.start.listeners list - list+nullable high
broker.rack string - * medium
controlled.shutdown.enable boolean true * medium
delete.topic.enable boolean true * high
compression.type string producer in:uncompressed,zstd,lz4,snappy,gzip,producer high cluster
compression.gzip.level int -1 gzip-level medium cluster
compression.lz4.level int 9 [1,...,17] medium cluster
compression.zstd.level int 3 [-131072,...,22] medium cluster
max.incremental.fetch.session.cache.slots int 1000 [0,...] medium
fetch.max.bytes int 57671680 [1024,...] medium
max.request.partition.size.limit int 2000 [1,...] medium
unstable.api.versions.enable boolean false * high internal
unstable.feature.versions.enable boolean false * high internal
process.roles list ! list+nonempty:broker,controller high
node.id int ! [0,...] high
initial.broker.registration.timeout.ms int 60000 * medium
broker.heartbeat.interval.ms int 2000 * medium
broker.session.timeout.ms int 9000 * medium
controller.listener.names list ! list+nonempty high
sasl.mechanism.controller.protocol string GSSAPI * high
controller.performance.sample.period.ms long 60000 [100,...] medium internal
controller.performance.always.log.threshold.ms long 2000 [0,...] medium internal
server.max.startup.time.ms long 9223372036854775807 [0,...] medium internal
metadata.log.max.record.bytes.between.snapshots long 20971520 [1,...] high
metadata.log.max.snapshot.interval.ms long 3600000 [0,...] high
metadata.log.dir string - * high
metadata.log.segment.bytes int 1073741824 [8388608,...] high
metadata.log.segment.ms long 604800000 * high
metadata.max.retention.bytes long 104857600 * high
metadata.max.retention.ms long 604800000 * high
metadata.max.idle.interval.ms int 500 [0,...] low
internal.metadata.log.segment.bytes int - * low internal
internal.metadata.max.batch.size.in.bytes int 8388608 * low internal
internal.metadata.delete.delay.millis long 60000 * low internal
listeners list PLAINTEXT://:9092 list+nonempty high broker
advertised.listeners list - list+nonempty+nullable high
listener.security.protocol.map string SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT * low broker
socket.send.buffer.bytes int 102400 * high
socket.receive.buffer.bytes int 102400 * high
socket.request.max.bytes int 104857600 [1,...] high
socket.listen.backlog.size int 50 [1,...] medium
max.connections.per.ip int 2147483647 [0,...] medium cluster
max.connections.per.ip.overrides string "" * medium cluster
max.connections int 2147483647 [0,...] medium cluster
max.connection.creation.rate int 2147483647 [0,...] medium cluster
connections.max.idle.ms long 600000 * medium
connection.failed.authentication.delay.ms int 100 [0,...] low
queued.max.requests int 500 [1,...] high
queued.max.request.bytes long -1 * medium
num.network.threads int 3 [1,...] high cluster
controller.socket.timeout.ms int 30000 * medium
default.replication.factor int 1 * medium
replica.lag.time.max.ms long 30000 * high
replica.socket.timeout.ms int 30000 * high
replica.socket.receive.buffer.bytes int 65536 * high
replica.fetch.max.bytes int 1048576 [0,...] medium
replica.fetch.wait.max.ms int 500 * high
replica.fetch.backoff.ms int 1000 [0,...] medium
replica.fetch.min.bytes int 1 * high
replica.fetch.response.max.bytes int 10485760 [0,...] medium
num.replica.fetchers int 1 [1,...] high cluster
replica.high.watermark.checkpoint.interval.ms long 5000 * high
fetch.purgatory.purge.interval.requests int 1000 * medium
producer.purgatory.purge.interval.requests int 1000 * medium
delete.records.purgatory.purge.interval.requests int 1 * medium
auto.leader.rebalance.enable boolean true * high
leader.imbalance.check.interval.seconds long 300 [1,...] high
unclean.leader.election.interval.ms long 300000 [1,...] medium internal
unclean.leader.election.enable boolean false * high cluster
security.inter.broker.protocol string PLAINTEXT in:PLAINTEXT,SSL,SASL_PLAINTEXT,SASL_SSL medium
inter.broker.listener.name string - * medium
replica.selector.class string - * medium
follower.fetch.last.tiered.offset.enable boolean false * medium cluster
group.coordinator.rebalance.protocols list classic,consumer,streams list+nonempty:consumer,classic,share,streams medium
group.coordinator.threads int 4 [1,...] high
group.coordinator.background.threads int 2 [1,...] high
group.coordinator.append.linger.ms int -1 [-1,...] medium
offsets.commit.timeout.ms int 5000 [1,...] high
offsets.load.buffer.size int 5242880 [1,...] high
offsets.topic.replication.factor short 3 [1,...] high
offsets.topic.num.partitions int 50 [1,...] high
offsets.topic.segment.bytes int 104857600 [1,...] high
offsets.topic.compression.codec int 0 * high
group.coordinator.cached.buffer.max.bytes int 1048588 [524288,...] medium cluster
offset.metadata.max.bytes int 4096 * high
offsets.retention.minutes int 10080 [1,...] high
offsets.retention.check.interval.ms long 600000 [1,...] high
group.min.session.timeout.ms int 6000 * medium
group.max.session.timeout.ms int 1800000 * medium
# 3000 in Kafka. Waiting for more members helps a large group that starts at once and slows every other.
group.initial.rebalance.delay.ms int 0 * medium
group.max.size int 2147483647 [1,...] medium
group.consumer.session.timeout.ms int 45000 [1,...] medium
group.consumer.min.session.timeout.ms int 45000 [1,...] medium
group.consumer.max.session.timeout.ms int 60000 [1,...] medium
group.consumer.heartbeat.interval.ms int 5000 [1,...] medium
group.consumer.min.heartbeat.interval.ms int 5000 [1,...] medium
group.consumer.max.heartbeat.interval.ms int 15000 [1,...] medium
group.consumer.max.size int 2147483647 [1,...] medium
group.consumer.assignors list uniform,range list+nonempty medium
group.consumer.migration.policy string bidirectional anycase:DISABLED,DOWNGRADE,UPGRADE,BIDIRECTIONAL medium
group.consumer.assignment.interval.ms int 1000 [0,...] medium cluster
group.consumer.min.assignment.interval.ms int 0 [0,...] medium
group.consumer.max.assignment.interval.ms int 15000 [0,...] medium
group.consumer.regex.refresh.interval.ms int 600000 [10000,...] medium internal
group.share.session.timeout.ms int 45000 [1,...] medium
group.share.min.session.timeout.ms int 45000 [1,...] medium
group.share.max.session.timeout.ms int 60000 [1,...] medium
group.share.heartbeat.interval.ms int 5000 [1,...] medium
group.share.min.heartbeat.interval.ms int 5000 [1,...] medium
group.share.max.heartbeat.interval.ms int 15000 [1,...] medium
group.share.max.size int 200 [1,...,1000] medium
group.share.assignors list simple list+nonempty medium
group.share.assignment.interval.ms int 1000 [0,...] medium cluster
group.share.min.assignment.interval.ms int 0 [0,...] medium
group.share.max.assignment.interval.ms int 15000 [0,...] medium
group.share.initialize.retry.interval.ms int 30000 [1,...] low internal
group.streams.session.timeout.ms int 45000 [1,...] medium
group.streams.min.session.timeout.ms int 45000 [1,...] medium
group.streams.max.session.timeout.ms int 60000 [1,...] medium
group.streams.heartbeat.interval.ms int 5000 [1,...] medium
group.streams.min.heartbeat.interval.ms int 5000 [1,...] medium
group.streams.max.heartbeat.interval.ms int 15000 [1,...] medium
group.streams.max.size int 2147483647 [1,...] medium
group.streams.num.standby.replicas int 0 [0,...] medium
group.streams.max.standby.replicas int 2 [0,...] medium
group.streams.initial.rebalance.delay.ms int 3000 [0,...] medium
group.streams.assignment.interval.ms int 1000 [0,...] medium cluster
group.streams.min.assignment.interval.ms int 0 [0,...] medium
group.streams.max.assignment.interval.ms int 15000 [0,...] medium
log.cleaner.threads int 1 [0,...] medium cluster
log.cleaner.io.max.bytes.per.second double 1.7976931348623157E308 * medium cluster
log.cleaner.dedupe.buffer.size long 134217728 * medium cluster
log.cleaner.io.buffer.size int 524288 [0,...] medium cluster
log.cleaner.io.buffer.load.factor double 0.9 * medium cluster
log.cleaner.backoff.ms long 15000 [0,...] medium cluster
log.cleaner.min.cleanable.ratio double 0.5 [0,...,1] medium cluster
log.cleaner.enable boolean true * medium
log.cleaner.delete.retention.ms long 86400000 [0,...] medium cluster
log.cleaner.min.compaction.lag.ms long 0 [0,...] medium cluster
log.cleaner.max.compaction.lag.ms long 9223372036854775807 [1,...] medium cluster
num.partitions int 1 [1,...] medium
log.dir list /tmp/kafka-logs list+nonempty high
log.dirs list - list+nonempty+nullable high
cordoned.log.dirs list "" list+nullable medium broker
log.segment.bytes int 1073741824 [1048576,...] high cluster
log.roll.ms long - * high cluster
log.roll.hours int 168 [1,...] high
log.roll.jitter.ms long - * high cluster
log.roll.jitter.hours int 0 [0,...] high
log.retention.ms long - * high cluster
log.retention.minutes int - * high
log.retention.hours int 168 * high
log.retention.bytes long -1 * high cluster
log.retention.check.interval.ms long 300000 [1,...] medium
log.cleanup.policy list delete list:compact,delete medium cluster
log.index.size.max.bytes int 10485760 [4,...] medium cluster
log.index.interval.bytes int 4096 [0,...] medium cluster
log.flush.interval.messages long 9223372036854775807 [1,...] high cluster
log.segment.delete.delay.ms long 60000 [0,...] high cluster
log.flush.scheduler.interval.ms long 9223372036854775807 * high
log.flush.interval.ms long - * high cluster
log.flush.offset.checkpoint.interval.ms int 60000 [0,...] high
log.flush.start.offset.checkpoint.interval.ms int 60000 [0,...] high
log.preallocate boolean false * medium cluster
num.recovery.threads.per.data.dir int 2 [1,...] high cluster
auto.create.topics.enable boolean true * high
min.insync.replicas int 1 [1,...] high cluster
log.message.timestamp.type string CreateTime in:CreateTime,LogAppendTime medium cluster
log.message.timestamp.before.max.ms long 9223372036854775807 [0,...] medium cluster
log.message.timestamp.after.max.ms long 3600000 [0,...] medium cluster
create.topic.policy.class.name class - * low
alter.config.policy.class.name class - * low
log.dir.failure.timeout.ms long 30000 [1,...] low
log.initial.task.delay.ms long 30000 [0,...] low internal
group.share.delivery.count.limit int 5 [2,...,10] medium
group.share.max.delivery.count.limit int 10 [5,...,25] medium
group.share.min.delivery.count.limit int 2 [2,...,5] medium
group.share.record.lock.duration.ms int 30000 [1000,...,3600000] medium
group.share.min.record.lock.duration.ms int 15000 [1000,...,30000] medium
group.share.max.record.lock.duration.ms int 60000 [30000,...,3600000] medium
group.share.partition.max.record.locks int 2000 [100,...,10000] medium
group.share.max.partition.max.record.locks int 4000 [2000,...,10000] medium
group.share.min.partition.max.record.locks int 100 [100,...,2000] medium
share.fetch.purgatory.purge.interval.requests int 1000 * medium
group.share.max.share.sessions int 2000 [1,...] medium
group.share.persister.class.name string org.apache.kafka.server.share.persister.DefaultStatePersister * medium internal
share.coordinator.state.topic.num.partitions int 50 [1,...] high
share.coordinator.state.topic.replication.factor short 3 [1,...] high
share.coordinator.state.topic.min.isr short 2 [1,...] high
share.coordinator.state.topic.segment.bytes int 104857600 [1,...] high
share.coordinator.threads int 1 [1,...] medium
share.coordinator.snapshot.update.records.per.snapshot int 500 [0,...,500] medium
share.coordinator.load.buffer.size int 5242880 [1,...] high
share.coordinator.state.topic.compression.codec int 0 * high
share.coordinator.append.linger.ms int -1 [-1,...] medium
share.coordinator.write.timeout.ms int 5000 [1,...] high
share.coordinator.state.topic.prune.interval.ms int 300000 [1,...] low internal
share.coordinator.cold.partition.snapshot.interval.ms int 300000 [1,...] low internal
share.coordinator.cached.buffer.max.bytes int 1048588 [524288,...] medium cluster
transaction.state.log.min.isr int 2 [1,...] high
transaction.state.log.load.buffer.size int 5242880 [1,...] high
transaction.state.log.replication.factor short 3 [1,...] high
transaction.state.log.num.partitions int 50 [1,...] high
transaction.state.log.segment.bytes int 104857600 [1,...] high
transaction.partition.verification.enable boolean true * low cluster
producer.id.expiration.ms int 86400000 [1,...] low cluster
producer.id.expiration.check.interval.ms int 600000 [1,...] low internal
transactional.id.expiration.ms int 604800000 [1,...] high
transaction.max.timeout.ms int 900000 [1,...] high
transaction.abort.timed.out.transaction.cleanup.interval.ms int 10000 [1,...] low
transaction.remove.expired.transaction.cleanup.interval.ms int 3600000 [1,...] low
transaction.two.phase.commit.enable boolean false * low
controller.quorum.voters list "" voters high
controller.quorum.bootstrap.servers list "" servers high
controller.quorum.election.timeout.ms int 1000 [0,...] high
controller.quorum.fetch.timeout.ms int 2000 [0,...] high
controller.quorum.election.backoff.max.ms int 1000 [0,...] high
controller.quorum.append.linger.ms int 25 [0,...] medium
controller.quorum.request.timeout.ms int 2000 [0,...] medium
controller.quorum.retry.backoff.ms int 20 [0,...] low
controller.quorum.auto.join.enable boolean false * low
controller.quorum.fetch.snapshot.max.bytes int 1048576 [1,...] low
controller.quorum.fetch.max.bytes int 1048576 [1,...] low
metrics.num.samples int 2 [1,...] low
metrics.sample.window.ms long 30000 [1,...] low
metric.reporters list org.apache.kafka.common.metrics.JmxReporter list low cluster
metrics.recording.level string INFO * low
kafka.metrics.reporters list "" list low
kafka.metrics.polling.interval.secs int 10 [1,...] low
telemetry.max.bytes int 1048576 [1,...] low
quota.window.num int 11 [1,...] low
replication.quota.window.num int 11 [1,...] low
alter.log.dirs.replication.quota.window.num int 11 [1,...] low
controller.quota.window.num int 11 [1,...] low
quota.window.size.seconds int 1 [1,...] low
replication.quota.window.size.seconds int 1 [1,...] low
alter.log.dirs.replication.quota.window.size.seconds int 1 [1,...] low
controller.quota.window.size.seconds int 1 [1,...] low
client.quota.callback.class class - * low
add.partitions.to.txn.retry.backoff.max.ms int 100 [0,...] high
add.partitions.to.txn.retry.backoff.ms int 20 [1,...] high
"""

# TLS, SASL and delegation tokens
SECURITY_TABLE: Final = """
connections.max.reauth.ms long 0 * medium
sasl.server.max.receive.size int 524288 * medium
security.providers string - * low
principal.builder.class class org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder * medium broker
ssl.client.auth string none in:required,requested,none medium broker
ssl.principal.mapping.rules string DEFAULT * low
ssl.allow.dn.changes boolean false * low
ssl.allow.san.changes boolean false * low
ssl.protocol string TLSv1.3 * medium broker
ssl.provider string - * medium broker
ssl.enabled.protocols list TLSv1.2,TLSv1.3 list medium broker
ssl.keystore.type string JKS * medium broker
ssl.keystore.location string - * medium broker
ssl.keystore.password password - * medium broker
ssl.key.password password - * medium broker
ssl.keystore.key password - * medium broker
ssl.keystore.certificate.chain password - * medium broker
ssl.truststore.type string JKS * medium broker
ssl.truststore.location string - * medium broker
ssl.truststore.password password - * medium broker
ssl.truststore.certificates password - * medium broker
ssl.keymanager.algorithm string SunX509 * medium broker
ssl.trustmanager.algorithm string PKIX * medium broker
ssl.endpoint.identification.algorithm string https * low broker
ssl.secure.random.implementation string - * low broker
ssl.cipher.suites list "" list medium broker
ssl.engine.factory.class class - * low broker
sasl.mechanism.inter.broker.protocol string GSSAPI * medium broker
sasl.enabled.mechanisms list GSSAPI list medium broker
sasl.server.callback.handler.class class - * medium
sasl.kerberos.principal.to.local.rules list DEFAULT list medium broker
sasl.jaas.config password - * medium broker
sasl.client.callback.handler.class class - * medium
sasl.login.class class - * medium
sasl.login.callback.handler.class class - * medium
sasl.kerberos.service.name string - * medium broker
sasl.kerberos.kinit.cmd string /usr/bin/kinit * medium broker
sasl.kerberos.ticket.renew.window.factor double 0.8 * medium broker
sasl.kerberos.ticket.renew.jitter double 0.05 * medium broker
sasl.kerberos.min.time.before.relogin long 60000 * medium broker
sasl.login.refresh.window.factor double 0.8 * medium broker
sasl.login.refresh.window.jitter double 0.05 * medium broker
sasl.login.refresh.min.period.seconds short 60 * medium broker
sasl.login.refresh.buffer.seconds short 300 * medium broker
sasl.login.connect.timeout.ms int - * low
sasl.login.read.timeout.ms int - * low
sasl.login.retry.backoff.max.ms long 10000 * low
sasl.login.retry.backoff.ms long 100 * low
sasl.oauthbearer.jwt.retriever.class class org.apache.kafka.common.security.oauthbearer.DefaultJwtRetriever * medium
sasl.oauthbearer.jwt.validator.class class org.apache.kafka.common.security.oauthbearer.DefaultJwtValidator * medium
sasl.oauthbearer.scope string - * medium
sasl.oauthbearer.client.credentials.client.id string - * medium
sasl.oauthbearer.client.credentials.client.secret password - * medium
sasl.oauthbearer.assertion.algorithm string RS256 anycase:ES256,RS256 medium
sasl.oauthbearer.assertion.claim.aud string - * medium
sasl.oauthbearer.assertion.claim.exp.seconds int 300 [0,...,86400] low
sasl.oauthbearer.assertion.claim.iss string - * medium
sasl.oauthbearer.assertion.claim.jti.include boolean false * medium
sasl.oauthbearer.assertion.claim.nbf.seconds int 60 [0,...,3600] low
sasl.oauthbearer.assertion.claim.sub string - * medium
sasl.oauthbearer.assertion.file string - * medium
sasl.oauthbearer.assertion.private.key.file string - * medium
sasl.oauthbearer.assertion.private.key.passphrase password - * medium
sasl.oauthbearer.assertion.template.file string - * medium
sasl.oauthbearer.scope.claim.name string scope * low
sasl.oauthbearer.sub.claim.name string sub * low
sasl.oauthbearer.token.endpoint.url string - * medium
sasl.oauthbearer.jwks.endpoint.url string - * medium
sasl.oauthbearer.jwks.endpoint.refresh.ms long 3600000 * low
sasl.oauthbearer.jwks.endpoint.retry.backoff.ms long 100 * low
sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms long 10000 * low
sasl.oauthbearer.clock.skew.seconds int 30 * low
sasl.oauthbearer.expected.audience list "" list high
sasl.oauthbearer.expected.issuer string - * high
delegation.token.secret.key password - * medium
delegation.token.max.lifetime.ms long 604800000 [1,...] medium
delegation.token.expiry.time.ms long 86400000 [1,...] medium
delegation.token.expiry.check.interval.ms long 3600000 [1,...] low
"""

BROKER_CONFIGS: Final = ConfigDef(BROKER_TABLE, SECURITY_TABLE, OWN_TABLE)
DYNAMIC_ONLY_CONFIGS: Final = ConfigDef(DYNAMIC_ONLY_TABLE)
# What AlterConfigs of a broker may name
UPDATABLE_CONFIGS: Final = BROKER_CONFIGS.extended([DYNAMIC_ONLY_CONFIGS])
