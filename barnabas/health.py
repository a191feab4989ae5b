"""`barnabas health`: whether a broker serves and its cluster is whole, as an exit code for scripts and containers.

By Kafka's protocol: the broker answers, the cluster has a controller, and every partition has a leader. By HTTP (`--http`): what
/readyz of barnabas.metrics.listener answers, for brokers whose listeners ask for TLS or a login.
"""

from __future__ import annotations

import http.client
import json
import socket
import struct
from typing import Final

from barnabas.wire.headers import RequestHeader, encode_request_header
from barnabas.wire.messages.metadata import (
    METADATA_REQUEST,
    METADATA_RESPONSE,
    MetadataRequest,
    MetadataResponse,
)
from barnabas.wire.primitives import DecodeError

METADATA: Final = 3
VERSION: Final = 12
ANSWER_BYTES_MAX: Final = 256 << 20
NAMED_MAX: Final = 3  # partitions in a reason


class Unhealthy(Exception):
    """The reason."""


def check(address: str, timeout_s: float, *, is_http: bool) -> tuple[bool, str]:
    """Whether it is healthy, and a line that says so, or why not."""
    host, _, port = address.rpartition(":")
    if not port.isdigit():
        return False, f"unhealthy: {address} must look like HOST:PORT"
    host = host.strip("[]") or "127.0.0.1"
    try:
        text = _ask_http(host, int(port), timeout_s) if is_http else _ask(host, int(port), timeout_s)
    except Unhealthy as reason:
        return False, f"unhealthy: {reason}"
    except OSError as error:
        return (
            False,
            f"unhealthy: {address} does not answer: {error.strerror or error or type(error).__name__}",
        )
    except (DecodeError, http.client.HTTPException, ValueError) as error:
        return False, f"unhealthy: what {address} answers cannot be read: {error}"
    return True, f"healthy: {text}"


def _ask_http(host: str, port: int, timeout_s: float) -> str:
    connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
    try:
        connection.request("GET", "/readyz")
        response = connection.getresponse()
        body = response.read(1 << 20)
    finally:
        connection.close()
    if response.status == 200:
        return "ready"
    reasons = json.loads(body).get("reasons", [])
    raise Unhealthy("; ".join(map(str, reasons)) or f"status {response.status}")


def _ask(host: str, port: int, timeout_s: float) -> str:
    response = ask_metadata(host, port, timeout_s)
    if response.controller_id < 0:
        raise Unhealthy("the cluster has no controller")
    leaderless = [
        f"{topic.name}-{partition.partition_index}"
        for topic in response.topics
        for partition in topic.partitions
        if partition.leader_id < 0
    ]
    if leaderless:
        named = ", ".join(leaderless[:NAMED_MAX]) + (", ..." if len(leaderless) > NAMED_MAX else "")
        raise Unhealthy(f"{len(leaderless)} partitions have no leader: {named}")
    partitions = sum(len(topic.partitions) for topic in response.topics)
    return f"{len(response.brokers)} brokers, controller {response.controller_id}, {partitions} partitions"


def ask_metadata(host: str, port: int, timeout_s: float) -> MetadataResponse:
    """What a broker says of all topics, without a login. Unhealthy, OSError, DecodeError."""
    head = encode_request_header(RequestHeader(METADATA, VERSION, 1, "barnabas-health"))
    request = MetadataRequest(topics=None, allow_auto_topic_creation=False)
    body = b"".join(map(bytes, METADATA_REQUEST.encode(VERSION, request)))  # type: ignore[arg-type]
    frame = head + body
    with socket.create_connection((host, port), timeout_s) as connection:
        connection.sendall(struct.pack(">i", len(frame)) + frame)
        (size,) = struct.unpack(">i", _read(connection, 4))
        if not 0 <= size <= ANSWER_BYTES_MAX:
            raise Unhealthy("it does not speak Kafka's protocol without TLS")
        answer = _read(connection, size)
    response: MetadataResponse = METADATA_RESPONSE.decode(VERSION, answer, 5)[0]
    return response


def _read(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        received = connection.recv(min(size - len(data), 1 << 20))
        if not received:
            raise Unhealthy(
                "it has closed the connection; a listener with TLS or a login is checked with --http"
            )
        data += received
    return bytes(data)
