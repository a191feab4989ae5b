"""Bindings read from topic configs, cycles between them, and what the controller decides."""

from __future__ import annotations

import contextlib
import itertools
import re
import time
from collections.abc import Mapping

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.controller.config.validators import ConfigError
from barnabas.controller.extension import ConfigTables
from barnabas.controller.metadata.image import BROKER_RESOURCE, TOPIC_RESOURCE, MetadataDelta, MetadataImage
from barnabas.controller.operations.configs import ConfigChange, ResourceChange, alter_configs
from barnabas.controller.operations.topics import NewTopic, create_topics
from barnabas.nats.binding.binding import Binding
from barnabas.nats.binding.decisions import bindings_of, check_cycles
from barnabas.nats.binding.keys import KeySpec
from barnabas.nats.binding.reader import read_binding
from barnabas.nats.binding.subjects import covers_together, matches
from barnabas.nats.configs import TOPIC_CONFIGS
from barnabas.nats.extension import NatsExtension
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.metadata_records import ConfigRecord, RegisterBrokerRecord

TABLES = ConfigTables([NatsExtension()])
ORDERS = {"nats.subjects": "orders.>,x.*"}


def read(**configs: str) -> Binding:
    binding = read_binding("t", {f"nats.{name.replace('_', '.')}": text for name, text in configs.items()})
    assert binding is not None
    return binding


def test_what_binds_a_topic() -> None:
    assert read_binding("t", {}) is None
    assert read_binding("t", {"retention.ms": "1", "no.such": "config"}) is None
    assert read_binding("t", {"nats.mode": "jetstream", "nats.paused": "true"}) is None
    whole = read(mode="jetstream", stream="S", exclude="a.b")
    assert (whole.patterns, whole.unwanted, whole.ingests) == ((">",), ("a.b",), True)
    assert read_binding("t", {"nats.subjects": " "}) is None
    assert read(subjects="a").ingests
    assert not read(subjects="a").publishes
    assert read(publish_subject="a").publishes
    assert not read(publish_subject="a").ingests
    both = read(mode="kv", bucket="b")
    assert (both.patterns, both.published_pattern) == (("$KV.b.>",), "$KV.b.>")
    into = read(mode="kv", bucket="b", direction="in")
    assert (into.patterns, into.published_pattern) == (("$KV.b.>",), None)
    out = read(mode="kv", bucket="b", direction="out")
    assert (out.patterns, out.published_pattern) == ((), "$KV.b.>")


def test_defaults_are_those_of_the_table() -> None:
    """A binding made of nothing but its subjects has what the topic configs' table says."""
    names = list(TOPIC_CONFIGS)
    spelled = {name: TOPIC_CONFIGS[name].default or "" for name in names}
    assert read_binding("t", {**spelled, "nats.subjects": "a"}) == Binding("t", subjects=("a",))
    assert read_binding("t", {"nats.subjects": "a"}) == Binding("t", subjects=("a",))


def test_a_binding_has_its_configs() -> None:
    binding = read(
        subjects=" orders.> , orders.eu.*,x.*,x.*",
        exclude="orders.test.>",
        mode="jetstream",
        connection="east",
        paused="TRUE",
        key="token:2",
        stream="ORDERS",
        start="seq:7",
        dead_letter_topic="lost",
        max_deliver="5",
    )
    assert binding.subjects == ("orders.>", "orders.eu.*", "x.*")
    assert binding.patterns == ("orders.>", "x.*")
    assert (binding.key, binding.paused, binding.start.sequence) == (KeySpec("token", (2,)), True, 7)


def test_wildcards_exclude_internal_subjects() -> None:
    for pattern in (">", "*.>", "*"):
        assert "_INBOX.>" in read(subjects=pattern).unwanted
        assert "$JS.>" in read(subjects=pattern, exclude="a").unwanted
    assert read(subjects="a.>", exclude="a.b").unwanted == ("a.b",)
    assert "$KV.>" in read(subjects=">").unwanted
    assert "$KV.>" not in read(subjects=">", mode="jetstream", stream="KV_b").unwanted


