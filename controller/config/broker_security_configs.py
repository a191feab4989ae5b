"""Kafka 4.3's broker properties of TLS, SASL and delegation tokens (config_def.py explains the columns)."""

from __future__ import annotations

from typing import Final

SECURITY_TABLE: Final = """
sasl.mechanism.controller.protocol string GSSAPI * high
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
