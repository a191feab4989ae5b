"""Users, ACLs and certificates of a secured test broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from barnabas.testing.control import messages as m
from barnabas.testing.control.table import route

if TYPE_CHECKING:
    from barnabas.testing.control.control import Control


@route("GET", "/security", "What the broker asks of its clients.", answer=m.SecurityStatus)
def security(control: Control) -> m.SecurityStatus:
    found = control.broker.security
    wanted = found.wanted
    return m.SecurityStatus(
        protocol=wanted.protocol,
        mechanisms=list(wanted.mechanisms) if wanted.uses_sasl else [],
        client_auth=wanted.client_auth,
        users=found.users,
        ca=found.authority.pem if wanted.uses_tls else None,
    )


@route("POST", "/security/client", "The settings of a client.", body=m.ClientChoice, answer=m.ClientSettings)
def client(control: Control, body: m.ClientChoice) -> m.ClientSettings:
    """Properties of Java's clients, and the configuration of what is made with librdkafka, with all keys and certificates in
    them."""
    security = control.broker.security
    choice = {
        "user": body.user,
        "password": body.password,
        "mechanism": body.mechanism,
        "certificate": body.certificate,
    }
    return m.ClientSettings(
        properties=security.client("java", **choice), librdkafka=security.client("confluent-kafka", **choice)
    )


@route(
    "GET",
    "/security/certificates/{name}",
    "A client's certificate with its key: the same one each time.",
    query=m.CertificateKind,
    answer=m.ClientCertificate,
)
def certificate(control: Control, name: str, query: m.CertificateKind) -> m.ClientCertificate:
    found = control.broker.security.certificate(name, is_expired=query.expired, is_foreign=query.foreign)
    return m.ClientCertificate(certificate=found.pem, key=found.key)


@route(
    "POST",
    "/security/certificate",
    "Give the server another certificate, for connections that come from now on.",
    body=m.CertificateKind,
)
def rotate_certificate(control: Control, body: m.CertificateKind) -> None:
    control.broker.security.rotate_certificate(is_expired=body.expired, is_foreign=body.foreign)


@route("PUT", "/security/users/{user}", "Let a user in, or change the password.", body=m.Password)
def put_user(control: Control, user: str, body: m.Password) -> None:
    control.broker.security.add_user(user, body.password)


@route("DELETE", "/security/users/{user}", "Let a user in no more. Connections that are open stay.")
def delete_user(control: Control, user: str) -> None:
    control.broker.security.remove_user(user)


@route("POST", "/security/acls", "Add ACLs.", body=m.Acls)
def add_acls(control: Control, body: m.Acls) -> None:
    control.broker.security.add_acls(*body.acls)


@route("POST", "/security/acls/remove", "Remove ACLs; those that do not exist are left out.", body=m.Acls)
def remove_acls(control: Control, body: m.Acls) -> None:
    control.broker.security.remove_acls(*body.acls)
