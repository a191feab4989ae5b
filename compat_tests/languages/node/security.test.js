// kafkajs at a broker that wants TLS and a login: with each mechanism, with a wrong password, and without rights.

import assert from "node:assert/strict";
import { after, afterEach, before, test } from "node:test";
import { startTestBroker } from "barnabas-testbroker";
import { Kafka, logLevel } from "kafkajs";

const clients = [];
let broker;
let ca;

before(async () => {
  broker = await startTestBroker(
    ...["--security", "SASL_SSL", "--user", "alice=alice-secret", "--user", "bob=bob-secret", "--acls"],
    ...["--client-auth", "requested"],
  );
  ({ ca } = await broker.ask("GET", "/security"));
  await broker.createTopic("orders");
  const acls = [
    { principal: "User:alice", operation: "ALL", topic: "orders" },
    { principal: "User:alice", operation: "READ", group: "shop-", prefixed: true },
  ];
  await broker.ask("POST", "/security/acls", { acls });
});

after(() => broker?.stop());

afterEach(() => Promise.all(clients.splice(0).map((client) => client.disconnect())));

for (const mechanism of ["plain", "scram-sha-256", "scram-sha-512"]) {
  test(`a login with ${mechanism}`, { timeout: 60_000 }, async () => {
    await produce(mechanism, "alice", "alice-secret", mechanism);
    assert.ok((await consume(mechanism)).includes(mechanism));
  });
}

test("a wrong password", { timeout: 60_000 }, async () => {
  await assert.rejects(produce("plain", "alice", "wrong", "1"), /Invalid username or password/);
});

test("a user without rights", { timeout: 60_000 }, async () => {
  await assert.rejects(produce("plain", "bob", "bob-secret", "1"), /Not authorized to access topics/);
});

test("certificates of clients", { timeout: 60_000 }, async () => {
  const { certificate, key } = await broker.ask("GET", "/security/certificates/alice");
  await produce("plain", "alice", "alice-secret", "1", { cert: certificate, key });
  const foreign = await broker.ask("GET", "/security/certificates/alice?foreign=true");
  const own = { cert: foreign.certificate, key: foreign.key };
  await assert.rejects(produce("plain", "alice", "alice-secret", "1", own));
});

function client(mechanism, username, password, own = {}) {
  return new Kafka({
    brokers: broker.bootstrapServers.split(","),
    logLevel: logLevel.NOTHING,
    retry: { retries: 2 },
    ssl: { ca: [ca], ...own },
    sasl: { mechanism, username, password },
  });
}

async function produce(mechanism, username, password, value, own) {
  const producer = client(mechanism, username, password, own).producer();
  clients.push(producer);
  await producer.connect();
  await producer.send({ topic: "orders", messages: [{ value }] });
}

/** What is in the topic by now, read as alice. */
async function consume(mechanism) {
  const consumer = client(mechanism, "alice", "alice-secret").consumer({ groupId: `shop-${mechanism}` });
  clients.push(consumer);
  await consumer.connect();
  await consumer.subscribe({ topic: "orders", fromBeginning: true });
  const values = [];
  return new Promise((resolve, reject) => {
    const eachMessage = async ({ message }) => {
      values.push(message.value.toString());
      if (values.includes(mechanism)) resolve(values);
    };
    consumer.run({ eachMessage }).catch(reject);
  });
}
