"""The test broker's schema registry with Confluent's serializers for Python: records of each format, written with one version of a
schema and read with another.

The broker runs in this process, whatever `--broker` says.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.schema_registry import (
    AsyncSchemaRegistryClient,
    Schema,
    SchemaReference,
    SchemaRegistryClient,
    SchemaRegistryError,
    header_schema_id_serializer,
)
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.schema_registry.schema_registry_client import ConfigCompatibilityLevel, ServerConfig
from confluent_kafka.serialization import MessageField, SerializationContext

from barnabas.testing import Broker
from barnabas.testing.control import Control

pytestmark = pytest.mark.barnabas_only

TOPIC = "orders"
SUBJECT = f"{TOPIC}-value"
CONTEXT = SerializationContext(TOPIC, MessageField.VALUE)


@pytest.fixture(scope="module")
def shared() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture
def broker(shared: Broker) -> Broker:
    shared.reset()
    shared.create_topic(TOPIC)
    return shared


@pytest.fixture(params=["in process", "controls"])
def registry(broker: Broker, request: pytest.FixtureRequest) -> Iterator[SchemaRegistryClient]:
    """A client, of the registry's own port and of the controls'."""
    control = Control(broker) if request.param == "controls" else None
    url = broker.schema_registry_url if control is None else control.schema_registry_url
    with SchemaRegistryClient({"url": url}) as client:
        yield client
    if control is not None:
        control.close()


def sent(broker: Broker, data: bytes, headers: Any = None) -> Any:
    """The record as a consumer gets it."""
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    producer.produce(TOPIC, data, headers=headers)
    assert not producer.flush(30)
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap_servers, "group.id": "g", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([TOPIC])
    try:
        record = consumer.poll(30)
        assert record is not None
        assert record.error() is None
        consumer.commit(message=record, asynchronous=False)
        return record
    finally:
        consumer.close()


def refused(call: Callable[[], object]) -> tuple[int, int, str]:
    """Status, code and message."""
    with pytest.raises(SchemaRegistryError) as raised:
        call()
    return raised.value.http_status_code, raised.value.error_code, raised.value.error_message


# -- Avro


def avro(*fields: dict[str, Any]) -> str:
    amount = {"name": "amount", "type": "int"}
    return json.dumps({"type": "record", "name": "shop.Order", "fields": [amount, *fields]})


FIRST = avro()
SECOND = avro({"name": "currency", "type": "string", "default": "EUR"})
WRONG = avro({"name": "country", "type": "string"})


def test_avro(broker: Broker, registry: SchemaRegistryClient) -> None:
    old, new = AvroSerializer(registry, FIRST), AvroSerializer(registry, SECOND)
    reads_new, reads_old = AvroDeserializer(registry, SECOND), AvroDeserializer(registry, FIRST)
    record = sent(broker, old({"amount": 12}, CONTEXT))
    assert record.value()[:5] == b"\0\0\0\0\1"
    assert reads_new(record.value(), CONTEXT) == {"amount": 12, "currency": "EUR"}
    record = sent(broker, new({"amount": 7, "currency": "USD"}, CONTEXT))
    assert reads_old(record.value(), CONTEXT) == {"amount": 7}
    assert AvroDeserializer(registry)(record.value(), CONTEXT) == {"amount": 7, "currency": "USD"}
    assert registry.get_versions(SUBJECT) == [1, 2]
    with pytest.raises(SchemaRegistryError) as raised:
        AvroSerializer(registry, WRONG)({"amount": 1, "country": "AT"}, CONTEXT)
    assert (raised.value.http_status_code, raised.value.error_code) == (409, 409)
    assert "READER_FIELD_MISSING_DEFAULT_VALUE" in raised.value.error_message


def test_avro_with_the_latest_version_and_without_registering(
    broker: Broker, registry: SchemaRegistryClient
) -> None:
    uses_latest = {"auto.register.schemas": False, "use.latest.version": True}
    registry.register_schema(SUBJECT, Schema(FIRST))
    data = AvroSerializer(registry, conf=uses_latest)({"amount": 3}, CONTEXT)
    assert AvroDeserializer(registry)(sent(broker, data).value(), CONTEXT) == {"amount": 3}
    looks_up = {"auto.register.schemas": False, "normalize.schemas": True}
    assert AvroSerializer(registry, FIRST, conf=looks_up)({"amount": 3}, CONTEXT) == data
    with pytest.raises(SchemaRegistryError) as raised:
        AvroSerializer(registry, SECOND, conf=looks_up)({"amount": 3, "currency": "USD"}, CONTEXT)
    assert (raised.value.http_status_code, raised.value.error_code) == (404, 40403)


def test_avro_with_references(broker: Broker, registry: SchemaRegistryClient) -> None:
    currency = json.dumps({"type": "enum", "name": "shop.Currency", "symbols": ["EUR", "USD"]})
    registry.register_schema("currency", Schema(currency))
    order = Schema(
        avro({"name": "currency", "type": "shop.Currency"}),
        references=[SchemaReference("shop.Currency", "currency", 1)],
    )
    value = {"amount": 1, "currency": "USD"}
    data = AvroSerializer(registry, order)(value, CONTEXT)
    assert AvroDeserializer(registry)(sent(broker, data).value(), CONTEXT) == value
    assert registry.get_referenced_by("currency", 1) == [registry.get_latest_version(SUBJECT).schema_id]
    assert refused(lambda: registry.delete_subject("currency"))[:2] == (422, 42206)


def test_the_id_in_a_header(broker: Broker, registry: SchemaRegistryClient) -> None:
    headers: list[Any] = []
    context = SerializationContext(TOPIC, MessageField.VALUE, headers)
    serializer = AvroSerializer(registry, SECOND, conf={"schema.id.serializer": header_schema_id_serializer})
    value = {"amount": 1, "currency": "dollars"}
    record = sent(broker, serializer(value, context), headers)
    context = SerializationContext(TOPIC, MessageField.VALUE, record.headers())
    assert record.value()[0] != 0
    assert AvroDeserializer(registry)(record.value(), context) == value


# -- JSON Schema


def json_schema(**properties: str) -> str:
    types = {name: {"type": each} for name, each in properties.items()}
    return json.dumps({"title": "Order", "type": "object", "properties": types, "required": ["amount"]})


def test_json_schema(broker: Broker, registry: SchemaRegistryClient) -> None:
    first, second = json_schema(amount="integer"), json_schema(amount="integer", currency="string")
    old, new = (JSONSerializer(each, registry, lambda value, _: value) for each in (first, second))
    reads_old, reads_new = (
        JSONDeserializer(each, schema_registry_client=registry) for each in (first, second)
    )
    record = sent(broker, old({"amount": 12}, CONTEXT))
    assert reads_new(record.value(), CONTEXT) == {"amount": 12}
    record = sent(broker, new({"amount": 7, "currency": "USD"}, CONTEXT))
    assert reads_old(record.value(), CONTEXT) == {"amount": 7, "currency": "USD"}
    assert registry.get_version(SUBJECT, 2).schema.schema_type == "JSON"


# -- Protobuf


def protobuf(*fields: str) -> Any:
    """The class of a message Order with fields of strings, as protoc would have made it."""
    descriptor_pb2: Any = import_module(
        "google.protobuf.descriptor_pb2"
    )  # its names are made when it is imported
    descriptor_pool: Any = import_module("google.protobuf.descriptor_pool")
    message_factory: Any = import_module("google.protobuf.message_factory")
    file = descriptor_pb2.FileDescriptorProto(name="shop/order.proto", package="shop", syntax="proto3")
    message = file.message_type.add(name="Order")
    for number, name in enumerate(fields, 1):
        message.field.add(
            name=name,
            number=number,
            type=descriptor_pb2.FieldDescriptorProto.TYPE_STRING,
            label=descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL,
        )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))


def test_protobuf(broker: Broker, registry: SchemaRegistryClient) -> None:
    first, second = protobuf("id"), protobuf("id", "currency")
    old, new = (ProtobufSerializer(each, registry) for each in (first, second))
    reads_old, reads_new = (
        ProtobufDeserializer(each, schema_registry_client=registry) for each in (first, second)
    )
    record = sent(broker, old(first(id="a"), CONTEXT))
    assert reads_new(record.value(), CONTEXT) == second(id="a")
    record = sent(broker, new(second(id="b", currency="USD"), CONTEXT))
    read = reads_old(record.value(), CONTEXT)
    assert read is not None
    assert read.id == "b"
    assert registry.get_version(SUBJECT, 2).schema.schema_type == "PROTOBUF"
    assert registry.get_versions(SUBJECT) == [1, 2]


# -- the client by itself


def test_the_client(registry: SchemaRegistryClient) -> None:
    first = registry.register_schema(SUBJECT, Schema(FIRST))
    assert registry.get_schema_types() == ["AVRO", "JSON", "PROTOBUF"]
    assert registry.get_subjects() == [SUBJECT]
    assert registry.lookup_schema(SUBJECT, Schema(FIRST)).version == 1
    assert registry.test_compatibility(SUBJECT, Schema(SECOND))
    assert not registry.test_compatibility(SUBJECT, Schema(WRONG), 1)
    assert not registry.test_compatibility_all_versions(SUBJECT, Schema(WRONG))
    registry.set_compatibility(SUBJECT, "NONE")
    assert registry.get_compatibility(SUBJECT) == "NONE"
    assert registry.test_compatibility(SUBJECT, Schema(WRONG))
    registry.set_config(config=ServerConfig(compatibility=ConfigCompatibilityLevel.FULL))
    assert registry.get_config().compatibility_level == ConfigCompatibilityLevel.FULL
    unknown = ServerConfig(compatibility=ConfigCompatibilityLevel.FULL, compatibility_group="g")
    assert refused(lambda: registry.set_config(config=unknown))[:2] == (400, 400)
    assert registry.get_subjects_by_schema_id(first) == [SUBJECT]
    [version] = registry.get_schema_versions(first)
    assert (version.subject, version.version) == (SUBJECT, 1)
    registry.update_mode(SUBJECT, "READONLY")
    assert registry.get_mode(SUBJECT) == "READONLY"
    assert refused(lambda: registry.register_schema(SUBJECT, Schema(SECOND))) == (
        422,
        42205,
        f"Subject {SUBJECT} is in read-only mode",
    )
    registry.update_mode(SUBJECT, "READWRITE")
    assert registry.delete_version(SUBJECT, 1) == 1
    assert registry.delete_subject(SUBJECT, permanent=True) == [1]
    assert refused(lambda: registry.get_latest_version(SUBJECT))[:2] == (404, 40401)
    assert refused(lambda: registry.get_schema(77)) == (404, 40403, "Schema 77 not found")


def test_names_that_have_to_be_quoted(registry: SchemaRegistryClient) -> None:
    name = "a/b c?d%e+ü-value"
    registry.register_schema(name, Schema(FIRST))
    assert registry.get_subjects() == [name]
    assert registry.get_latest_version(name).subject == name


def test_a_registry_in_the_running_loop() -> None:
    async def main() -> None:
        async with Broker() as broker:
            client = AsyncSchemaRegistryClient({"url": broker.schema_registry_url})
            assert await client.register_schema("s", Schema(FIRST)) == 1
            assert await client.get_subjects() == ["s"]
            await broker.reset()
            assert await client.get_subjects() == []

    asyncio.run(main())
