"""`barnabas produce`: sends the lines of standard input to a topic, as kafka-console-producer.sh."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

from barnabas.commands.client_properties import pairs, read_properties
from barnabas.commands.connection import BOOTSTRAP_SERVER, close, connect, kafka, reason_of
from barnabas.commands.options import CommandFailed, Option, Options, Tool, UsageError
from barnabas.commands.terminal import complain, say

_READER_HELP: Final = (
    "How lines are read, as NAME=VALUE; may be repeated. parse.key=true: a line is a key and a value with key.separator "
    "(a tab) between. parse.headers=true: a line begins with headers, h1:v1,h2:v2 and a tab; headers.delimiter, "
    "headers.separator and headers.key.separator are other marks. null.marker: what stands for null. ignore.error=true: a line "
    "without a mark is all value."
)
_READERS: Final = (
    "org.apache.kafka.tools.LineMessageReader",
    "kafka.tools.ConsoleProducer$LineMessageReader",
)
_DEPRECATED: Final = (
    ("producer-property", "command-property"),
    ("producer.config", "command-config"),
    ("property", "reader-property"),
)

_OPTIONS: Final = (
    BOOTSTRAP_SERVER,
    Option("topic", "The topic.", "TOPIC"),
    Option("sync", "Wait for the answer to each record before the next; a failure ends the command."),
    Option(
        "compression-codec",
        "none, gzip, snappy, lz4 or zstd; without a value gzip.",
        "CODEC",
        is_value_optional=True,
    ),
    Option("batch-size", "batch.size of the producer.", "BYTES", int, 16384),
    Option("message-send-max-retries", "retries of the producer.", "NUMBER", int, 3),
    Option("retry-backoff-ms", "retry.backoff.ms of the producer.", "MS", int, 100),
    Option("timeout", "linger.ms of the producer.", "MS", int, 1000),
    Option("request-required-acks", "acks of the producer.", "ACKS", default="-1"),
    Option("request-timeout-ms", "request.timeout.ms of the producer.", "MS", int, 1500),
    Option("metadata-expiry-ms", "metadata.max.age.ms of the producer.", "MS", int, 300000),
    Option("max-block-ms", "max.block.ms of the producer.", "MS", int, 60000),
    Option("max-memory-bytes", "Has no effect.", "BYTES", int),
    Option("max-partition-memory-bytes", "As --batch-size (deprecated).", "BYTES", int),
    Option("line-reader", "Kafka's own reader of lines is the only one here.", "CLASS", default=_READERS[0]),
    Option("socket-buffer-size", "send.buffer.bytes of the producer.", "BYTES", int, 102400),
    Option("property", "As --reader-property (deprecated).", "NAME=VALUE"),
    Option("reader-property", _READER_HELP, "NAME=VALUE"),
    Option("reader-config", "A file of such properties.", "FILE"),
    Option("producer-property", "As --command-property (deprecated).", "NAME=VALUE"),
    Option("command-property", "A property of the producer; may be repeated.", "NAME=VALUE"),
    Option("producer.config", "As --command-config (deprecated).", "FILE"),
    Option("command-config", "A file with properties of the producer.", "FILE"),
)
# option -> property of the producer, which it sets when it is given or the property is not
_MERGED: Final = (
    ("timeout", "linger.ms"),
    ("request-required-acks", "acks"),
    ("request-timeout-ms", "request.timeout.ms"),
    ("message-send-max-retries", "retries"),
    ("retry-backoff-ms", "retry.backoff.ms"),
    ("socket-buffer-size", "send.buffer.bytes"),
    ("batch-size", "batch.size"),
    ("metadata-expiry-ms", "metadata.max.age.ms"),
    ("max-block-ms", "max.block.ms"),
)


class ReaderError(Exception):
    """A line, or a property of the reader, that can't be used; the text is Kafka's."""


class Line(NamedTuple):
    """A record of a line."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


class LineReader:
    """Splits lines as Kafka's LineMessageReader. Bytes that are no UTF-8 pass through."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        """ReaderError for marks that can't be told apart."""

        def is_true(name: str) -> bool:
            return properties.get(name, "").strip().lower() == "true"

        self._parses_key = is_true("parse.key")
        self._parses_headers = is_true("parse.headers")
        self._ignores_errors = is_true("ignore.error")
        self._key_separator = properties.get("key.separator", "\t")
        self._delimiter = properties.get("headers.delimiter", "\t")
        self._separator = properties.get("headers.separator", ",")
        self._header_key_separator = properties.get("headers.key.separator", ":")
        self._null_marker = properties.get("null.marker")
        self._line_number = 0
        marks = {
            "headers.delimiter": self._delimiter,
            "headers.separator": self._separator,
            "headers.key.separator": self._header_key_separator,
        }
        for first, second in (
            ("headers.delimiter", "headers.separator"),
            ("headers.delimiter", "headers.key.separator"),
            ("headers.separator", "headers.key.separator"),
        ):
            if marks[first] == marks[second]:
                raise ReaderError(f"{first} and {second} may not be equal")
        for name, mark in {"key.separator": self._key_separator, **marks}.items():
            if mark == self._null_marker:
                raise ReaderError(f"null.marker and {name} may not be equal")

    def read(self, line: str) -> Line:
        """The record of a line. ReaderError."""
        self._line_number += 1
        headers, rest = self._cut(self._parses_headers, line, line, self._delimiter, "headers delimiter")
        key, value = self._cut(self._parses_key, line, rest, self._key_separator, "key separator")
        return Line(
            None if key is None else self._bytes(key),
            self._bytes(value),
            [] if headers is None or headers == self._null_marker else self._headers(headers),
        )

    def _cut(self, is_wanted: bool, line: str, text: str, mark: str, name: str) -> tuple[str | None, str]:
        if not is_wanted:
            return None, text
        before, found, after = text.partition(mark)
        if found:
            return before, after
        if self._ignores_errors:
            return None, text
        raise ReaderError(f"No {name} found on line number {self._line_number}: '{line}'")

    def _headers(self, text: str) -> list[tuple[str, bytes | None]]:
        headers: list[tuple[str, bytes | None]] = []
        parts = re.split(self._separator, text)
        while len(parts) > 1 and not parts[-1]:
            parts.pop()
        for part in parts:
            key, found, value = part.partition(self._header_key_separator)
            if not found:
                if not self._ignores_errors:
                    raise ReaderError(
                        f"No header key separator found in pair '{part}' on line number {self._line_number}"
                    )
                headers.append((part, None))
                continue
            if key == self._null_marker:
                raise ReaderError(
                    f"Header keys should not be equal to the null marker '{key}' as they can't be null"
                )
            headers.append((key, self._bytes(value)))
        return headers

    def _bytes(self, text: str) -> bytes | None:
        return None if text == self._null_marker else text.encode("utf-8", "surrogateescape")