@pytest.mark.parametrize(
    ("configs", "reason"),
    [
        ({"subjects": "a..b"}, '"a..b" is no subject of NATS: a token between dots is empty'),
        ({"subjects": "a,b.>.c"}, '"b.>.c" is no subject of NATS: ">" may only be the last token'),
        ({"subjects": "a b"}, "no blanks"),
        ({"subjects": "a,,b"}, "must not be empty"),
        ({"subjects": "[a,b]"}, "without brackets"),
        ({"subjects": ",".join(f"s{number}" for number in range(501))}, "501 subjects, more than 500"),
        ({"subjects": "a", "exclude": "b."}, "nats.exclude"),
        ({"subjects": "$SYS.>"}, "internal to NATS"),
        ({"subjects": "a,_INBOX.>"}, "internal to NATS"),
        ({"subjects": "$JS.API.>", "mode": "jetstream"}, "internal to NATS"),
        ({"subjects": "$KV.b.>"}, "use nats.mode=kv with nats.bucket"),
        ({"mode": "stream"}, "String must be one of: core, jetstream, kv"),
        ({"subjects": "a", "stream": "S"}, "nats.stream has an effect only with nats.mode=jetstream (it is core)"),
        ({"subjects": "a", "durable": "D"}, "nats.durable has an effect only with nats.mode=jetstream"),
        ({"subjects": "a", "start": "new"}, "nats.start has an effect only with nats.mode=jetstream"),
        ({"mode": "jetstream", "subjects": "a", "stream": "a.b"}, "nats.stream"),
        ({"mode": "jetstream", "subjects": "a", "queue_group": "q"}, "nats.queue.group can't be used"),
        ({"mode": "jetstream", "subjects": "a", "topic_template": "{1}"}, "nats.topic.template can't be used"),
        ({"subjects": "a", "queue_group": "q", "topic_template": "{1}"}, "every broker has to see every message"),
        ({"mode": "kv"}, "needs a bucket: set nats.bucket=NAME"),
        ({"mode": "kv", "bucket": "a.b"}, "letters, digits"),
        ({"mode": "kv", "bucket": "b", "subjects": "a"}, "nats.subjects can't be used with nats.mode=kv"),
        ({"mode": "kv", "bucket": "b", "queue_group": "q"}, "nats.queue.group can't be used with nats.mode=kv"),
        ({"bucket": "b"}, "nats.bucket has an effect only with nats.mode=kv"),
        ({"subjects": "a", "direction": "in"}, "nats.direction has an effect only with nats.mode=kv"),
        ({"subjects": "a", "connection": "a.b"}, "letters, digits"),
        ({"subjects": "a", "paused": "no"}, "either true or false"),
        ({"subjects": "a", "acks": "all"}, "String must be one of: off, header, reply"),
        ({"subjects": "a", "dedup_window_ms": "-1"}, "at least 0"),
        ({"subjects": "a", "topic_max": "0"}, "at least 1"),
        ({"subjects": "a", "buffer_bytes": "1"}, "at least 65536"),
        ({"subjects": "a", "queue_group": "a b"}, "nats.queue.group"),
        ({"subjects": "a.*", "key": "token:3"}, 'nats.key asks for token 3, but subjects of "a.*"'),
        ({"subjects": "a.>,b", "partitioner": "token:2"}, 'nats.partitioner asks for token 2, but subjects of "b"'),
        ({"subjects": "a", "topic_template": "{2}"}, "nats.topic.template asks for token 2"),
        ({"subjects": "a", "dead_letter_topic": "a/b"}, "Topic name is invalid"),
        ({"subjects": "a", "dead_letter_topic": "t"}, "its own dead-letter topic"),
        ({"subjects": "a", "dead_letter_topic": "__consumer_offsets"}, "internal topics"),
        ({"subjects": "a.>", "publish_subject": "a.b"}, "come back for ever"),
        ({"subjects": "a.>", "publish_subject": "{key}"}, 'publishes to ">"'),
        ({"subjects": "t.*", "publish_subject": "{topic}.{partition}"}, 'publishes to "t.*"'),
        ({"subjects": ">", "exclude": "a.b", "publish_subject": "a.{key}"}, "come back for ever"),
        ({"mode": "jetstream", "stream": "S", "publish_subject": "a"}, "Name the stream's subjects in nats.subjects"),
    ],
)  # fmt: skip
def test_refused_bindings(configs: dict[str, str], reason: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(reason)):
        read(**configs)


