"""Metrics of the bindings that this broker carries out, and of its connections to NATS."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from barnabas.broker.metrics.families import COUNTER, GAUGE, Family, written_labels
from barnabas.nats.overview import STATES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from barnabas.nats.client.client import NatsClient
    from barnabas.nats.overview import Overview, Way

# Name (behind barnabas_nats_), kind, of CarrierStats, help
_OF_BINDING: Final = (
    ("messages_in_total", COUNTER, "messages_in", "Messages that came in for the partitions led here"),
    ("bytes_in_total", COUNTER, "bytes_in", "Bytes of those, as they are stored (core) or came (streams)"),
    ("messages_out_total", COUNTER, "messages_out", "Records that were published"),
    ("bytes_out_total", COUNTER, "bytes_out", "Bytes of those"),
    ("appended_total", COUNTER, "appended", "Messages that became records"),
    ("duplicates_total", COUNTER, "duplicates", "Messages not stored because their Nats-Msg-Id was"),
    ("refused_total", COUNTER, "refused", "Messages not stored, which is answered or logged"),
    ("dead_letters_total", COUNTER, "dead_letters", "Messages that went to the dead-letter topic"),
    ("too_large_total", COUNTER, "too_large", "Messages that were larger than max.message.bytes allows"),
    ("looped_total", COUNTER, "looped", "Messages not stored because they came from this topic"),
    (
        "superseded_total",
        COUNTER,
        "superseded",
        "Records that were not put into a bucket, because it had a newer value",
    ),
    ("redelivered_total", COUNTER, "redelivered", "Messages that the stream has delivered again"),
    ("reconnects_total", COUNTER, "reconnects", "Connections made after the first one"),
    ("lag", GAUGE, "lag", "Messages of the stream, or records of the topic, that are still to come"),
    ("lost_estimate", GAUGE, "lost_estimate", "An estimate of the messages that were lost"),
    ("gaps_total", COUNTER, "gap_count", "Times in which messages may have been missed"),
)


def nats_metrics(
    overviews: Sequence[Overview], clients: Iterable[tuple[str, str, NatsClient]], now_ms: int
) -> Iterable[Family]:
    """Of bindings by topic, mode (`publish` is a topic's way out) and connection; of connections by name and way."""
    yield from _bindings(overviews, now_ms)
    yield from _connections(clients)


def _bindings(overviews: Sequence[Overview], now_ms: int) -> Iterable[Family]:
    ways: list[tuple[str, dict[str, str], Way]] = []
    for each in sorted(overviews, key=lambda each: each.topic):
        connection = each.binding.connection if each.binding is not None else ""
        for way in each.ways:
            labels = {"topic": each.topic, "mode": way.mode, "connection": connection}
            ways.append((written_labels(labels), labels, way))
    for name, kind, attribute, help_text in _OF_BINDING:
        family = Family(f"barnabas_nats_{name}", kind, help_text)
        for written, _, way in ways:
            family.add_labelled(getattr(way.stats, attribute), written)
        yield family
    seconds = Family(
        "barnabas_nats_gap_seconds_total", COUNTER, "How long those times were, the open one included"
    )
    is_open = Family("barnabas_nats_gap_open", GAUGE, "1 while messages may be missed")
    for written, _, way in ways:
        gaps = way.stats.gaps
        open_ms = now_ms - gaps[-1].begin_ms if gaps and not gaps[-1].end_ms else 0
        seconds.add_labelled((way.stats.gap_ms + max(open_ms, 0)) / 1000, written)
        is_open.add_labelled(int(bool(gaps) and not gaps[-1].end_ms), written)
    yield from (seconds, is_open)
    state = Family("barnabas_nats_binding_state", GAUGE, "1 for the state that it is in")
    for _, labels, way in ways:
        word = way.state.partition(":")[0]
        for each_state in STATES:
            state.add(each_state == word, {**labels, "state": each_state})
    yield state
    limits = Family(
        "barnabas_nats_max_payload_exceeds_topic",
        GAUGE,
        "1 where the server takes messages that are too large for the topic",
    )
    for each in sorted(overviews, key=lambda each: each.topic):
        if each.binding is not None:
            limits.add(int(bool(each.warning)), {"topic": each.topic, "connection": each.binding.connection})
    yield limits
    yield from _acks(ways)


def _acks(ways: Iterable[tuple[str, dict[str, str], Way]]) -> Iterable[Family]:
    sent = Family("barnabas_nats_acks_total", COUNTER, "Acknowledgements sent")
    errors = Family(
        "barnabas_nats_ack_errors_total", COUNTER, "Errors sent to who asked for an acknowledgement"
    )
    unsent = Family(
        "barnabas_nats_acks_unsent_total", COUNTER, "Acknowledgements owed that could not be sent"
    )
    latency = Family(
        "barnabas_nats_ack_seconds_total",
        COUNTER,
        "From the receipt of messages to their acknowledgements, summed up: divide by barnabas_nats_acks_total",
    )
    newest = Family("barnabas_nats_ack_latency_seconds", GAUGE, "That time of the newest acknowledgement")
    for written, _, way in ways:
        acks = way.acks
        if acks is not None:
            sent.add_labelled(acks.sent, written)
            errors.add_labelled(acks.refused, written)
            unsent.add_labelled(acks.unsent + acks.withheld, written)
            latency.add_labelled(acks.latency_sum_s, written)
            newest.add_labelled(acks.latency_s, written)
    yield from (sent, errors, unsent, latency, newest)


def _connections(clients: Iterable[tuple[str, str, NatsClient]]) -> Iterable[Family]:
    def family(name: str, kind: str, help_text: str) -> Family:
        return Family(f"barnabas_nats_connection_{name}", kind, help_text)

    connected = family("connected", GAUGE, "1 while there is a connection to a server")
    paused = family("paused", GAUGE, "1 while nothing is read because too much waits for a log")
    waiting = family("output_bytes", GAUGE, "Bytes that wait to be written")
    counters = [
        (family(f"{attribute}_total", COUNTER, help_text), attribute)
        for attribute, help_text in (
            ("messages_in", "Messages read"),
            ("bytes_in", "Bytes read"),
            ("messages_out", "Messages written"),
            ("bytes_out", "Bytes written"),
            ("reconnects", "Connections made after the first one"),
            ("sink_errors", "Messages that could not be dealt with"),
        )
    ]
    for name, way, client in clients:
        labels = written_labels({"connection": name, "way": way})
        connected.add_labelled(client.is_connected, labels)
        paused.add_labelled(client.is_paused, labels)
        waiting.add_labelled(client.output_bytes, labels)
        stats = client.stats
        for counter, attribute in counters:
            counter.add_labelled(getattr(stats, attribute), labels)
    yield from (connected, paused, waiting)
    for counter, _ in counters:
        yield counter
