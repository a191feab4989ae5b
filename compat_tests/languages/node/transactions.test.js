// Transactions with kafkajs, with the test broker or the broker that BOOTSTRAP_SERVERS names.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { randomUUID } from "node:crypto";
import { startTestBroker } from "barnabas-testbroker";
import { Kafka, logLevel, Partitioners } from "kafkajs";

const GIVEN = process.env.BOOTSTRAP_SERVERS;
const timeout = 120_000; // ms

const clients = []; // to disconnect: node ends when no connection is left
let broker, kafka, admin, plain; // plain: a producer without transactions

before(async () => {
  broker = GIVEN ? { bootstrapServers: GIVEN } : await startTestBroker();
  const retry = { initialRetryTime: 20, retries: 9 }; // ms; kafkajs waits 300 otherwise
  kafka = new Kafka({ brokers: [broker.bootstrapServers], logLevel: logLevel.NOTHING, retry });
  admin = await connected(kafka.admin());
  plain = await connected(kafka.producer({ createPartitioner: Partitioners.DefaultPartitioner }));
});

after(async () => {
  await Promise.all(clients.map((client) => client.disconnect()));
  await broker?.stop?.();
});

test("a committed transaction is read, an aborted one is not", { timeout }, async () => {
  const [orders, audit] = [await createTopic(), await createTopic()];
  const producer = await transactional(randomUUID());
  for (const [value, commit] of [["1", true], ["2", false], ["3", true]]) {
    const transaction = await producer.transaction();
    for (const topic of [orders, audit]) await transaction.send({ topic, messages: [{ value }] });
    await (commit ? transaction.commit() : transaction.abort());
  }
  for (const topic of [orders, audit]) {
    assert.deepEqual(await read(topic, 2), ["1", "3"]);
    assert.deepEqual(await read(topic, 3, { readUncommitted: true }), ["1", "2", "3"]);
  }
});

test("a reader of committed records waits for the end of an open transaction", { timeout }, async () => {
  const topic = await createTopic();
  const producer = await transactional(randomUUID());
  const transaction = await producer.transaction();
  await transaction.send({ topic, messages: [{ value: "first" }] });
  await plain.send({ topic, messages: [{ value: "second" }] });
  const waiting = read(topic, 1);
  assert.deepEqual(await read(topic, 2, { readUncommitted: true }), ["first", "second"]);
  await transaction.abort();
  assert.deepEqual(await waiting, ["second"]);
});

test("a producer fences an earlier one with the same id", { timeout }, async () => {
  const [topic, id] = [await createTopic(), randomUUID()];
  const earlier = await transactional(id);
  const left = await earlier.transaction();
  await left.send({ topic, messages: [{ value: "earlier" }] });

  const later = await transactional(id);
  const transaction = await later.transaction(); // ends the earlier one's transaction
  await transaction.send({ topic, messages: [{ value: "later" }] });
  await transaction.commit();

  await assert.rejects(left.commit(), ({ type, message }) => /FENCED|PRODUCER_EPOCH/.test(type ?? message));
  assert.deepEqual(await read(topic, 1), ["later"]);
});

test("what is consumed, transformed and produced is so once", { timeout }, async () => {
  const [source, target, groupId] = [await createTopic(), await createTopic(), randomUUID()];
  const values = Array.from({ length: 100 }, (_, number) => String(number));
  await plain.send({ topic: source, messages: values.map((value) => ({ value })) });
  const producer = await transactional(randomUUID());

  let ends = 0;
  while (Number((await committed(groupId, source)) ?? -1) < values.length) {
    const batch = await nextBatch(source, groupId, 30);
    const transaction = await producer.transaction();
    const messages = batch.map(({ value }) => ({ value: `${value}!` }));
    await transaction.send({ topic: target, messages });
    const offset = String(Number(batch.at(-1).offset) + 1);
    const topics = [{ topic: source, partitions: [{ partition: 0, offset }] }];
    await transaction.sendOffsets({ consumerGroupId: groupId, topics });
    await (ends++ % 2 ? transaction.commit() : transaction.abort()); // each batch comes again once
  }
  assert.deepEqual(await read(target, values.length), values.map((value) => `${value}!`));
});

async function createTopic() {
  const topic = randomUUID();
  await admin.createTopics({ waitForLeaders: true, topics: [{ topic, numPartitions: 1 }] });
  return topic;
}

async function transactional(transactionalId) {
  const options = { transactionalId, idempotent: true, maxInFlightRequests: 1 };
  return connected(kafka.producer({ ...options, createPartitioner: Partitioners.DefaultPartitioner }));
}

async function connected(client) {
  clients.push(client);
  await client.connect();
  return client;
}

/** The group's position in the topic's one partition; kafkajs answers "-1" for none. */
async function committed(groupId, topic) {
  const [{ partitions }] = await admin.fetchOffsets({ groupId, topics: [topic] });
  return partitions[0].offset;
}

/** The first `count` values of the topic, or all that come before the reader has reached its end. */
async function read(topic, count, options) {
  const found = await consume(topic, count, { groupId: randomUUID(), ...options });
  return found.map(({ value }) => value);
}

/** Up to `max` messages from where the group stands, in one batch. */
async function nextBatch(topic, groupId, max) {
  return (await consume(topic, 1, { groupId })).slice(0, max);
}

/** At least `count` messages of the topic, as {value, offset}, and those that came in a batch with them; commits nothing. */
async function consume(topic, count, options) {
  const consumer = await connected(kafka.consumer(options));
  await consumer.subscribe({ topic, fromBeginning: true });
  const found = [];
  try {
    await new Promise((resolve, reject) => {
      const eachBatch = async ({ batch }) => {
        found.push(...batch.messages.map(({ value, offset }) => ({ value: value.toString(), offset })));
        if (found.length >= count) resolve();
      };
      consumer.on(consumer.events.CRASH, ({ payload }) => payload.restart || reject(payload.error));
      consumer.run({ autoCommit: false, eachBatch });
    });
  } finally {
    await consumer.disconnect();
  }
  return found;
}
