"""ApiVersions: the advertised table and the answer to versions that neither broker serves."""

from __future__ import annotations

from barnabas.wire.messages.api_versions import ApiVersionsRequest
from compat_tests.conform.case import case
from compat_tests.conform.client import Connection, decode_response
from compat_tests.conform.session import Session


@case("ApiVersions")
def table(session: Session) -> None:
    request = ApiVersionsRequest(client_software_name="conform", client_software_version="1.0")
    answer = session.quiet(request, version=session.version, on="main")
    for entry in answer.api_keys:
        session.record(f"api {entry.api_key}", [entry.min_version, entry.max_version])
    for feature in answer.supported_features:
        session.record(f"supported {feature.name}", session.names.tree(feature))
    for finalized in answer.finalized_features:
        session.record(f"finalized {finalized.name}", session.names.tree(finalized))
    session.record("error", answer.error_code)
    session.record("finalized epoch known", answer.finalized_features_epoch >= 0)


@case("ApiVersions", first=3)
def client_names(session: Session) -> None:
    for name, version in (
        ("", "1"),
        ("a", ""),
        ("bad name", "1"),
        ("-a", "1"),
        ("a", "1 2"),
        ("a.b-c", "1.0-x"),
    ):
        request = ApiVersionsRequest(client_software_name=name, client_software_version=version)
        answer = session.quiet(request, version=session.version, on="main")
        session.record(f"{name!r} {version!r}", [answer.error_code, bool(answer.api_keys)])


@case("ApiVersions", first=4, last=4)
def unknown_version(session: Session) -> None:
    for version in (5, 99, 32767, -1):
        connection = Connection(session.target.host, session.target.port)
        connection.send_frame(_header(version) + b"\x00\x00\x00")
        try:
            answer = decode_response(18, 0, 7, connection.receive_frame())
            ranges = [[key.api_key, key.min_version, key.max_version] for key in answer.api_keys]
            session.record(f"version {version}", [answer.error_code, ranges])
        except Exception as error:  # noqa: BLE001 - the kind of refusal is the outcome
            session.record(f"version {version}", type(error).__name__)
        finally:
            connection.close()


def _header(version: int) -> bytes:
    return (
        (18).to_bytes(2, "big")
        + version.to_bytes(2, "big", signed=True)
        + (7).to_bytes(4, "big")
        + b"\x00\x01c"
    )