@pytest.mark.parametrize(
    "configs",
    [
        {"subjects": ">"},
        {"subjects": "a.>", "key": "token:3"},
        {"subjects": "$KV.b.>", "mode": "jetstream", "stream": "KV_b"},
        {"subjects": "a.>", "publish_subject": "b.{key}"},
        {"subjects": "a.>", "exclude": "a.out.>", "publish_subject": "a.out.{key}"},
        {"subjects": "a.*", "publish_subject": "a.{partition}.x"},
        {"subjects": "a.>", "queue_group": "workers"},
        {"mode": "jetstream", "subjects": "a", "stream": "S", "durable": "D-1", "delivery": "at-least-once"},
    ],
)
def test_valid_bindings(configs: dict[str, str]) -> None:
    assert read(**configs).ingests


JETSTREAM = {"mode": "jetstream", "subjects": "a.>"}
BUCKET = {"mode": "kv", "bucket": "b"}


@pytest.mark.parametrize(
    ("configs", "reason"),
    [
        ({"exclude": "a"}, "nats.exclude has an effect only with nats.subjects or nats.stream: set that, too"),
        ({"exclude": "a", "publish_subject": "b"}, "or remove nats.exclude"),
        ({"subjects": "a.b,c", "exclude": "a.>,c"}, "nats.exclude=a.>,c leaves nothing of nats.subjects"),
        ({"subjects": "a.>", "exclude": "a.*,a.*.>"}, "exclude less, or set nats.paused=true"),
        ({"mode": "jetstream", "stream": "S", "exclude": ">"}, "leaves nothing of the stream"),
        ({"mode": "jetstream"}, "set nats.subjects, or nats.stream=NAME for all that it holds, or delete nats.mode"),
        ({"mode": "jetstream", "publish_subject": "b"}, "nats.mode=jetstream needs a stream"),
        ({**JETSTREAM, "durable": "D"}, "nats.durable has an effect only with nats.delivery=at-least-once"),
        ({**JETSTREAM, "max_deliver": "3"}, "nats.max.deliver has an effect only with nats.delivery=at-least-once"),
        ({**JETSTREAM, "acks": "reply"}, "nats.acks=reply has an effect only with nats.mode=core (it is jetstream)"),
        ({**BUCKET, "acks": "reply"}, "nats.acks=reply has an effect only with nats.mode=core (it is kv)"),
        ({**JETSTREAM, "dedup_window_ms": "5"}, "nats.dedup.window.ms has an effect only with nats.mode=core"),
        ({"subjects": "a", "delivery": "at-least-once"}, "nats.delivery=at-least-once has an effect only with nats.mode=jetstream"),
        ({**BUCKET, "delivery": "at-least-once"}, "(it is kv): set that, too, or remove nats.delivery=at-least-once"),
        ({"subjects": "a", "topic_max": "5"}, "nats.topic.max has an effect only with nats.topic.template"),
        ({"publish_jetstream": "true"}, "nats.publish.jetstream has an effect only with nats.publish.subject"),
        ({"subjects": "a", "publish_jetstream": "true"}, "nats.publish.jetstream has an effect only with"),
        ({**BUCKET, "publish_jetstream": "true"}, "nats.publish.jetstream has an effect only with"),
        ({"subjects": "a", "publish_group": "g"}, "nats.publish.group has an effect only with nats.publish.subject"),
        ({**BUCKET, "direction": "in", "publish_group": "g"}, "only with nats.direction=both or out"),
    ],
)  # fmt: skip
def test_configs_without_effect_are_refused_when_they_are_set(configs: dict[str, str], reason: str) -> None:
    named = {f"nats.{name.replace('_', '.')}": text for name, text in configs.items()}
    named["cleanup.policy"] = "compact"
    world = World()
    [message] = world.create(("t", named))
    assert message is not None
    assert reason in message
    # Stored ones are no reason not to do what can be done.
    read_binding("t", named)


