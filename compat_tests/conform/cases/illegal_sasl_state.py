"""Every API in place of a SaslAuthenticate: the bytes of its answer, and then the end of the connection."""

from __future__ import annotations

import struct

from compat_tests.conform.apis import APIS
from compat_tests.conform.authorized_requests import Names, authorized_requests
from compat_tests.conform.case import case
from compat_tests.conform.cases.samples import sample_requests
from compat_tests.conform.client import (
    SASL_HANDSHAKE,
    Connection,
    ConnectionClosed,
    encode_request,
    request_header,
)
from compat_tests.conform.session import Session, made_up_id

NAMES = Names("topic", made_up_id(7), "absent", "group", "id")


def _ask(session: Session, request: object, note: str) -> None:
    connection = Connection(session.target.host, session.target.sasl_port)
    connection.send_frame(request_header(SASL_HANDSHAKE, 1, 0) + struct.pack(">h5s", 5, b"PLAIN"))
    connection.receive_frame()
    answered = ""
    try:
        connection.send_frame(encode_request(request, session.version))
        answered = connection.receive_frame().hex()
        connection.receive_frame()
    except ConnectionClosed:
        answered += " closed"
    finally:
        connection.close()
    session.record(note, answered)


def register(api: str) -> None:
    @case(api, authorizer=True)
    def in_place_of_a_token(session: Session) -> None:
        _ask(session, sample_requests("topic")[api], "sample")
        for each in authorized_requests(NAMES):
            if each.api == api and session.version in each.versions:
                _ask(session, each.request(session.version), each.title)

    assert in_place_of_a_token is not None


for _api in APIS:
    register(_api)
