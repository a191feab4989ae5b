"""`barnabas consume`: writes the records of topics to standard output, as kafka-console-consumer.sh.

Without --group it joins none and commits nothing, where Kafka's tool joins a group with a random name.
"""

from __future__ import annotations

import os
import re
import select
import signal
import sys
import time  # noqa: TID251 - a command has no runtime
from collections.abc import Callable, Mapping
from typing import Any, Final

from barnabas.commands.client_properties import pairs, read_properties
from barnabas.commands.connection import BOOTSTRAP_SERVER, close, connect, kafka, reason_of
from barnabas.commands.options import CommandFailed, Option, Options, Tool, UsageError
from barnabas.commands.terminal import complain, say

_FORMATTER_HELP: Final = (
    "How records are written, as NAME=VALUE; may be repeated. print.key, print.value (true unless set), print.timestamp, "
    "print.partition, print.offset, print.headers, print.epoch and print.delivery are true or false; key.separator (a tab), "
    "headers.separator, line.separator and null.literal are texts; key.deserializer, value.deserializer and "
    "headers.deserializer are Kafka's String-, Integer-, Long- or ShortDeserializer."
)
_DEFAULT_FORMATTERS: Final = (
    "org.apache.kafka.tools.consumer.DefaultMessageFormatter",
    "kafka.tools.DefaultMessageFormatter",
)
_NO_FORMATTERS: Final = (
    "org.apache.kafka.tools.consumer.NoOpMessageFormatter",
    "kafka.tools.NoOpMessageFormatter",
)
_DEPRECATED: Final = (
    ("consumer-property", "command-property"),
    ("consumer.config", "command-config"),
    ("property", "formatter-property"),
)
_POLL_MS: Final = 1000  # of a poll, so that a signal is seen
_RECORDS_A_POLL: Final = 500
_COMMIT_MS: Final = 30_000  # of the last commit
_INTEGERS: Final = {"Integer": 4, "Long": 8, "Short": 2}

_OPTIONS: Final = (
    BOOTSTRAP_SERVER,
    Option("topic", "The topic.", "TOPIC"),
    Option("include", "A regular expression that matches the whole names of the topics.", "REGEX"),
    Option("partition", "The only partition; from its end on unless --offset says otherwise.", "NUMBER", int),
    Option("offset", "Where to begin: a number, earliest or latest.", "OFFSET", default="latest"),
    Option("from-beginning", "Where the group has no offset, begin with the earliest record."),
    Option("max-messages", "End after that many records.", "NUMBER", int),
    Option("timeout-ms", "End when no record has come for that long.", "MS", int),
    Option("group", "The group to join; its offsets are committed.", "GROUP"),
    Option("isolation-level", "read_committed or read_uncommitted.", "LEVEL", default="read_uncommitted"),
    Option("formatter", "Kafka's default formatter and its NoOpMessageFormatter are those here.", "CLASS"),
    Option("property", "As --formatter-property (deprecated).", "NAME=VALUE"),
    Option("formatter-property", _FORMATTER_HELP, "NAME=VALUE"),
    Option("formatter-config", "A file of such properties.", "FILE"),
    Option("key-deserializer", "As --formatter-property key.deserializer=CLASS.", "CLASS"),
    Option("value-deserializer", "As --formatter-property value.deserializer=CLASS.", "CLASS"),
    Option("skip-message-on-error", "Go on with the next record when one can't be written."),
    Option("enable-systest-events", "Print a line at the end of a consumer that a signal has stopped."),
    Option("consumer-property", "As --command-property (deprecated).", "NAME=VALUE"),
    Option("command-property", "A property of the consumer; may be repeated.", "NAME=VALUE"),
    Option("consumer.config", "As --command-config (deprecated).", "FILE"),
    Option("command-config", "A file with properties of the consumer.", "FILE"),
)


class _Stopped(Exception):
    """A signal has come; the argument is its number."""