def test_configs_that_need_each_other_may_have_any_order_in_a_request() -> None:
    world = World()
    world.create(("t", {}))
    durable = {"nats.durable": "D", "nats.delivery": "at-least-once", "nats.exclude": "a.b"}
    assert world.alter(("t", {**durable, "nats.mode": "jetstream", "nats.subjects": "a.>"}))[0] == [None]
    [message], _ = world.alter(("t", {"nats.delivery": None}))
    assert message is not None
    assert "nats.durable" in message
    assert world.alter(("t", dict.fromkeys([*durable, "nats.mode", "nats.subjects"])))[0] == [None]


def test_invalid_stored_configs_can_be_paused_and_changed() -> None:
    world = World()
    back = {"nats.subjects": "y.>", "nats.publish.subject": "x.{key}"}
    world.create(("useless", {}), ("circle", {}), ("other", back))
    for topic, name, text in (
        ("useless", "nats.subjects", "a.>"),
        ("useless", "nats.topic.max", "5"),
        ("circle", "nats.subjects", "x.>"),
        ("circle", "nats.publish.subject", "y.{key}"),
    ):
        record = ConfigRecord(resource_type=TOPIC_RESOURCE, resource_name=topic, name=name, value=text)
        world.image.replay(record, MetadataDelta())
    assert (
        world.alter(*((topic, {"nats.paused": "true"}) for topic in ("useless", "circle")))[0] == [None] * 2
    )
    assert world.alter(("useless", {"nats.key": "none", "nats.paused": None}))[0] == [None]
    # What is new is judged, beside what was there.
    [message], _ = world.alter(("useless", {"nats.publish.group": "g"}))
    assert message is not None
    assert "nats.publish.group has an effect only with" in message
    [message], _ = world.alter(("circle", {"nats.paused": "true", "nats.key": "none"}))
    assert message is not None
    assert "cycle" in message


WHOLE_STREAM = {"nats.mode": "jetstream", "nats.stream": "S"}


@pytest.mark.parametrize(
    "change", [{"nats.subjects": None}, {"nats.subjects": ""}, {"nats.subjects": None, "nats.stream": "S2"}]
)
def test_subjects_that_are_deleted_do_not_widen_a_binding(change: dict[str, str | None]) -> None:
    world = World()
    world.create(("t", {**WHOLE_STREAM, "nats.subjects": "a.>"}))
    [message], records = world.alter(("t", change))
    assert message is not None
    assert "To unbind it delete nats.stream and nats.mode, too" in message
    assert "set nats.subjects to >" in message
    assert records == 0
    everything = dict.fromkeys([*WHOLE_STREAM, *change])
    assert world.alter(("t", everything), validate_only=True)[0] == [None]
    assert world.alter(("t", {"nats.subjects": ">"}))[0] == [None]


def test_configs_that_are_replaced_do_not_widen_a_binding() -> None:
    world = World()
    world.create(("t", {**WHOLE_STREAM, "nats.subjects": "a.>"}))
    kept = [ConfigChange(name, 0, text) for name, text in WHOLE_STREAM.items()]
    change = ResourceChange(TOPIC_RESOURCE, "t", kept, replace=True)
    [result] = alter_configs(world.image, [change], world.node, False).response
    assert result.error == ErrorCode.INVALID_CONFIG


