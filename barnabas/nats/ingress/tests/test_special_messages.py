"""Special messages through a whole ingest and a real log: each gets the answer it would get alone, however they are batched.

test_expectations.py compares the single answers with JetStream's. Here messages arrive in pieces, among plain ones, in a log
that other producers write to as well, with restarts.
"""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from barnabas.broker.tests.coordinator_world import World
from barnabas.nats.binding.reader import read_binding
from barnabas.nats.ingress.roles import Roles
from barnabas.nats.tests.ingests import make_ingest
from barnabas.storage.tests.crash_model import read_all
from barnabas.wire.records import Record, build_batch, iterate_records

WINDOW_MS = 1_000
TOPIC = "__consumer_offsets"  # of the world's; any would do


class Model:
    """One message after the other."""

    def __init__(self) -> None:
        self.records: list[bytes] = []
        self.ids: list[tuple[bytes, int, int]] = []  # id, offset, time
        self.last_id = b""

    def take(self, value: bytes, headers: dict[bytes, bytes], now_ms: int) -> Any:
        identity = headers.get(b"Nats-Msg-Id", b"")
        for known, offset, time_ms in self.ids:
            if identity and known == identity and time_ms + WINDOW_MS > now_ms:
                return {"seq": offset + 1, "duplicate": True}
        expected = headers.get(b"Nats-Expected-Last-Sequence")
        if expected is not None and int(expected) != len(self.records):
            return {"seq": 0, "error": 10071}
        expected = headers.get(b"Nats-Expected-Last-Msg-Id")
        if expected is not None and expected != self.last_id:
            return {"seq": 0, "error": 10070}
        if b"Nats-TTL" in headers:
            return {"seq": 0, "error": 10166}
        self.ids.append((identity, len(self.records), now_ms))
        self.write(value, identity)
        return {"seq": len(self.records)}

    def write(self, value: bytes, identity: bytes = b"") -> None:
        self.records.append(value)
        self.last_id = identity


class Bound:
    """An ingest over a real log."""

    def __init__(self) -> None:
        self.answers: dict[bytes, Any] = {}
        self.world = World([1])
        self.now_ms = self.world.runtime.time_ms()
        self.start()

    def start(self) -> None:
        binding = read_binding(
            TOPIC,
            {"nats.subjects": "a.>", "nats.acks": "reply", "nats.dedup.window.ms": str(WINDOW_MS)},
        )
        assert binding is not None
        self.ingest = make_ingest(self.world.runtime, binding, self.answered, cluster_id="cluster")
        self.encoder = self.ingest.encoder()
        self.ingest.serve(Roles({0: self.world.partition()}, {}))

    def answered(self, data: bytes, count: int) -> None:
        lines = data.split(b"\r\n")
        assert len(lines) == 2 * count + 1
        for head, payload in zip(lines[::2], lines[1::2], strict=False):
            reply = head.split(b" ")[1]
            assert reply not in self.answers
            answer = json.loads(payload)
            assert (answer.pop("stream"), answer.pop("partition")) == (TOPIC, 0)
            if "error" in answer:
                answer["error"] = answer["error"]["err_code"]
            self.answers[reply] = answer

    def close(self) -> None:
        self.ingest.close()
        self.world.runtime.run_until_idle()

    def restart(self) -> None:
        self.close()
        self.ingest.end()
        self.start()

    @property
    def records(self) -> list[bytes]:
        log = self.world.partition().log
        return [
            record.value or b""
            for batch in read_all(log, 1 << 20)
            for record in iterate_records(batch, 1 << 20)
        ]


_ID, _SEQUENCE, _LAST_ID = b"Nats-Msg-Id", b"Nats-Expected-Last-Sequence", b"Nats-Expected-Last-Msg-Id"
_HEADERS: list[dict[bytes, bytes]] = [
    {},
    {b"Other": b"x", b"Kafka-Ack": b"leader"},
    {_ID: b"a"},
    {_ID: b"b"},
    {_ID: b"a", b"Kafka-Ack": b"all"},
    {_SEQUENCE: b"1"},
    {_SEQUENCE: b"3", _ID: b"b"},
    {_LAST_ID: b"a"},
    {_LAST_ID: b"b", _ID: b"a", b"Kafka-Ack": b"leader"},
]
_STEPS = st.lists(
    st.one_of(
        *[st.tuples(st.just("message"), st.sampled_from(_HEADERS))] * 4,
        *(st.tuples(st.just(step), st.none()) for step in ("plain", "ttl", "close", "producer", "restart")),
        st.tuples(st.just("wait"), st.sampled_from([300, 999, 1000])),
    ),
    min_size=15,
    max_size=40,
)


@given(_STEPS)
def test_special_messages_are_answered_as_if_alone(steps: list[tuple[str, Any]]) -> None:
    bound, model = Bound(), Model()
    expected: dict[bytes, Any] = {}
    runtime = bound.world.runtime
    for number, (step, detail) in enumerate(steps):
        value, reply = b"%d" % number, b"_INBOX.%d" % number
        if step == "message":
            block = b"NATS/1.0\r\n" + b"".join(b"%b: %b\r\n" % pair for pair in detail.items()) + b"\r\n"
            bound.encoder.take(b"a.b", reply, block, value)
            expected[reply] = model.take(value, detail, runtime.time_ms())
        elif step == "ttl":
            bound.encoder.take(b"a.b", reply, b"NATS/1.0\r\nNats-TTL: 5\r\n\r\n", value)
            expected[reply] = {"seq": 0, "error": 10166}
        elif step == "plain":
            bound.encoder.take(b"a.b", b"", b"", value)
            model.take(value, {}, runtime.time_ms())
        elif step == "producer":
            bound.close()  # as between two turns of the loop
            bound.world.partition().append(build_batch([Record(0, runtime.time_ms(), None, value)]))
            model.write(value)
        elif step == "wait":
            bound.close()
            runtime.advance(detail / 1000)
        elif step == "restart":
            bound.restart()
        else:
            bound.close()
    bound.close()
    assert bound.answers == expected
    assert bound.records == model.records
