"""Metrics of this broker's bindings and of its connections to NATS."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Final

from barnabas.broker.metrics.families import COUNTER, GAUGE, Family, written_labels
from barnabas.nats.overview import STATES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from barnabas.nats.client.client import NatsClient
    from barnabas.nats.overview import Overview, Way

_PREFIX: Final = "barnabas_nats_"

# Name (behind the prefix), kind, attribute of the Way, help
_OF_WAY: Final = (
    ("messages_in_total", COUNTER, "stats.messages_in", "Messages that came in for the partitions led here"),
    (
        "bytes_in_total",
        COUNTER,
        "stats.bytes_in",
        "Bytes of those, as they are stored (core) or came (streams)",
    ),
    ("messages_out_total", COUNTER, "stats.messages_out", "Records that were published"),
    ("bytes_out_total", COUNTER, "stats.bytes_out", "Bytes of those"),
    ("appended_total", COUNTER, "stats.appended", "Messages that became records"),
    ("duplicates_total", COUNTER, "stats.duplicates", "Messages not stored because their Nats-Msg-Id was"),
    ("refused_total", COUNTER, "stats.refused", "Messages not stored, which is answered or logged"),
    ("dead_letters_total", COUNTER, "stats.dead_letters", "Messages that went to the dead-letter topic"),
    (
        "too_large_total",
        COUNTER,
        "stats.too_large",
        "Messages that were larger than max.message.bytes allows",
    ),
    ("looped_total", COUNTER, "stats.looped", "Messages not stored because they came from this topic"),
    (
        "superseded_total",
        COUNTER,
        "stats.superseded",
        "Records that were not put into a bucket, because it had a newer value",
    ),
    ("redelivered_total", COUNTER, "stats.redelivered", "Messages that the stream has delivered again"),
    ("reconnects_total", COUNTER, "stats.reconnects", "Connections made after the first one"),
    ("lag", GAUGE, "stats.lag", "Messages of the stream, or records of the topic, that are still to come"),
    ("lost_estimate", GAUGE, "stats.lost_estimate", "An estimate of the messages that were lost"),
    ("gaps_total", COUNTER, "stats.gap_count", "Times in which messages may have been missed"),
)
# The same, of ways with acknowledgements
_OF_ACKS: Final = (
    ("acks_total", COUNTER, "acks.sent", "Acknowledgements sent"),
    ("ack_errors_total", COUNTER, "acks.refused", "Errors sent to clients that asked for an acknowledgement"),
    ("acks_unsent_total", COUNTER, "acks.not_sent", "Acknowledgements owed that could not be sent"),
    (
        "ack_seconds_total",
        COUNTER,
        "acks.latency_sum_s",
        "From the receipt of messages to their acknowledgements, summed up: divide by barnabas_nats_acks_total",
    ),
    ("ack_latency_seconds", GAUGE, "acks.latency_s", "That time of the newest acknowledgement"),
)
# The same, of a NatsClient
_OF_CONNECTION: Final = (
    ("connection_connected", GAUGE, "is_connected", "1 while there is a connection to a server"),
    ("connection_paused", GAUGE, "is_paused", "1 while nothing is read because too much waits for a log"),
    ("connection_output_bytes", GAUGE, "output_bytes", "Bytes that wait to be written"),
    ("connection_messages_in_total", COUNTER, "stats.messages_in", "Messages read"),
    ("connection_bytes_in_total", COUNTER, "stats.bytes_in", "Bytes read"),
    ("connection_messages_out_total", COUNTER, "stats.messages_out", "Messages written"),
    ("connection_bytes_out_total", COUNTER, "stats.bytes_out", "Bytes written"),
    ("connection_reconnects_total", COUNTER, "stats.reconnects", "Connections made after the first one"),
    ("connection_sink_errors_total", COUNTER, "stats.sink_errors", "Messages whose processing has failed"),
)


def nats_metrics(
    overviews: Iterable[Overview], clients: Iterable[tuple[str, str, NatsClient]], now_ms: int
) -> Iterable[Family]:
    """Metrics of bindings by topic, mode (`publish` for records that go out) and connection; of connections by name and way."""
    found = sorted(overviews, key=lambda each: each.topic)
    ways: list[tuple[dict[str, str], Way]] = []
    for each in found:
        connection = each.binding.connection if each.binding is not None else ""
        for way in each.ways:
            ways.append(({"topic": each.topic, "mode": way.mode, "connection": connection}, way))
    written = [(written_labels(labels), way) for labels, way in ways]
    yield from _families(_OF_WAY, written)
    yield from _gaps(written, now_ms)
    yield _states(ways)
    yield _limits(found)
    yield from _families(_OF_ACKS, [each for each in written if each[1].acks is not None])
    connections = (({"connection": name, "way": way}, client) for name, way, client in clients)
    yield from _families(_OF_CONNECTION, [(written_labels(labels), client) for labels, client in connections])


def _families(
    rows: Iterable[tuple[str, str, str, str]], sources: Sequence[tuple[str, object]]
) -> Iterable[Family]:
    for name, kind, attribute, help_text in rows:
        family = Family(_PREFIX + name, kind, help_text)
        value = attrgetter(attribute)
        for written, source in sources:
            family.add_labelled(value(source), written)
        yield family


def _gaps(ways: Iterable[tuple[str, Way]], now_ms: int) -> Iterable[Family]:
    seconds = Family(
        f"{_PREFIX}gap_seconds_total", COUNTER, "How long those times were, the open one included"
    )
    is_open = Family(f"{_PREFIX}gap_open", GAUGE, "1 while messages may be missed")
    for written, way in ways:
        gaps = way.stats.gaps
        open_ms = now_ms - gaps[-1].begin_ms if gaps and not gaps[-1].end_ms else 0
        seconds.add_labelled((way.stats.gap_ms + max(open_ms, 0)) / 1000, written)
        is_open.add_labelled(int(bool(gaps) and not gaps[-1].end_ms), written)
    yield from (seconds, is_open)


def _states(ways: Iterable[tuple[dict[str, str], Way]]) -> Family:
    family = Family(f"{_PREFIX}binding_state", GAUGE, "1 for the state that it is in")
    for labels, way in ways:
        word = way.state.partition(":")[0]
        for state in STATES:
            family.add(state == word, {**labels, "state": state})
    return family


def _limits(overviews: Iterable[Overview]) -> Family:
    family = Family(
        f"{_PREFIX}max_payload_exceeds_topic",
        GAUGE,
        "1 where the server takes messages that are too large for the topic",
    )
    for each in overviews:
        if each.binding is not None:
            family.add(int(bool(each.warning)), {"topic": each.topic, "connection": each.binding.connection})
    return family