def test_a_stream_without_subjects_is_all_of_it_from_the_beginning() -> None:
    world = World()
    assert world.create(("t", WHOLE_STREAM), ("later", {}), ("core", {"nats.subjects": "a"})) == [None] * 3
    assert world.alter(("later", WHOLE_STREAM))[0] == [None]
    assert world.alter(("core", {**WHOLE_STREAM, "nats.subjects": None}))[0] == [None]  # it had no stream
    assert world.alter(("t", {"nats.subjects": "a.>"}))[0] == [None]
    assert all(bindings_of(world.image)[topic].takes_whole_stream for topic in ("later", "core"))


PATTERNS = st.lists(st.sampled_from("ab*"), min_size=1, max_size=3).map(".".join) | st.lists(
    st.sampled_from("ab*"), max_size=2
).map(lambda tokens: ".".join([*tokens, ">"]))


@given(st.lists(PATTERNS, max_size=5), PATTERNS)
def test_patterns_that_cover_another_together(wide: list[str], narrow: str) -> None:
    subjects = [
        ".".join(tokens).encode()
        for length in range(1, 5)
        for tokens in itertools.product("abc", repeat=length)
    ]
    is_covered = all(
        any(matches(each, subject) for each in wide) for subject in subjects if matches(narrow, subject)
    )
    found = covers_together(wide, narrow)
    assert found <= is_covered
    if not set("ab") & set("".join(wide)):  # else it takes more than one look at each length
        assert found == is_covered


def test_a_topic_whose_name_makes_no_subject_can_not_publish_by_name() -> None:
    with pytest.raises(ConfigError, match="empty token"):
        read_binding("a..b", {"nats.publish.subject": "{topic}"})


CONFIGS = st.dictionaries(
    st.sampled_from(list(TOPIC_CONFIGS)),
    st.sampled_from(["a.>", "$KV.b.k", "core", "jetstream", "kv", "true", "7", "in", "off", "token:2", "{1}", "{key}.b", "t"])
    | st.text("a{}.*>:$,1[]", max_size=6)
    | st.text(max_size=4),
    max_size=6,
)  # fmt: skip


@given(CONFIGS)
def test_no_configs_raise_anything_else(configs: dict[str, str]) -> None:
    with contextlib.suppress(ConfigError):
        binding = read_binding("t", configs)
        assert binding is None or binding == read_binding("t", configs)
        if binding is not None:
            check_cycles("t", binding, {})


@pytest.mark.parametrize("subject", ["device-{}.state", "{}.*.x", "*.{}.>"])
def test_many_subjects_are_read_in_little_time(subject: str) -> None:
    subjects = ",".join(subject.format(number) for number in range(500))
    started = time.process_time()
    assert len(read(subjects=subjects, publish_subject="out.{key}.x", exclude="out.>").patterns) == 500
    assert time.process_time() - started < 2.0


# -- cycles


def _bindings(text: str) -> dict[str, Binding]:
    """Topics as `name: subjects -> template [connection]`, one a line."""
    found: dict[str, Binding] = {}
    for line in text.strip().splitlines():
        name, subjects, template, connection = re.fullmatch(
            r"\s*(\S+): (\S*) ?-> ?(\S*) ?(\S*)", line
        ).groups()  # type: ignore[union-attr]
        configs = {"nats.subjects": subjects, "nats.publish.subject": template, "nats.connection": connection}
        binding = read_binding(name, configs)
        assert binding is not None
        found[name] = binding
    return found


def _cycle(text: str) -> str | None:
    bindings = _bindings(text)
    topic = next(iter(bindings))
    try:
        check_cycles(topic, bindings.pop(topic), bindings)
    except ConfigError as error:
        return str(error)
    return None


def test_cycles() -> None:
    assert _cycle("a: x.> -> y.{key}\nb: y.* -> z.{key}\nc: z.> -> w") is None
    two = _cycle("a: x.> -> y.{key}\nb: y.* -> x.{key}")
    assert two is not None
    assert 'topic a publishes to "y.>"; topic b publishes to "x.>", which topic a gets again' in two
    three = _cycle("c: z.> -> x.1\na: x.> -> y.{key}\nb: y.* -> z.{partition}")
    assert three is not None
    assert "topic c" in three.split(";")[0]
    assert "topic b" in three
    # Another server is another world; so is a cycle of others.
    assert _cycle("a: x.> -> y.{key} east\nb: y.* -> x.{key}") is None
    assert _cycle("c: k -> x.1\na: x.> -> y.{key}\nb: y.* -> x.{partition}") is None


