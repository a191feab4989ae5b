"""CPU time of the ingest path behind the parser: from (subject, reply, header block, payload) to finished batches.

`python -m compat_tests.bench.nats_encoding` prints microseconds per message, the best of several rounds, without parsing,
appending and acknowledging. Messages come in pieces of about 64 KiB, as they come from a socket.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from barnabas.nats.records.batch_builder import BatchBuilder
from barnabas.nats.records.encoder import Encoder
from barnabas.nats.records.keys import compile_key
from barnabas.nats.records.partitioners import compile_partitioner

MESSAGES = 100_000
SUBJECTS = 1000
PAYLOAD_BYTES = 256
PIECE_MESSAGES = 200
ROUNDS = 7
SIZE_MAX = 1_048_588
NOW_MS = 1_700_000_000_000

Message = tuple[bytes, bytes, bytes, bytes]


def _headers(pairs: Sequence[tuple[bytes, bytes]]) -> bytes:
    return b"NATS/1.0\r\n%b\r\n" % b"".join(b"%b: %b\r\n" % pair for pair in pairs)


def plain(index: int) -> Message:
    return _subject(index), b"", b"", bytes(PAYLOAD_BYTES)


def with_reply(index: int) -> Message:
    return _subject(index), b"_INBOX.Ks5yX2YkQHc4.%d" % index, b"", bytes(PAYLOAD_BYTES)


def with_headers(index: int) -> Message:
    pairs = [(b"Content-Type", b"application/json"), (b"Trace-Id", b"4bf92f3577b34da6-%d" % index)]
    return _subject(index), b"", _headers(pairs), bytes(PAYLOAD_BYTES)


def with_id(index: int) -> Message:
    return _subject(index), b"", _headers([(b"Nats-Msg-Id", b"order-%d" % index)]), bytes(PAYLOAD_BYTES)


def json_payload(index: int) -> Message:
    payload = b'{"customer":"c-%d","amount":12.5,"text":"' % (index % 20_000)
    return _subject(index), b"", b"", payload + b"x" * (PAYLOAD_BYTES - len(payload) - 2) + b'"}'


def json_with_headers(index: int) -> Message:
    subject, reply, _, payload = json_payload(index)
    return subject, reply, with_headers(index)[2], payload


def _subject(index: int) -> bytes:
    return b"orders.eu.%d" % (index % SUBJECTS)


Case = tuple[str, Callable[[int], Message], str, int, Sequence[int]]
CASES: list[Case] = [
    ("plain, key subject, 1 partition", plain, "subject", 1, range(1)),
    ("plain, key subject, 8 partitions", plain, "subject", 8, range(8)),
    ("plain, key token:3, 8 partitions", plain, "token:3", 8, range(8)),
    ("plain, 2 of 8 partitions led here", plain, "subject", 8, range(2)),
    ("reply, key subject, 8 partitions", with_reply, "subject", 8, range(8)),
    ("2 headers, key subject, 8 partitions", with_headers, "subject", 8, range(8)),
    ("2 headers, key header:Content-Type, 8 partitions", with_headers, "header:Content-Type", 8, range(8)),
    ("Nats-Msg-Id (special), key subject, 8 partitions", with_id, "subject", 8, range(8)),
    ("JSON key, 8 partitions", json_payload, "json:$.customer", 8, range(8)),
    ("JSON key, 2 headers, 8 partitions", json_with_headers, "json:$.customer", 8, range(8)),
]


def measure(messages: list[Message], key: str, partition_count: int, served: Sequence[int]) -> float:
    """Microseconds of CPU per message, the cost of the loop that calls the sink left out."""
    builders = {partition: BatchBuilder() for partition in served}
    encoder = Encoder(
        compile_key(key),
        compile_partitioner("murmur2", partition_count, key),
        partition_count,
        {partition: builder.tails.append for partition, builder in builders.items()},
        special=lambda partition, reply, header_block, found, tail: builders[partition].add(tail),
        refused=lambda *message: None,
        is_special=frozenset((b"Nats-Msg-Id", b"Kafka-Ack")).__contains__,
    )
    pieces = [messages[at : at + PIECE_MESSAGES] for at in range(0, len(messages), PIECE_MESSAGES)]
    best = float("inf")
    for _ in range(ROUNDS):
        take = encoder.take
        started = time.process_time()
        for piece in pieces:
            for subject, reply, header_block, payload in piece:
                take(subject, reply, header_block, payload)
            for builder in builders.values():
                builder.finish(NOW_MS, SIZE_MAX)
        spent = time.process_time() - started
        started = time.process_time()
        for piece in pieces:
            for subject, reply, header_block, payload in piece:  # noqa: B007
                pass
        best = min(best, spent - (time.process_time() - started))
    return best / len(messages) * 1e6


def main() -> None:
    for name, make, key, partition_count, served in CASES:
        messages = [make(index) for index in range(MESSAGES)]
        print(f"{measure(messages, key, partition_count, served):6.2f} us  {name}")


if __name__ == "__main__":
    main()
