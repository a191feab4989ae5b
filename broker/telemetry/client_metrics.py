"""Client metrics (KIP-714), as Kafka's ClientMetricsManager has them: the instances of clients, and the rules of their requests.

An instance is known from its first request until its connection ends, it has been silent for a while, or more than
INSTANCES_MAX have come after it. It may ask for its subscriptions, or push, once in each push interval; a push right behind the
answer to such a question is allowed, and a question behind a push that was refused for what the subscriptions say. A changed
subscription begins anew.

Without a receiver pushes are accepted and dropped; ApiVersions does not name the requests then, and clients send none.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from barnabas.broker.coordinator.timers import DeadlineTimer
from barnabas.broker.telemetry.otlp import OtlpError, decode_metrics
from barnabas.broker.telemetry.receiver import SERIES_OF_A_CLIENT_MAX
from barnabas.broker.telemetry.subscriptions import Subscription, choose, parse_subscription
from barnabas.controller.metadata.image import CLIENT_METRICS_RESOURCE, MetadataImage
from barnabas.runtime.repeated_warnings import RepeatedWarnings
from barnabas.runtime.slices import StepQueue
from barnabas.wire.compression import Codec, CompressionError
from barnabas.wire.errors import ErrorCode
from barnabas.wire.uuids import random_uuid, uuid_to_string

if TYPE_CHECKING:
    from collections.abc import Callable

    from barnabas.broker.requests.context import RequestContext
    from barnabas.broker.telemetry.receiver import ClientMetricsReceiver
    from barnabas.broker.telemetry.subscriptions import Wanted
    from barnabas.runtime.interface import Runtime
    from barnabas.runtime.slices import Steps

log = logging.getLogger("barnabas.telemetry")

INSTANCES_MAX: Final = 16384
ATTRIBUTE_MAX: Final = 256  # characters of a client id that an instance keeps, as quotas do
SILENT_MS_MIN: Final = 60_000
SILENT_INTERVALS: Final = 3
WAITING_BYTES_MAX: Final = 32 * 1024 * 1024  # of payloads that are not decoded yet
ACCEPTED_COMPRESSION_TYPES: Final = (Codec.ZSTD, Codec.LZ4, Codec.GZIP, Codec.SNAPPY)  # the preferred first
_RESERVED: Final = (bytes(16), bytes(15) + b"\x01")  # instance ids
_ASK_AGAIN_AT_ONCE: Final = (ErrorCode.UNKNOWN_SUBSCRIPTION_ID, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
_NEVER: Final = float("-inf")


class ClientInstance:
    """One client instance. Times in s, on the monotonic clock."""

    __slots__ = (
        "attributes", "expiry", "id", "is_terminating", "last_error", "last_get_s", "last_push_s", "version", "wanted",
    )  # fmt: skip

    def __init__(
        self,
        instance_id: bytes,
        attributes: Mapping[str, str | None],
        wanted: Wanted,
        version: int,
        expiry: DeadlineTimer,
    ) -> None:
        self.id = instance_id
        self.attributes = attributes  # of its first request
        self.wanted = wanted
        self.version = version  # of the subscriptions, when `wanted` was chosen
        self.expiry = expiry
        self.is_terminating = False
        self.last_error = ErrorCode.NONE
        self.last_get_s = _NEVER
        self.last_push_s = _NEVER

    def may_get(self, now_s: float) -> bool:
        is_due = now_s - max(self.last_get_s, self.last_push_s) >= self.wanted.interval_ms / 1000
        if is_due:
            self.last_get_s = now_s
        return is_due or self.last_error in _ASK_AGAIN_AT_ONCE

    def may_push(self, now_s: float) -> bool:
        is_due = (
            self.last_get_s > self.last_push_s or now_s - self.last_push_s >= self.wanted.interval_ms / 1000
        )
        if is_due:
            self.last_push_s = now_s
        return is_due

    @property
    def silent_ms_max(self) -> int:
        return max(SILENT_MS_MIN, SILENT_INTERVALS * self.wanted.interval_ms)


class ClientMetrics:
    """The client metrics of one broker. All calls on the loop's thread."""

    def __init__(
        self, runtime: Runtime, payload_bytes_max: int, receiver: ClientMetricsReceiver | None
    ) -> None:
        """`payload_bytes_max`: telemetry.max.bytes, of a push and of what it is unpacked to."""
        self.receiver = receiver
        self.payload_bytes_max = payload_bytes_max
        self.instances: dict[bytes, ClientInstance] = {}  # the one that was used last at the end
        self.unknown_subscriptions = 0
        self.throttled = 0
        self.received = 0  # pushes that the receiver has taken
        self.invalid = 0
        self._runtime = runtime
        self._subscriptions: dict[str, Subscription] = {}
        self._version = 0  # grows with each change of the subscriptions
        self._payloads = StepQueue(runtime)  # one at a time, so that the memory for decoding is bounded
        self._waiting_bytes = 0
        self._warnings = RepeatedWarnings(runtime, log)

    def configs_changed(self, image: MetadataImage, resources: set[tuple[int, str]]) -> None:
        """Take over the subscriptions among these resources."""
        for kind, name in resources:
            if kind == CLIENT_METRICS_RESOURCE:
                configs = image.configs.get((kind, name))
                if configs:
                    self._subscriptions[name] = parse_subscription(name, configs)
                else:
                    self._subscriptions.pop(name, None)
                self._version += 1

    def load(self, image: MetadataImage) -> None:
        """Take over all subscriptions."""
        self.configs_changed(image, set(image.configs))

    def new_instance_id(self) -> bytes:
        while (found := random_uuid(self._runtime.random_bytes)) in self.instances:
            pass
        return found

    def instance(
        self, instance_id: bytes, context: RequestContext[Any]
    ) -> Generator[None, None, ClientInstance]:
        """The instance with this id, with the subscriptions of now. Yields after each bounded part of the work."""
        while True:
            found = self.instances.get(instance_id)
            if found is not None and found.version == self._version:
                break
            version = self._version
            attributes = _attributes(instance_id, context) if found is None else found.attributes
            wanted = yield from choose(list(self._subscriptions.values()), instance_id, attributes)
            if version != self._version or self.instances.get(instance_id) is not found:
                continue
            if found is not None:
                found.expiry.cancel()
            found = ClientInstance(instance_id, attributes, wanted, version, self._expiry(instance_id))
            context.reply.peer.when_closed("client metrics", partial(self._forget, found))
            break
        self.instances.pop(instance_id, None)
        self.instances[instance_id] = found
        found.expiry.set(found.silent_ms_max)
        if len(self.instances) > INSTANCES_MAX:
            self._forget(next(iter(self.instances.values())))
        return found

    def check_get(self, instance: ClientInstance) -> ErrorCode:
        """Whether the instance may ask for its subscriptions now."""
        if not instance.may_get(self._runtime.monotonic()):
            self.throttled += 1
            return ErrorCode.THROTTLING_QUOTA_EXCEEDED
        instance.last_error = ErrorCode.NONE
        return ErrorCode.NONE

    def check_push(
        self,
        instance: ClientInstance,
        subscription_id: int,
        *,
        is_terminating: bool,
        compression_type: int,
        size: int,
    ) -> ErrorCode:
        """Whether the instance may push so much now."""
        error = self._push_error(instance, subscription_id, is_terminating, compression_type, size)
        instance.is_terminating = is_terminating
        instance.last_error = error
        return error

    def _push_error(
        self,
        instance: ClientInstance,
        subscription_id: int,
        is_terminating: bool,
        compression_type: int,
        size: int,
    ) -> ErrorCode:
        if instance.is_terminating:
            return ErrorCode.INVALID_REQUEST
        if not instance.may_push(self._runtime.monotonic()) and not is_terminating:
            self.throttled += 1
            return ErrorCode.THROTTLING_QUOTA_EXCEEDED
        if subscription_id != instance.wanted.subscription_id:
            self.unknown_subscriptions += 1
            return ErrorCode.UNKNOWN_SUBSCRIPTION_ID
        if not 0 <= compression_type <= Codec.ZSTD:
            return ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
        if size > self.payload_bytes_max:
            return ErrorCode.TELEMETRY_TOO_LARGE
        if self._waiting_bytes + size > WAITING_BYTES_MAX:
            self.throttled += 1
            return ErrorCode.THROTTLING_QUOTA_EXCEEDED
        return ErrorCode.NONE

    def receive(
        self,
        instance: ClientInstance,
        payload: bytes,
        compression_type: int,
        done: Callable[[ErrorCode], object],
    ) -> None:
        """Have the receiver take a payload for which `check_push` has returned no error; `done(error)` once."""
        if not payload or (self.receiver is None and compression_type == Codec.NONE):
            done(ErrorCode.NONE)
            return
        self._waiting_bytes += len(payload)

        def ended(_result: None, error: BaseException | None) -> None:
            self._waiting_bytes -= len(payload)
            if error is None:
                self.received += 1
                done(ErrorCode.NONE)
                return
            self.invalid += 1
            instance.last_error = ErrorCode.INVALID_RECORD
            address = instance.attributes["client_source_address"] or ""
            self._warnings.warn(
                address,
                "telemetry",
                f"client metrics of {address} can't be read: {error}",
                error=None if isinstance(error, (OtlpError, CompressionError)) else error,
            )
            done(ErrorCode.INVALID_RECORD)

        self._payloads.add(self._take(instance, payload, compression_type), ended)

    def _take(self, instance: ClientInstance, payload: bytes, compression_type: int) -> Steps[None]:
        if compression_type != Codec.NONE:
            payload = yield partial(_decompressed, compression_type, payload, self.payload_bytes_max)
        receiver = self.receiver
        if receiver is None:
            return
        points, left_out = yield from decode_metrics(payload, SERIES_OF_A_CLIENT_MAX)
        receiver.left_out += left_out
        yield from receiver.receive(instance.id, _labels(instance), points, instance.silent_ms_max)

    def _expiry(self, instance_id: bytes) -> DeadlineTimer:
        def expired() -> None:
            self.instances.pop(instance_id, None)

        return DeadlineTimer(self._runtime, expired)

    def _forget(self, instance: ClientInstance) -> None:
        instance.expiry.cancel()
        if self.instances.get(instance.id) is instance:
            del self.instances[instance.id]

    def stop(self) -> None:
        for instance in self.instances.values():
            instance.expiry.cancel()
        if self.receiver is not None:
            self.receiver.stop()