def test_cycles_through_buckets_and_templates() -> None:
    bucket = {"nats.mode": "kv", "nats.bucket": "b"}
    first, second = read_binding("a", bucket), read_binding("b", bucket)
    assert first is not None
    assert second is not None
    check_cycles("a", first, {})
    with pytest.raises(ConfigError, match=r"topic a publishes.*Set nats\.direction=in on all but one"):
        check_cycles("a", first, {"b": second})
    spread = read_binding("in", {"nats.subjects": "x.>", "nats.topic.template": "n.{2}"})
    assert spread is not None
    for name, closes in (("n.eu", True), ("m.eu", False)):
        back = read_binding(name, {"nats.publish.subject": "x.{key}"})
        assert back is not None
        if closes:
            with pytest.raises(ConfigError, match=r"closes a cycle"):
                check_cycles(name, back, {"in": spread})
            with pytest.raises(
                ConfigError, match=r"topic n\.eu publishes to \"x\.>\", which topic in gets again"
            ):
                check_cycles("in", spread, {name: back})
        else:
            check_cycles(name, back, {"in": spread})
            check_cycles("in", spread, {name: back})


def test_cycles_through_dead_letters() -> None:
    """What is refused would be published, refused again, and so on."""
    taking = read_binding("in", {"nats.subjects": "x.>", "nats.dead.letter.topic": "dead"})
    assert taking is not None
    for subject, closes in (("x.{key}", True), ("y.{key}", False)):
        dead = read_binding("dead", {"nats.publish.subject": subject})
        assert dead is not None
        for name, binding, others in (("in", taking, {"dead": dead}), ("dead", dead, {"in": taking})):
            if closes:
                with pytest.raises(ConfigError, match="topic dead publishes"):
                    check_cycles(name, binding, others)
            else:
                check_cycles(name, binding, others)


@given(st.lists(st.tuples(st.sampled_from("xyz"), st.sampled_from("xyz")), min_size=1, max_size=5))
def test_cycles_are_those_of_a_graph(edges: list[tuple[str, str]]) -> None:
    """Topics that move one subject to another: the first one's is on a cycle when its end leads back to its start."""
    edges = [(start, end) for start, end in edges if start != end]
    if not edges:
        return
    text = "\n".join(f"t{number}: {start} -> {end}" for number, (start, end) in enumerate(edges))
    reached = {edges[0][1]}
    for _ in edges:
        reached |= {end for start, end in edges[1:] if start in reached}
    assert (_cycle(text) is not None) == (edges[0][0] in reached)


# -- decisions


class Node:
    """A broker that was started with some properties."""

    node_id = 1
    num_partitions = 1
    default_replication_factor = 1
    tables = TABLES

    def __init__(self, properties: Mapping[str, str]) -> None:
        self.properties = properties

    def value(self, name: str) -> str | None:
        return self.properties.get(name)

    def topic_defaults(self) -> dict[str, str]:
        return {name: key.default for name, key in TABLES.topic.items() if key.default is not None}