def _run(options: Options) -> int:
    own = _own_options(options)
    library = kafka()
    try:
        reader = LineReader(_reader_properties(options, own["reader-property"]))
        properties, codec = _producer_properties(options, own)
        producer = connect(library.KafkaProducer, options, properties, compression_type=codec)
        try:
            for line in _lines():
                _send(producer, options, reader.read(line), library.errors.KafkaError)
        finally:
            producer.flush()
            close(producer)
    except (ReaderError, ValueError, TypeError, RuntimeError) as error:
        # also what kafka-python can't send: null as a header, a record without key and value, a codec that is not installed
        raise CommandFailed(str(error)) from None
    except library.errors.KafkaError as error:
        raise CommandFailed(reason_of(error)) from None
    return 0


def _own_options(options: Options) -> dict[str, str]:
    """Which name each option has that has two, a deprecated one as well."""
    options.require("topic")
    for old, new in sorted(_DEPRECATED):
        if options.has(old) and options.has(new):
            raise UsageError(f"Options --{new} and --{old} cannot be specified together.")
    for old, new in _DEPRECATED:
        if options.has(old):
            say(
                f"Warning: --{old} is deprecated and will be removed in a future version. Use --{new} instead."
            )
    if options.has("max-partition-memory-bytes"):
        say(
            "Warning: --max-partition-memory-bytes is deprecated and will be removed in Apache Kafka 5.0. Use --batch-size "
            "instead."
        )
    if options.value("line-reader") not in _READERS:
        raise CommandFailed(f"--line-reader: {options.value('line-reader')} is a Java class")
    return {new: old if options.has(old) else new for old, new in _DEPRECATED}


def _reader_properties(options: Options, name: str) -> dict[str, str]:
    file = options.value("reader-config")
    return {**({} if file is None else read_properties(file)), **pairs(options.values(name))}


def _producer_properties(options: Options, own: Mapping[str, str]) -> tuple[dict[str, str], str | None]:
    """The properties, and the codec."""
    file = options.value(own["command-config"])
    properties = {"client.id": "console-producer", **({} if file is None else read_properties(file))}
    properties |= pairs(options.values(own["command-property"]))
    for option, name in _MERGED:
        if options.has(option) or name not in properties:
            properties[name] = str(options.value(option))
    if options.has("max-partition-memory-bytes"):
        properties["batch.size"] = str(options.value("max-partition-memory-bytes"))
    properties["acks"] = "-1" if properties["acks"] == "all" else properties["acks"]
    codec = (options.value("compression-codec") or "gzip") if options.has("compression-codec") else "none"
    properties.pop("compression.type", None)  # Kafka's tool does not take it
    return properties, None if codec == "none" else codec


def _lines() -> Iterator[str]:
    """The lines of standard input; with a prompt when a person types."""
    source = io.TextIOWrapper(sys.stdin.buffer, encoding="utf-8", errors="surrogateescape")
    has_prompt = sys.stdin.isatty() and sys.stdout.isatty()
    while True:
        if has_prompt:
            sys.stdout.write(">")
            sys.stdout.flush()
        line = source.readline()
        if not line:
            return
        yield line.removesuffix("\n")


def _send(producer: Any, options: Options, line: Line, kafka_error: type[Exception]) -> None:
    """As Kafka's tool, a failure ends the command with --sync, and is a line on standard error without it."""
    topic = options.value("topic")
    failed = partial(_report, topic, line)
    try:
        future = producer.send(topic, value=line.value, key=line.key, headers=line.headers)
        if options.has("sync"):
            future.get()
            return
    except kafka_error as error:
        if options.has("sync"):
            raise
        failed(error)
        return
    future.add_errback(failed)


def _report(topic: str, line: Line, error: Exception) -> None:
    key = "null" if line.key is None else f"{len(line.key)} bytes"
    value = "null" if line.value is None else f"{len(line.value)} bytes"
    complain(
        f"Error when sending message to topic {topic} with key: {key}, value: {value} with error: {reason_of(error)}"
    )


TOOL: Final = Tool(
    "produce",
    "kafka-console-producer.sh",
    "Send the lines of standard input to a topic, each as a record.",
    _OPTIONS,
    _run,
)
