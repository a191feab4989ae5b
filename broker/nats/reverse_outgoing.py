"""What a publishing binding makes of a record. Of nats.publish.subject here; of a key-value bucket in kv_outgoing.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from barnabas.broker.nats.reverse_message import MessageHeaders
from barnabas.broker.nats.reverse_subject import compile_subject

if TYPE_CHECKING:
    from barnabas.controller.nats.templates import PublishTemplate
    from barnabas.wire.record_batch import Record


class Outgoing(Protocol):
    """The messages of one partition. Records come in their order, again after `restart`."""

    def message(self, record: Record) -> tuple[bytes, bytes, bytes] | None:
        """(subject, header block, payload); None when the record is not to be published. Raises Unpublishable."""
        ...

    def restart(self, metadata: str) -> None:
        """What comes next is the record behind a position with this metadata."""
        ...

    def metadata(self, offset: int) -> str:
        """To be kept with the position `offset`, which never goes back but by `restart`."""
        ...


OutgoingFactory = "Callable[[int], Outgoing]"


class SubjectOutgoing:
    """Every record goes to the subject of the template."""

    def __init__(self, template: PublishTemplate, cluster_id: str, topic: str, partition: int) -> None:
        self._partition = partition
        self._subject = compile_subject(template, topic)
        self._block = MessageHeaders(cluster_id, topic, partition).block

    def message(self, record: Record) -> tuple[bytes, bytes, bytes] | None:
        return self._subject(self._partition, record), self._block(record), record.value or b""

    def restart(self, metadata: str) -> None:
        """Each record stands for itself."""

    def metadata(self, offset: int) -> str:  # noqa: ARG002
        return ""
