"""ThrottleTimeMs in responses that are bytes already, and the charge for requests that create or delete partitions."""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Protocol

from barnabas.broker.quotas.client_quotas import PartitionPermits
from barnabas.wire.primitives import EncodeError
from barnabas.wire.registry import response_type

if TYPE_CHECKING:
    from barnabas.broker.quotas.client_quotas import ClientQuotas
    from barnabas.broker.requests.context import RequestContext
    from barnabas.wire.primitives import Part


class MeteredServices(Protocol):
    """What is used of the broker."""

    client_quotas: ClientQuotas | None


_int32: Final = struct.Struct(">i")
_PROBE: Final = 0x7B5D3A19


def partition_permits(context: RequestContext[MeteredServices], *, strict_from: int) -> PartitionPermits:
    """The charge of a request to the active controller (controller_mutation_rate). Versions from `strict_from` on are refused
    beyond the quota, older ones throttled."""
    quotas = context.services.client_quotas
    if quotas is None or context.caller.is_node:
        return PartitionPermits(None, 0.0, is_strict=False)
    quota = quotas.of(context.caller, context.client_id).mutation
    return PartitionPermits(quota, quotas.monotonic(), is_strict=context.api_version >= strict_from)


@lru_cache(maxsize=512)
def begins_with_throttle_time(api_key: int, version: int) -> bool:
    """Whether a response's body begins with ThrottleTimeMs, as most do."""
    kind = response_type(api_key)
    if "throttle_time_ms" not in kind.message_class.__struct_fields__:
        return False
    try:
        parts = kind.encode(version, kind.message_class(throttle_time_ms=_PROBE))
    except EncodeError:
        return False
    return bytes(b"".join(parts)[:4]) == _int32.pack(_PROBE)  # type: ignore[arg-type]


def throttle_time_of(api_key: int, version: int, body: bytes) -> int:
    """Of an encoded body; 0 where it is not the first field."""
    if len(body) < _int32.size or not begins_with_throttle_time(api_key, version):
        return 0
    return int(_int32.unpack_from(body)[0])


def with_throttle_time(api_key: int, version: int, parts: list[Part], throttle_ms: int) -> list[Part]:
    """An encoded body with ThrottleTimeMs, where its version has that; `parts` may hold file regions behind the first."""
    first = parts[0]
    assert isinstance(first, bytes)
    if begins_with_throttle_time(api_key, version):
        return [_int32.pack(throttle_ms) + first[_int32.size :], *parts[1:]]
    if len(parts) > 1:
        return parts
    kind = response_type(api_key)
    response: Any = kind.decode(version, first)[0]
    if not hasattr(response, "throttle_time_ms"):
        return parts
    response.throttle_time_ms = throttle_ms
    return kind.encode(version, response)