class World:
    """An image that decisions change."""

    def __init__(self, properties: Mapping[str, str] | None = None, *, brokers: int = 1) -> None:
        self.image = MetadataImage()
        self.node = Node({"nats.servers": "nats://127.0.0.1:4222"} if properties is None else properties)
        self._ids = itertools.count(1)
        for broker in range(1, brokers + 1):
            self._replay([RegisterBrokerRecord(broker_id=broker, fenced=False)])

    def _replay(self, records: list[msgspec.Struct]) -> None:
        for record in records:
            self.image.replay(record, MetadataDelta())

    def create(self, *topics: tuple[str, Mapping[str, str]], validate_only: bool = False) -> list[str | None]:
        wanted = [NewTopic(name, configs=tuple(configs.items())) for name, configs in topics]
        decision = create_topics(
            self.image,
            wanted,
            self.node,
            lambda _: next(self._ids).to_bytes(16, "big"),
            validate_only=validate_only,
        )
        self._replay(list(decision.records))
        for result in decision.response:
            assert (result.error == ErrorCode.INVALID_CONFIG) == (result.message is not None)
        return [result.message for result in decision.response]

    def alter(
        self, *topics: tuple[str, Mapping[str, str | None]], validate_only: bool = False
    ) -> tuple[list[str | None], int]:
        """The messages, and how many records there were."""
        wanted = [
            ResourceChange(
                TOPIC_RESOURCE,
                name,
                [ConfigChange(key, 1 if text is None else 0, text) for key, text in configs.items()],
            )
            for name, configs in topics
        ]
        decision = alter_configs(self.image, wanted, self.node, validate_only)
        self._replay(list(decision.records))
        for result in decision.response:
            assert (result.error == ErrorCode.INVALID_CONFIG) == (result.message is not None)
        return [result.message for result in decision.response], len(decision.records)


def test_a_topic_is_bound_and_unbound() -> None:
    world = World()
    assert world.create(("orders", {}), ("bound", {"nats.subjects": "b.>"})) == [None, None]
    assert world.alter(("orders", ORDERS), validate_only=True) == ([None], 0)
    assert set(bindings_of(world.image)) == {"bound"}
    assert world.alter(("orders", ORDERS)) == ([None], 1)
    assert world.alter(("orders", ORDERS)) == ([None], 0)  # the same again
    assert bindings_of(world.image)["orders"].subjects == ("orders.>", "x.*")
    assert world.alter(("orders", {"nats.subjects": None})) == ([None], 1)
    assert set(bindings_of(world.image)) == {"bound"}


def test_a_refused_binding_changes_nothing() -> None:
    world = World()
    [message] = world.create(("orders", {"nats.subjects": "a..b"}))
    assert message is not None
    assert "orders" not in world.image.topics
    world.create(("orders", ORDERS))
    [message], records = world.alter(("orders", {"nats.key": "token:0", "retention.ms": "5"}))
    assert message is not None
    assert message.startswith("Invalid value token:0 for configuration nats.key: ")
    assert records == 0
    [message], _ = world.alter(("orders", {"nats.subjcts": "a"}), validate_only=True)
    assert message == "Unknown topic config name: nats.subjcts"


def test_lists_are_edited() -> None:
    world = World()
    world.create(("orders", ORDERS))
    change = ResourceChange(TOPIC_RESOURCE, "orders", [ConfigChange("nats.subjects", 2, "y")])
    [record] = alter_configs(world.image, [change], world.node, False).records
    assert isinstance(record, ConfigRecord)
    assert record.value == "orders.>,x.*,y"
    change = ResourceChange(TOPIC_RESOURCE, "orders", [ConfigChange("nats.subjects", 2, "y.")])
    assert (
        alter_configs(world.image, [change], world.node, False).response[0].error == ErrorCode.INVALID_CONFIG
    )


def test_cycles_are_refused_also_within_one_request() -> None:
    world = World()
    there = {"nats.subjects": "x.>", "nats.publish.subject": "y.{key}"}
    back = {"nats.subjects": "y.>", "nats.publish.subject": "x.{key}"}
    first, second = world.create(("there", there), ("back", back))
    assert first is None
    assert second is not None
    assert "cycle" in second
    world.create(("back", {}), ("far", {}))
    # The cycle is gone in the same request that would close it.
    assert world.alter(("there", {"nats.publish.subject": None}), ("back", back))[0] == [None, None]
    messages, _ = world.alter(("far", back), ("there", there))
    assert messages[0] is None
    assert messages[1] is not None


