"""What a generated module says about one message: its name, its versions, and the function for each version."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, NoReturn, TypeAlias, TypeVar

from barnabas.wire.primitives import Append, Buffer, DecodeError, EncodeError, Part

M = TypeVar("M")

Reader: TypeAlias = Callable[[Buffer, int, int], tuple[M, int]]
Writer: TypeAlias = Callable[[M, Append], None]


class MessageType(Generic[M]):
    """One message in all its versions.

    `readers[version](buffer, pos, end)` returns the message and the position behind it; `end` is where the
    frame ends and may lie before the buffer does. `writers[version](message, append)` appends parts. Both
    sequences start at version 0; a version below `min_version` holds a function that refuses.
    """

    __slots__ = (
        "api_key",
        "flexible_since",
        "has_records",
        "max_version",
        "message_class",
        "min_version",
        "name",
        "readers",
        "writers",
    )

    def __init__(
        self,
        name: str,
        message_class: type[M],
        api_key: int,
        versions: tuple[int, int],
        flexible_since: int | None,
        readers: dict[int, Reader[M]],
        writers: dict[int, Writer[M]],
        has_records: bool = False,
    ) -> None:
        """`readers` and `writers` name each function once, under the first version of every run that shares it."""
        self.name = name
        self.message_class = message_class
        self.api_key = api_key  # -1 for messages without one
        self.min_version, self.max_version = versions
        self.flexible_since = flexible_since
        self.has_records = has_records  # so that its encoding may hold parts other than bytes
        self.readers: list[Reader[M]] = []
        self.writers: list[Writer[M]] = []
        reader: Reader[M] = _refuse_to_read
        writer: Writer[M] = _refuse_to_write
        for version in range(self.max_version + 1):
            reader = readers.get(version, reader)
            writer = writers.get(version, writer)
            self.readers.append(reader)
            self.writers.append(writer)

    def flexible(self, version: int) -> bool:
        """Whether the version has compact lengths and tagged fields (KIP-482)."""
        return self.flexible_since is not None and version >= self.flexible_since

    def supports(self, version: int) -> bool:
        return self.min_version <= version <= self.max_version

    def decode(self, version: int, buffer: Buffer, pos: int = 0) -> tuple[M, int]:
        """Reads one message that starts at `pos`; returns it and the position behind it.

        Raises DecodeError and nothing else. Bytes behind the message are the caller's to judge. A records
        field is a view of `buffer`; everything else is owned by the message.
        """
        if not self.supports(version):
            raise DecodeError(f"{self.name} has no version {version}")
        return self.readers[version](buffer, pos, len(buffer))

    def encode(self, version: int, message: M) -> list[Part]:
        """Returns the encoding as a list of parts; records are among them as they are. Raises EncodeError."""
        if not self.supports(version):
            raise EncodeError(f"{self.name} has no version {version}")
        parts: list[Part] = []
        self.writers[version](message, parts.append)
        return parts

    def __repr__(self) -> str:
        return f"<{self.name} {self.min_version}-{self.max_version}>"


def _refuse_to_read(buffer: Buffer, pos: int, end: int) -> NoReturn:  # noqa: ARG001
    raise DecodeError("this version is not supported")


def _refuse_to_write(message: object, append: Append) -> None:  # noqa: ARG001
    raise EncodeError("this version is not supported")
