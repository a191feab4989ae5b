// Records with schemas: kafkajs and its schema registry client, with the registry of the test broker.

import assert from "node:assert/strict";
import { after, before, beforeEach, test } from "node:test";
import kafkajsRegistry from "@kafkajs/confluent-schema-registry";
import { startTestBroker } from "barnabas-testbroker";
import { Kafka, logLevel, Partitioners } from "kafkajs";

const { SchemaRegistry, SchemaType } = kafkajsRegistry;
const subject = "orders-value";
const amount = { name: "amount", type: "int" };
const currency = { name: "currency", type: "string", default: "EUR" };
const country = { name: "country", type: "string" };
let broker;
let registry;

before(async () => {
  broker = await startTestBroker();
});

after(() => broker?.stop());

beforeEach(async () => {
  await broker.reset();
  await broker.createTopic("orders");
  const { schema_registry_url: host } = await broker.ask("GET", "/status");
  registry = new SchemaRegistry({ host });
});

test("a record is read with the schema it was written with", { timeout: 60_000 }, async () => {
  const first = await registry.register(order(amount), { subject });
  const second = await registry.register(order(amount, currency), { subject });
  assert.notEqual(first.id, second.id);
  const values = [await registry.encode(first.id, { amount: 12 }), await registry.encode(second.id, { amount: 7, currency: "USD" })];
  const read = await Promise.all((await crossing(values)).map((value) => registry.decode(value)));
  assert.deepEqual(read.map((each) => ({ ...each })), [{ amount: 12 }, { amount: 7, currency: "USD" }]);
});

test("an incompatible schema is refused", { timeout: 60_000 }, async () => {
  await registry.register(order(amount), { subject });
  await assert.rejects(registry.register(order(amount, country), { subject }), /READER_FIELD_MISSING_DEFAULT_VALUE/);
});

test("JSON schemas and .proto files", { timeout: 60_000 }, async () => {
  const schema = JSON.stringify({ type: "object", properties: { amount: { type: "integer" } } });
  const json = await registry.register({ type: SchemaType.JSON, schema }, { subject: "json" });
  assert.deepEqual(await registry.decode(await registry.encode(json.id, { amount: 12 })), { amount: 12 });
  const file = 'syntax = "proto3"; message Order { int32 amount = 1; }';
  const proto = await registry.register({ type: SchemaType.PROTOBUF, schema: file }, { subject: "proto" });
  const read = await registry.decode(await registry.encode(proto.id, { amount: 12 }));
  assert.equal(read.amount, 12);
});

function order(...fields) {
  return { type: SchemaType.AVRO, schema: JSON.stringify({ type: "record", name: "Order", namespace: "shop", fields }) };
}

// What a consumer gets of what a producer has sent.
async function crossing(values) {
  const kafka = new Kafka({ brokers: [broker.bootstrapServers], logLevel: logLevel.NOTHING });
  const producer = kafka.producer({ createPartitioner: Partitioners.DefaultPartitioner });
  const consumer = kafka.consumer({ groupId: "readers" });
  await Promise.all([producer.connect(), consumer.connect()]);
  try {
    await producer.send({ topic: "orders", messages: values.map((value) => ({ value })) });
    await consumer.subscribe({ topic: "orders", fromBeginning: true });
    const read = [];
    await new Promise((resolve, reject) => {
      const eachMessage = async ({ message }) => {
        read.push(message.value);
        if (read.length === values.length) resolve();
      };
      consumer.run({ eachMessage }).catch(reject);
    });
    return read;
  } finally {
    await Promise.all([producer.disconnect(), consumer.disconnect()]);
  }
}
