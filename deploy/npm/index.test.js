import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { startTestBroker } from "./index.js";

let broker;

before(async () => {
  broker = await startTestBroker();
});

after(() => broker?.stop());

test("a reset broker has no topics and no rules", { timeout: 60_000 }, async () => {
  await broker.createTopic("orders", { partitions: 2 });
  const rule = await broker.addRule({ api: "Produce", close: true });
  assert.equal(await broker.hits(rule), 0);
  await broker.reset();
  assert.deepEqual(await broker.ask("GET", "/topics"), {});
  await assert.rejects(broker.hits(rule), /GET \/rules/);
});

test("what is refused is an error with the reason", { timeout: 60_000 }, async () => {
  await assert.rejects(broker.addRule({ api: "Nonsense", close: true }), /Nonsense/);
});

test("nodes of a cluster", { timeout: 60_000 }, async () => {
  const cluster = await startTestBroker("--nodes", "3");
  try {
    assert.equal(cluster.bootstrapServers.split(",").length, 3);
  } finally {
    await cluster.stop();
  }
});

test("a command that is missing is named", { timeout: 60_000 }, async () => {
  process.env.BARNABAS = "/nowhere/barnabas";
  try {
    await assert.rejects(startTestBroker(), /\/nowhere\/barnabas did not start \(pip install barnabas\)/);
  } finally {
    delete process.env.BARNABAS;
  }
});
