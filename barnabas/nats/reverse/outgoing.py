"""What a publishing binding makes of a record. Of nats.publish.subject here; of a key-value bucket in kv/outgoing.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from barnabas.nats.pub_ack import failure_of
from barnabas.nats.reverse.message import MessageHeaders
from barnabas.nats.reverse.subject import compile_subject

if TYPE_CHECKING:
    from collections.abc import Callable

    from barnabas.nats.binding.templates import PublishTemplate
    from barnabas.wire.record_batch import Record

# Of a message: "" it is dealt with, a state (`waiting: <why>`) that it is not, or what to publish instead.
Outcome: TypeAlias = "str | tuple[bytes, bytes, bytes]"
Answer: TypeAlias = "Outcome | None"  # None: `on_settled` tells


class Outgoing:
    """The messages of one partition. Records come in their order, again after `restart`."""

    def __init__(self) -> None:
        self.on_settled: Callable[[int, Outcome], object] = lambda _offset, _outcome: None

    def message(self, record: Record, *, is_bridged: bool) -> tuple[bytes, bytes, bytes] | None:
        """(subject, header block, payload); None when the record is not to be published. Raises Unpublishable.
        `is_bridged`: it is a stream's message, written by the ingest."""
        raise NotImplementedError

    def is_ready(self, record: Record) -> bool:  # noqa: ARG002 - for who has a reason to wait
        """False as long as the record has to wait for the acknowledgement of one before it."""
        return True

    def sent(self, record: Record, message: tuple[bytes, bytes, bytes]) -> None:
        """It is under way."""

    def answer(self, offset: int, header_block: bytes, payload: bytes) -> Answer:  # noqa: ARG002
        """What a stream's answer to the message of this offset means."""
        return failure_of(header_block, payload)

    def restart(self, metadata: str | None) -> None:
        """Nothing is under way; what comes next is the record behind a position with this metadata, or the first of all
        (None)."""

    def metadata(self, offset: int) -> str:  # noqa: ARG002
        """To be kept with the position `offset`, which never goes back but by `restart`."""
        return ""


class SubjectOutgoing(Outgoing):
    """Every record goes to the subject of the template."""

    def __init__(self, template: PublishTemplate, cluster_id: str, topic: str, partition: int) -> None:
        super().__init__()
        self._partition = partition
        self._subject = compile_subject(template, topic)
        self._block = MessageHeaders(cluster_id, topic, partition).block

    def message(
        self,
        record: Record,
        *,
        is_bridged: bool,  # noqa: ARG002 - all are published
    ) -> tuple[bytes, bytes, bytes] | None:
        return self._subject(self._partition, record), self._block(record), record.value or b""
