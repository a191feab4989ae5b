"""Decisions of AlterConfigs and IncrementalAlterConfigs, replayed into the image. Texts are Kafka 4.3.1's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.controller.config.broker_configs import BROKER_CONFIGS
from barnabas.controller.config.topic_configs import TOPIC_CONFIGS, topic_default
from barnabas.controller.extension import ConfigTables
from barnabas.controller.metadata.image import (
    BROKER_RESOURCE,
    GROUP_RESOURCE,
    TOPIC_RESOURCE,
    MetadataDelta,
    MetadataImage,
)
from barnabas.controller.operations.configs import (
    APPEND,
    DELETE,
    SET,
    SUBTRACT,
    ConfigChange,
    ResourceChange,
    ResourceResult,
    alter_configs,
)
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.metadata_records import FeatureLevelRecord, PartitionRecord, TopicRecord

Changes = list[tuple[str, int, str | None]]


class DefaultConfig:
    """A node without properties."""

    tables = ConfigTables()
    node_id = 1

    def value(self, name: str) -> str | None:
        return BROKER_CONFIGS[name].default

    def topic_defaults(self) -> dict[str, str]:
        found = {name: topic_default(name, self.value) for name in TOPIC_CONFIGS}
        return {name: text for name, text in found.items() if text is not None}


def new_image() -> MetadataImage:
    image = MetadataImage()
    image.replay(TopicRecord(name="t", topic_id=bytes(15) + b"\1"), MetadataDelta())
    return image


def change(
    image: MetadataImage,
    changes: Changes,
    kind: int = TOPIC_RESOURCE,
    name: str = "t",
    replace: bool = False,
    validate_only: bool = False,
) -> ResourceResult:
    wanted = ResourceChange(kind, name, [ConfigChange(*each) for each in changes], replace)
    decision = alter_configs(image, [wanted], DefaultConfig(), validate_only)
    delta = MetadataDelta()
    for record in decision.records:
        image.replay(record, delta)
    (result,) = decision.response
    return result


REFUSED = [
    ([("retention.ms", SET, None)], ErrorCode.INVALID_REQUEST, "Null value not supported for : retention.ms"),
    (
        [("retention.ms", SET, "1"), ("retention.ms", DELETE, None)],
        ErrorCode.INVALID_REQUEST,
        "Error due to duplicate config keys",
    ),
    ([("nope", SET, "1")], ErrorCode.INVALID_CONFIG, "Unknown topic config name: nope"),
    (
        [("retention.ms", APPEND, "1")],
        ErrorCode.INVALID_CONFIG,
        "Can't APPEND to key retention.ms because its type is not LIST.",
    ),
    (
        [("retention.ms", SUBTRACT, "1")],
        ErrorCode.INVALID_CONFIG,
        "Can't SUBTRACT to key retention.ms because its type is not LIST.",
    ),
    (
        [("cleanup.policy", APPEND, "zzz")],
        ErrorCode.INVALID_CONFIG,
        "Invalid value zzz for configuration cleanup.policy: String must be one of: compact, delete",
    ),
    ([("retention.ms", 7, "1")], ErrorCode.UNKNOWN_SERVER_ERROR, None),
]


@pytest.mark.parametrize(("changes", "error", "message"), REFUSED)
def test_a_refused_change_has_a_reason_and_no_effect(
    changes: Changes, error: ErrorCode, message: str | None
) -> None:
    image = new_image()
    assert change(image, changes) == ResourceResult(TOPIC_RESOURCE, "t", error, message)
    assert image.configs == {}


@pytest.mark.parametrize(
    ("kind", "name", "error", "message"),
    [
        (TOPIC_RESOURCE, "zork", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The topic 'zork' does not exist."),
        (TOPIC_RESOURCE, "", ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed."),
        (BROKER_RESOURCE, "2", ErrorCode.INVALID_REQUEST, "Unexpected broker id, expected 1, but received 2"),
        (BROKER_RESOURCE, "x", ErrorCode.INVALID_REQUEST, "Node id must be an integer, but it is: x"),
        (GROUP_RESOURCE, "", ErrorCode.INVALID_REQUEST, "Default group resources are not allowed."),
        (99, "x", ErrorCode.INVALID_REQUEST, "Unknown resource type 99"),
    ],
)
def test_unknown_resources(kind: int, name: str, error: ErrorCode, message: str) -> None:
    result = change(new_image(), [("retention.ms", SET, "5")], kind, name)
    assert result == ResourceResult(kind, name, error, message)


def test_lists_are_appended_to_from_the_default_and_subtracted_from() -> None:
    image = new_image()
    seen = []
    for each in [(APPEND, "compact"), (APPEND, "compact,delete"), (SUBTRACT, "delete"), (SUBTRACT, "zzz")]:
        assert change(image, [("cleanup.policy", *each)]).error == ErrorCode.NONE
        seen.append(image.topic_configs("t")["cleanup.policy"])
    assert seen == ["delete,compact", "delete,compact", "compact", "compact"]


class Part(str):
    """Part of a list, which counts how often it is compared."""

    __slots__ = ()
    compared = 0

    def __eq__(self, other: object) -> bool:
        Part.compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


class PartedText(str):
    __slots__ = ()

    def split(self, *_: object) -> list[str]:
        return [Part(part) for part in str.split(self, ",")]


@pytest.mark.parametrize("operation", [APPEND, SUBTRACT])
def test_editing_a_long_list_takes_linear_time(operation: int) -> None:
    Part.compared = 0
    many = PartedText(",".join(str(number) for number in range(5000)))
    change(new_image(), [("cleanup.policy", operation, many)])
    assert Part.compared < 20_000


def test_replacing_removes_configs_that_are_not_named() -> None:
    image = new_image()
    change(image, [("retention.ms", SET, "5"), ("segment.ms", SET, "6")])
    assert change(image, [("segment.ms", SET, "7")], replace=True).error == ErrorCode.NONE
    assert image.topic_configs("t") == {"segment.ms": "7"}
    change(image, [], replace=True)
    assert image.topic_configs("t") == {}


def test_validating_only_decides_and_records_nothing() -> None:
    image = new_image()
    assert change(image, [("retention.ms", SET, "5")], validate_only=True).error == ErrorCode.NONE
    assert change(image, [("nope", SET, "5")], validate_only=True).error == ErrorCode.INVALID_CONFIG
    assert image.configs == {}


def test_an_unchanged_topic_gives_no_record_and_an_unchanged_broker_does() -> None:
    image = new_image()
    for kind, name, records in ((TOPIC_RESOURCE, "t", 0), (BROKER_RESOURCE, "1", 1)):
        setting = ConfigChange("unclean.leader.election.enable", SET, "true")
        wanted = [ResourceChange(kind, name, [setting])]
        for record in alter_configs(image, wanted, DefaultConfig(), False).records:
            image.replay(record, MetadataDelta())
        assert len(alter_configs(image, wanted, DefaultConfig(), False).records) == records


def test_a_resource_named_twice_fails_twice_and_others_succeed() -> None:
    twice = ResourceChange(TOPIC_RESOURCE, "t", [ConfigChange("retention.ms", SET, "5")])
    other = ResourceChange(GROUP_RESOURCE, "g", [ConfigChange("consumer.session.timeout.ms", SET, "50000")])
    decision = alter_configs(new_image(), [twice, other, twice], DefaultConfig(), False)
    assert [result.error for result in decision.response] == [
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NONE,
        ErrorCode.INVALID_REQUEST,
    ]
    assert decision.response[0].message == "Each resource must appear at most once."
    assert len(decision.records) == 1


@pytest.mark.parametrize(
    ("broker", "name", "value", "message"),
    [
        ("", "node.id", "5", "Cannot update these configs dynamically: [node.id]"),
        (
            "1",
            "message.max.bytes",
            "x",
            "Invalid value x for configuration message.max.bytes: Not a number of type INT",
        ),
        (
            "",
            "sasl.jaas.config",
            "x",
            "Cannot update these configs at default cluster level, broker id must be specified: [sasl.jaas.config]",
        ),
        (
            "",
            "listener.name.ssl.ssl.keystore.location",
            "/x",
            "Cannot update these configs at default cluster level, broker id must be specified: "
            "[listener.name.ssl.ssl.keystore.location]",
        ),
        (
            "1",
            "ssl.keystore.password",
            "s",
            "These security configs can be dynamically updated only per-listener using the listener prefix: "
            "[ssl.keystore.password]",
        ),
        (
            "1",
            "num.network.threads",
            "100",
            "Invalid value org.apache.kafka.common.config.ConfigException: Dynamic thread count update validation "
            "failed for num.network.threads=100, value should not be greater than double the current value 3 "
            "for configuration Invalid dynamic configuration",
        ),
    ],
)
def test_invalid_changes_of_running_brokers_are_refused(
    broker: str, name: str, value: str, message: str
) -> None:
    result = change(new_image(), [(name, SET, value)], BROKER_RESOURCE, broker)
    assert (result.error, result.message) == (ErrorCode.INVALID_REQUEST, message)


@pytest.mark.parametrize(
    ("name", "is_refused"),
    [
        ("listener.name.sasl.plain.sasl.jaas.config", True),
        ("listener.name.sasl.unknown", True),
        ("listener.name.sasl.plain.max.connections", True),
        ("listener.name.sasl.", True),
        ("listener.name.sasl", False),
        ("listener.name.sasl.max.connections", False),
        ("listener.name.sasl.max.connection.creation.rate", False),
        ("listener.name.sasl.num.network.threads", False),
    ],
)
def test_what_belongs_to_a_listener_of_one_broker(name: str, is_refused: bool) -> None:
    text = f"Cannot update these configs at default cluster level, broker id must be specified: [{name}]"
    result = change(new_image(), [(name, SET, "3")], BROKER_RESOURCE, "")
    assert result.message == (text if is_refused else None)
    assert change(new_image(), [(name, SET, "3")], BROKER_RESOURCE, "1").error == ErrorCode.NONE


def test_min_isr_of_a_broker_is_fixed_with_eligible_leader_replicas() -> None:
    image = new_image()
    assert change(image, [("min.insync.replicas", SET, "1")], BROKER_RESOURCE, "1").error == ErrorCode.NONE
    image.replay(
        FeatureLevelRecord(name="eligible.leader.replicas.version", feature_level=1), MetadataDelta()
    )
    result = change(image, [("min.insync.replicas", SET, "2")], BROKER_RESOURCE, "1")
    assert result.error == ErrorCode.INVALID_CONFIG
    result = change(image, [("min.insync.replicas", DELETE, None)], BROKER_RESOURCE, "")
    assert result.message == "Cluster-level min.insync.replicas cannot be removed while ELR is enabled."


names = st.sampled_from(["retention.ms", "segment.ms", "flush.ms"])
steps = st.lists(st.dictionaries(names, st.one_of(st.none(), st.integers(1, 9)), max_size=3), max_size=8)


@given(steps)
def test_setting_and_deleting_behaves_like_a_dictionary(made: list[dict[str, int | None]]) -> None:
    image, model = new_image(), dict[str, str]()
    for step in made:
        change(
            image, [(n, DELETE if v is None else SET, None if v is None else str(v)) for n, v in step.items()]
        )
        for name, value in step.items():
            if value is None:
                model.pop(name, None)
            else:
                model[name] = str(value)
        assert image.topic_configs("t") == model


def test_a_change_of_min_isr_clears_elr_only_where_there_is_a_leader() -> None:
    image = new_image()
    image.replay(
        FeatureLevelRecord(name="eligible.leader.replicas.version", feature_level=1), MetadataDelta()
    )
    topic_id = image.topics["t"].topic_id
    for index, leader, isr in ((0, -1, []), (1, 3, [3])):
        partition = PartitionRecord(partition_id=index, topic_id=topic_id, replicas=[1, 2, 3], isr=isr)
        partition.leader, partition.eligible_leader_replicas = leader, [1, 2]
        partition.directories = [bytes(16)] * 3
        image.replay(partition, MetadataDelta())
    before = image.topics["t"].partitions.copy()
    assert change(image, [("min.insync.replicas", SET, "1")]).error == ErrorCode.NONE
    after = image.topics["t"].partitions
    assert after[0] == before[0]
    assert (after[1].eligible_leader_replicas, after[1].leader) == ([], 3)
    assert after[1].partition_epoch == before[1].partition_epoch + 1