class Formatter:
    """Kafka's DefaultMessageFormatter."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        def is_true(name: str, default: str = "false") -> bool:
            return properties.get(name, default).strip().lower() == "true"

        def mark(name: str, default: str) -> bytes:
            return properties.get(name, default).encode()

        self._has_value = is_true("print.value", "true")
        self._separator = mark("key.separator", "\t")
        self._line_end = mark("line.separator", "\n")
        self._headers_separator = mark("headers.separator", ",")
        self._null = mark("null.literal", "null")
        self._key = _deserializer(properties.get("key.deserializer"))
        self._value = _deserializer(properties.get("value.deserializer"))
        self._header = _deserializer(properties.get("headers.deserializer"))
        columns = (
            ("print.timestamp", _timestamp),
            ("print.partition", lambda record: b"Partition:%d" % record.partition),
            ("print.offset", lambda record: b"Offset:%d" % record.offset),
            ("print.delivery", lambda _: b"Delivery:NOT_PRESENT"),
            ("print.epoch", lambda _: b"Epoch:NOT_PRESENT"),
            ("print.headers", self._headers),
            ("print.key", lambda record: self._text(self._key, record.key)),
        )
        self._columns: list[Callable[[Any], bytes]] = [write for name, write in columns if is_true(name)]

    def write(self, record: Any) -> bytes:
        """What stands for a record."""
        columns = [write(record) for write in self._columns]
        if self._has_value:
            columns.append(self._text(self._value, record.value))
        return self._separator.join(columns) + self._line_end if columns else b""

    def _headers(self, record: Any) -> bytes:
        texts = [key.encode() + b":" + self._text(self._header, value) for key, value in record.headers]
        return self._headers_separator.join(texts) or b"NO_HEADERS"

    def _text(self, deserialize: Callable[[bytes], bytes], data: bytes | None) -> bytes:
        return deserialize(self._null if data is None else data)


def _timestamp(record: Any) -> bytes:
    kind = {0: "CreateTime", 1: "LogAppendTime"}.get(record.timestamp_type)
    return b"NO_TIMESTAMP" if kind is None else f"{kind}:{record.timestamp}".encode()


def _deserializer(name: str | None) -> Callable[[bytes], bytes]:
    """The text of bytes, by a class of org.apache.kafka.common.serialization."""
    if name is None:
        return bytes
    kind = name.rpartition(".")[2].removesuffix("Deserializer")
    if kind == "String":
        return lambda data: data.decode("utf-8", "replace").encode()
    if kind in _INTEGERS:
        return lambda data: _integer(data, _INTEGERS[kind])
    complain(f"Unable to instantiate a deserializer from {name}: this command has none of Java's classes")
    return bytes


def _integer(data: bytes, size: int) -> bytes:
    if len(data) != size:
        raise ValueError(f"Size of data received by the deserializer is not {size}")
    return str(int.from_bytes(data, "big", signed=True)).encode()


def _run(options: Options) -> int:
    own = _own_options(options)
    library = kafka()
    properties = _consumer_properties(options, own)
    write = _formatter(options, own["formatter-property"])
    offset = _offset(options)
    consumer = connect(library.KafkaConsumer, options, properties)
    reading = _Reading(consumer, options, write, library.errors.KafkaError)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, reading.stop)
    try:
        _begin(consumer, options, offset, library.TopicPartition)
        reading.run()
    except library.errors.KafkaError as error:
        complain(f"Error processing message, terminating consumer process: {reason_of(error)}")
        return int(isinstance(error, library.errors.SaslAuthenticationFailedError))
    except _Stopped as stopped:
        return 128 + int(stopped.args[0])
    finally:
        # A second signal ends what follows, also where the first has been noted in a poll that failed.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        reading.close()
    return 0


def _own_options(options: Options) -> dict[str, str]:
    """Which name each option has that has two, a deprecated one as well."""
    if len(options.which_of(("topic", "include"))) != 1:
        raise UsageError("Exactly one of the following arguments is required: [topic], [include]")
    if options.has("partition"):
        if not options.has("topic"):
            raise UsageError("The topic is required when partition is specified.")
        if options.has("from-beginning") and options.has("offset"):
            raise UsageError("Options from-beginning and offset cannot be specified together.")
    elif options.has("offset"):
        raise UsageError("The partition is required when offset is specified.")
    for old, new in _DEPRECATED:
        if options.has(old) and options.has(new):
            raise UsageError(f"Options --{old} and --{new} cannot be specified together.")
    for old, new in _DEPRECATED:
        if options.has(old):
            say(f"Option --{old} is deprecated and will be removed in a future version. Use --{new} instead.")
    return {new: old if options.has(old) else new for old, new in _DEPRECATED}


def _consumer_properties(options: Options, own: Mapping[str, str]) -> dict[str, str]:
    file = options.value(own["command-config"])
    from_file = {} if file is None else read_properties(file)
    given = pairs(options.values(own["command-property"]))
    groups = {
        each
        for each in (options.value("group"), from_file.get("group.id"), given.get("group.id"))
        if each is not None
    }
    if len(groups) > 1:
        detected = ", ".join(f"'{each}'" for each in sorted(groups))
        raise UsageError(
            "The group ids provided in different places (directly using '--group', via '--consumer-property', or via "
            f"'--consumer.config') do not match. Detected group ids: {detected}"
        )
    if groups and options.has("partition"):
        raise UsageError("Options group and partition cannot be specified together.")
    properties = {"client.id": "console-consumer", **from_file, **given}
    begins_first = options.has("from-beginning")
    reset = properties.setdefault("auto.offset.reset", "earliest" if begins_first else "latest")
    if begins_first and reset != "earliest":
        raise CommandFailed(
            f"Can't simultaneously specify --from-beginning and 'auto.offset.reset={reset}', please remove one option"
        )
    if options.has("isolation-level") or "isolation.level" not in properties:
        properties["isolation.level"] = options.value("isolation-level")
    properties.pop("group.id", None)
    if groups:
        properties["group.id"] = groups.pop()
    return properties


def _formatter(options: Options, name: str) -> Callable[[Any], bytes]:
    chosen = options.value("formatter")
    if chosen in _NO_FORMATTERS:
        return lambda _: b""
    if chosen is not None and chosen not in _DEFAULT_FORMATTERS:
        raise UsageError(f"--formatter: {chosen} is a Java class")
    file = options.value("formatter-config")
    properties = {} if file is None else read_properties(file)
    for option in ("key-deserializer", "value-deserializer"):
        if options.value(option):
            properties[option.replace("-", ".")] = options.value(option)
    return Formatter({**properties, **pairs(options.values(name))}).write


def _begin(consumer: Any, options: Options, offset: str, topic_partition: Any) -> None:
    """Subscribe, or assign the one partition and go to its offset."""
    topic, number = options.value("topic"), options.value("partition")
    if topic is None:
        consumer.subscribe(pattern=f"^(?:{options.value('include')})$")
    elif number is None:
        consumer.subscribe([topic])
    else:
        partition = topic_partition(topic, number)
        consumer.assign([partition])
        if offset == "earliest":
            consumer.seek_to_beginning(partition)
        elif offset == "latest":
            consumer.seek_to_end(partition)
        else:
            consumer.seek(partition, int(offset))


def _offset(options: Options) -> str:
    if not options.has("offset"):
        return "earliest" if options.has("from-beginning") else "latest"
    text = str(options.value("offset"))
    if text.lower() in ("earliest", "latest"):
        return text.lower()
    if not re.fullmatch(r"\+?[0-9]+", text):
        raise UsageError(
            f"The provided offset value '{text}' is incorrect. Valid values are 'earliest', 'latest', or a non-negative long."
        )
    return text


class _Reading:
    """Writes records until there are enough, none come, or a signal does."""

    def __init__(
        self,
        consumer: Any,
        options: Options,
        write: Callable[[Any], bytes],
        kafka_error: type[Exception],
    ) -> None:
        self._consumer = consumer
        self._kafka_error = kafka_error
        self._write = write
        self._skips_errors = options.has("skip-message-on-error")
        self._prints_end = options.has("enable-systest-events")
        self._maximum = options.value("max-messages")
        self._timeout_ms = options.value("timeout-ms")
        self._count = 0
        self._is_running = False
        self._signal = 0  # that has come since
        self._fetched: list[Any] = []  # the next one last

    def run(self) -> None:
        """_Stopped is raised here."""
        self._is_running = True
        sys.stdout.flush()
        while self._maximum is None or self._maximum < 0 or self._count < self._maximum:
            if self._signal:
                raise _Stopped(self._signal)
            if not self._fetched and not self._poll():
                return
            if self._fetched and not self._write_next():
                return

    def stop(self, number: int, _: object) -> None:
        """A handler of signals. While records are read it only notes one: what it raised in a poll the library could swallow, and
        a record between its writing and its count would be written again."""
        if not self._is_running:
            raise _Stopped(number)
        self._signal = number

    def _poll(self) -> bool:
        """Fetch records, few enough that none is left over. False when none have come in time."""
        has_timeout = self._timeout_ms is not None and self._timeout_ms >= 0
        until = time.monotonic() + (self._timeout_ms if has_timeout else _POLL_MS) / 1000
        while True:
            left_ms = max(0, int((until - time.monotonic()) * 1000))
            batches = self._consumer.poll(timeout_ms=min(left_ms, _POLL_MS), max_records=_RECORDS_A_POLL)
            if batches or self._signal or time.monotonic() >= until:
                break
        self._fetched = [record for batch in batches.values() for record in batch][::-1]
        if has_timeout and not self._fetched and not self._signal:
            complain("Error processing message, terminating consumer process: no record came in time")
            return False
        return True

    def _write_next(self) -> bool:
        """False when what reads the output has ended."""
        try:
            text = self._write(self._fetched[-1])
        except ValueError as error:
            self._take()
            if not self._skips_errors:
                raise CommandFailed(f"Unknown error when running consumer: {error}") from None
            complain(f"Error processing message, skipping this message: {error}")
            return True
        try:
            if self._write_out(text):
                self._take()
        except BrokenPipeError:
            complain("Unable to write to standard out, closing consumer.")
            return False
        return True

    def _write_out(self, text: bytes) -> bool:
        """Whether all of it was written. In pieces that do not block, so that a signal ends it where nothing reads the output."""
        output, rest = sys.stdout.fileno(), memoryview(text)
        while rest:
            if select.select((), (output,), (), _POLL_MS / 1000)[1]:
                rest = rest[os.write(output, rest[: select.PIPE_BUF]) :]
            elif self._signal:
                return False
        return True

    def _take(self) -> None:
        self._fetched.pop()
        self._count += 1

    def close(self) -> None:
        """Commit what was written, for a group, and leave it."""
        first: dict[Any, int] = {}
        for record in self._fetched:  # the last one stored is the smallest offset
            first[record.topic, record.partition] = record.offset
        for partition in self._consumer.assignment():
            if (offset := first.get((partition.topic, partition.partition))) is not None:
                self._consumer.seek(partition, offset)
        if self._consumer.config["group_id"] is not None and self._consumer.config["enable_auto_commit"]:
            try:
                self._consumer.commit(timeout_ms=_COMMIT_MS)
            except self._kafka_error as error:
                complain(f"Offsets were not committed: {reason_of(error)}")
        close(self._consumer)
        complain(f"Processed a total of {self._count} messages")


TOOL: Final = Tool(
    "consume",
    "kafka-console-consumer.sh",
    "Write the records of topics to standard output.",
    _OPTIONS,
    _run,
)