def is_reserved(instance_id: bytes) -> bool:
    """Whether no client may have this id."""
    return instance_id in _RESERVED


def _attributes(instance_id: bytes, context: RequestContext[Any]) -> dict[str, str | None]:
    """What subscriptions may match; of texts that the client chooses, the first ATTRIBUTE_MAX characters."""
    peer = context.reply.peer
    client_id = context.client_id
    return {
        "client_instance_id": uuid_to_string(instance_id),
        "client_id": None if client_id is None else client_id[:ATTRIBUTE_MAX],
        "client_software_name": peer.software_name[:ATTRIBUTE_MAX],
        "client_software_version": peer.software_version[:ATTRIBUTE_MAX],
        "client_source_address": context.client_host,
        "client_source_port": str(peer.port),
    }


def _labels(instance: ClientInstance) -> dict[str, str]:
    found = instance.attributes
    return {
        "client_instance_id": found["client_instance_id"] or "",
        "client_id": found["client_id"] or "",
        "client_software_name": found["client_software_name"] or "",
    }


def _decompressed(compression_type: int, payload: bytes, limit: int) -> bytes:
    """In a thread. CompressionError."""
    from barnabas.wire.codecs import decompress

    found = decompress(compression_type, payload, limit)
    if isinstance(found, bytes):
        return found
    with found:
        return found[:]