def test_a_topic_that_was_not_created_closes_no_cycle() -> None:
    world = World()
    there = {"nats.subjects": "x.>", "nats.publish.subject": "y.{key}"}
    back = {"nats.subjects": "y.>", "nats.publish.subject": "x.{key}"}
    wanted = [
        NewTopic("there", replication_factor=3, configs=tuple(there.items())),
        NewTopic("back", configs=tuple(back.items())),
    ]
    results = create_topics(world.image, wanted, world.node, lambda _: bytes(16)).response
    assert [result.error for result in results] == [ErrorCode.INVALID_REPLICATION_FACTOR, ErrorCode.NONE]


def test_without_a_server_nothing_is_bound() -> None:
    world = World({"process.roles": "broker,controller"})
    [message] = world.create(("orders", ORDERS))
    assert message is not None
    assert "--set nats.servers=nats://HOST:4222" in message
    # What is not bound, needs none; nor does a node that is no broker know.
    assert world.create(("orders", {"nats.paused": "true"})) == [None]
    assert World({"process.roles": "controller"}).create(("orders", ORDERS)) == [None]


def test_an_unknown_connection() -> None:
    east = {**ORDERS, "nats.connection": "east"}
    [message] = World().create(("orders", east))
    assert message is not None
    assert "--set nats.connection.east.servers=nats://HOST:4222" in message
    assert World(brokers=2).create(("orders", east)) == [None]  # the other broker may know it
    assert World({"nats.connection.east.servers": "h"}).create(("orders", east)) == [None]
    assert World({"nats.connection.east.servers": "h"}).create(("orders", ORDERS)) != [None]


def test_a_stored_binding_is_not_checked_again() -> None:
    world = World()
    world.create(("orders", ORDERS))
    world.node.properties = {}
    assert world.alter(("orders", {"retention.ms": "5"})) == ([None], 1)
    assert world.alter(("orders", ORDERS)) == ([None], 0)
    [message], _ = world.alter(("orders", {"nats.key": "none"}))
    assert message is not None
    # Nothing is connected to for a binding that is paused or gone.
    assert world.alter(("orders", {"nats.paused": "true"})) == ([None], 1)
    assert world.alter(("orders", {"nats.subjects": None})) == ([None], 1)


def test_a_bucket_needs_a_compacted_topic() -> None:
    world = World()
    bucket = {"nats.mode": "kv", "nats.bucket": "b"}
    [message] = world.create(("config", bucket))
    assert message is not None
    assert "cleanup.policy=compact" in message
    assert world.create(("config", {**bucket, "cleanup.policy": "compact"})) == [None]
    [message], _ = world.alter(("config", {"cleanup.policy": None}))
    assert message is not None
    assert world.alter(("config", {"cleanup.policy": "compact,delete"})) == ([None], 1)


def test_internal_topics_are_not_bound() -> None:
    world = World()
    world.create(("__consumer_offsets", {}))
    [message], _ = world.alter(("__consumer_offsets", ORDERS))
    assert message is not None
    assert "internal to Kafka" in message


def test_invalid_stored_configs_are_skipped() -> None:
    world = World()
    world.create(("orders", ORDERS), ("later", {}))
    world.image.replay(
        ConfigRecord(resource_type=TOPIC_RESOURCE, resource_name="later", name="nats.key", value="quantum"),
        MetadataDelta(),
    )
    assert set(bindings_of(world.image)) == {"orders"}
    with pytest.raises(ConfigError, match="quantum"):
        read_binding("later", world.image.topic_configs("later"))
    assert world.alter(("later", {"retention.ms": "5"})) == ([None], 1)


def test_connections_are_not_changed_while_running() -> None:
    world = World()
    for name in ("nats.servers", "nats.connection.east.password"):
        change = ResourceChange(BROKER_RESOURCE, "1", [ConfigChange(name, 0, "x")])
        [result] = alter_configs(world.image, [change], world.node, False).response
        assert result.error == ErrorCode.INVALID_REQUEST
        assert result.message == f"Cannot update these configs dynamically: [{name}]"
