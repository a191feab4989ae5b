"""SaslHandshake and SaslAuthenticate on a listener without SASL, and the users of SCRAM."""

from __future__ import annotations

from barnabas.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from barnabas.wire.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    UserName,
)
from barnabas.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from barnabas.wire.messages.sasl_handshake import SaslHandshakeRequest
from compat_tests.conform.case import case
from compat_tests.conform.session import Session
from compat_tests.harness.eventually import eventually

SHA_256, SHA_512, UNKNOWN = 1, 2, 3


@case("SaslHandshake")
def handshake_without_sasl(session: Session) -> None:
    for mechanism in ("PLAIN", "GSSAPI", "", "x" * 1000):
        session.ask(SaslHandshakeRequest(mechanism), note=mechanism[:10])


@case("SaslAuthenticate")
def authenticate_without_sasl(session: Session) -> None:
    session.ask(SaslAuthenticateRequest(b""))
    session.ask(SaslAuthenticateRequest(b"\0alice\0secret"))


def _set(name: str, mechanism: int = SHA_256, iterations: int = 4096) -> ScramCredentialUpsertion:
    return ScramCredentialUpsertion(name, mechanism, iterations, b"salt", bytes(32))


def _alter(
    session: Session,
    *changes: ScramCredentialUpsertion | ScramCredentialDeletion,
    note: str,
    is_quiet: bool = False,
) -> None:
    request = AlterUserScramCredentialsRequest(
        deletions=[each for each in changes if isinstance(each, ScramCredentialDeletion)],
        upsertions=[each for each in changes if isinstance(each, ScramCredentialUpsertion)],
    )
    if is_quiet:
        session.quiet(request)
        return
    answer = session.quiet(request)
    answer.results.sort(key=lambda each: each.user)  # Kafka's order is that of a hash map
    session.record(note, session.names.tree(answer))


def _describe(session: Session, *names: str, note: str) -> None:
    answer = session.quiet(DescribeUserScramCredentialsRequest([UserName(each) for each in names]))
    answer.results.sort(key=lambda each: each.user)
    for result in answer.results:
        result.credential_infos.sort(key=lambda each: each.mechanism)
    session.record(note, session.names.tree(answer))


def _wait_for(session: Session, name: str, count: int) -> None:
    request = DescribeUserScramCredentialsRequest([UserName(name)])
    eventually(lambda: len(session.quiet(request).results[0].credential_infos) == count)


@case("AlterUserScramCredentials")
def refused_credentials(session: Session) -> None:
    name, other = session.name(), session.name("b")
    _alter(session, note="nothing")
    _alter(session, _set(""), note="no name")
    _alter(session, _set(name, 0), note="mechanism 0")
    _alter(session, _set(name, UNKNOWN), note="mechanism 3")
    _alter(session, _set("", UNKNOWN), note="no name, mechanism 3")
    _alter(session, _set(name, iterations=4095), note="few iterations")
    _alter(session, _set(name, iterations=16385), note="many iterations")
    _alter(session, _set(name, UNKNOWN, 1), note="few iterations of mechanism 3")
    _alter(session, ScramCredentialDeletion(name, SHA_256), note="deleting what is not there")
    _alter(session, ScramCredentialDeletion("", SHA_256), note="deleting without a name")
    _alter(session, ScramCredentialDeletion(name, UNKNOWN), note="deleting of mechanism 3")
    _alter(session, _set(name), _set(name), note="a user twice")
    _alter(session, _set(name), _set(name, SHA_512), note="a user twice, with two mechanisms")
    _alter(session, _set(name), _set(name), _set(name), note="a user three times")
    _alter(session, ScramCredentialDeletion(name, SHA_256), _set(name), note="deleted and set")
    _alter(session, _set(name), _set(name, iterations=1), note="a user twice, wrong the second time")
    _alter(session, _set(name, iterations=1), _set(name), note="a user twice, wrong the first time")
    _alter(session, _set(name), _set(name), _set(other), note="another one beside it")
    _wait_for(session, other, 1)
    _describe(session, name, other, note="what is there after that")
    _alter(session, ScramCredentialDeletion(other, SHA_256), note="", is_quiet=True)


@case("DescribeUserScramCredentials")
def described_users(session: Session) -> None:
    name, other = session.name(), session.name("b")
    _describe(session, name, note="unknown")
    _describe(session, "", note="no name")
    _alter(session, _set(name), note="set")
    _alter(session, _set(name, SHA_512, 16384), _set(other, iterations=5000), note="set")
    _wait_for(session, name, 2)
    _describe(session, name, other, note="both")
    _describe(session, name, name, other, note="one twice")
    _alter(session, ScramCredentialDeletion(name, SHA_256), note="deleted")
    _alter(session, ScramCredentialDeletion(other, SHA_512), note="deleted with another mechanism")
    _wait_for(session, name, 1)
    _describe(session, name, note="one mechanism is left")
    _alter(
        session, ScramCredentialDeletion(name, SHA_512), ScramCredentialDeletion(other, SHA_256), note="all"
    )
    _wait_for(session, name, 0)
    _describe(session, name, other, note="unknown again")
