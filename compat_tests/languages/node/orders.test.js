// What kafkajs makes of a broker that misbehaves. One broker for the file, wiped before each test.

import assert from "node:assert/strict";
import { after, afterEach, before, beforeEach, test } from "node:test";
import { startTestBroker } from "barnabas-testbroker";
import { Kafka, logLevel, Partitioners } from "kafkajs";

const clients = []; // to disconnect, also those of a test that fails: node ends when no connection is left
let broker;

before(async () => {
  broker = await startTestBroker();
});

after(() => broker?.stop());

beforeEach(async () => {
  await broker.reset();
  await broker.createTopic("orders");
});

afterEach(() => Promise.all(clients.splice(0).map((client) => client.disconnect())));

test("what is produced is consumed", { timeout: 60_000 }, async () => {
  await produce(["12", "13"]);
  assert.deepEqual(await consume(2), ["12", "13"]);
});

test("the producer looks for the leader again", { timeout: 60_000 }, async () => {
  const rule = await broker.addRule({ api: "Produce", topic: "orders", times: 1, error: "NOT_LEADER_OR_FOLLOWER" });
  await produce(["12"]);
  assert.equal(await broker.hits(rule), 1);
  assert.deepEqual(await consume(1), ["12"]);
});

// The broker has written the record, but the producer does not know, and sends it again.
for (const [idempotent, expected] of [[true, ["12", "13"]], [false, ["12", "12", "13"]]]) {
  const count = idempotent ? "no duplicate" : "a duplicate";
  const kind = idempotent ? "an idempotent producer" : "another";
  test(`an acknowledgement that is lost makes ${count} of ${kind}`, { timeout: 60_000 }, async () => {
    const rule = await broker.addRule({ api: "Produce", topic: "orders", times: 1, close: true, served: true });
    await produce(["12", "13"], { idempotent });
    assert.equal(await broker.hits(rule), 1);
    assert.deepEqual(await consume(expected.length), expected);
  });
}

test("the consumer connects again", { timeout: 60_000 }, async () => {
  await produce(["12"]);
  const rule = await broker.addRule({ api: "Fetch", topic: "orders", nth: 1, close: true });
  assert.deepEqual(await consume(1), ["12"]);
  assert.equal(await broker.hits(rule), 1);
});

function kafka() {
  const retry = { initialRetryTime: 20 }; // ms; kafkajs waits 300 otherwise
  return new Kafka({ brokers: [broker.bootstrapServers], logLevel: logLevel.NOTHING, retry });
}

async function connected(client) {
  clients.push(client);
  await client.connect();
  return client;
}

async function produce(values, options) {
  const settings = { createPartitioner: Partitioners.DefaultPartitioner, ...options };
  const producer = await connected(kafka().producer(settings));
  for (const value of values) await producer.send({ topic: "orders", messages: [{ value }] });
}

/** The first `count` values of the topic, read by a group. */
async function consume(count) {
  const consumer = await connected(kafka().consumer({ groupId: "billing" }));
  await consumer.subscribe({ topic: "orders", fromBeginning: true });
  const values = [];
  await new Promise((resolve) => {
    const eachMessage = async ({ message }) => {
      values.push(message.value.toString());
      if (values.length === count) resolve();
    };
    consumer.run({ eachMessage });
  });
  return values;
}
