"""A nats-server with a broker and a cluster, shared by many tests and cleaned after each, without new processes.

After a test, killed processes run again, topics, groups and streams are deleted, and the logs are empty. Tests that
need other settings, or leave other state behind, have their own processes (`fresh_broker`, `fresh_cluster`,
`nats_server`).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from pathlib import Path

import nats
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from compat_tests.harness.barnabas_broker import BarnabasBroker
from compat_tests.harness.broker import Broker
from compat_tests.harness.cluster import Cluster
from compat_tests.harness.eventually import eventually
from compat_tests.harness.nats_server import NatsServer
from compat_tests.nats.publishers import end_publishers


class Shared:
    """The processes for one nats-server executable; each starts at its first use."""

    def __init__(self, directory: Path, executable: Path, loop: str) -> None:
        self._directory = directory
        self._loop = loop
        self._broker: Broker | None = None
        self._cluster: Cluster | None = None
        config = "max_payload: 8MB\n"
        self.server = NatsServer(directory / "nats", executable=executable, jetstream=True, config=config)
        self.server.start()

    @property
    def _settings(self) -> dict[str, str]:
        return {"nats.servers": self.server.url, "offsets.topic.num.partitions": "1"}

    @property
    def broker(self) -> Broker:
        if self._broker is None:
            self._broker = BarnabasBroker(self._directory / "broker", self._settings, self._loop)
            self._broker.start()
        return self._broker

    @property
    def cluster(self) -> Cluster:
        """A cluster of three nodes."""
        if self._cluster is None:
            directory = self._directory / "cluster"
            self._cluster = Cluster(directory, "barnabas", settings=self._settings, loop=self._loop)
            self._cluster.start()
        return self._cluster

    def clean(self) -> None:
        """Restores the state after a start."""
        end_publishers()
        if not self.server.is_alive():
            self.server.kill()
            self.server.start()
        if self._broker is not None:
            if not self._broker.alive():
                self._broker.kill()
                self._broker.start()
            _delete_all(self._broker.bootstrap, [self._broker.bootstrap])
            _empty_log(self._broker)
        if self._cluster is not None:
            down = [node for node in self._cluster.nodes if not self._cluster.nodes[node].alive()]
            if down:
                self._cluster.start(*down)
            self._cluster.wait_until_known()
            _delete_all(self._cluster.bootstrap, self._cluster.addresses.values())
            for node in self._cluster.nodes.values():
                _empty_log(node)
        asyncio.run(_delete_streams(self.server))
        self.server.forget_log()

    def close(self) -> None:
        if self._broker is not None and self._broker.alive():
            self._broker.kill()
        if self._cluster is not None:
            self._cluster.close()
        self.server.kill()


def _delete_all(bootstrap: str, addresses: Iterable[str]) -> None:
    """Deletes all topics, on all of the brokers, and all groups."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topics = _topics(admin)
    if topics:
        eventually(lambda: _are_deleted(admin))
        for address in addresses:
            one = AdminClient({"bootstrap.servers": address})
            eventually(lambda one=one: not _topics(one))
    groups = [group.group_id for group in admin.list_consumer_groups().result(30).valid]
    for group in admin.delete_consumer_groups(groups).values() if groups else ():
        try:
            group.result(30)
        except KafkaException:
            pass  # a group of which all topics are deleted


def _are_deleted(admin: AdminClient) -> bool:
    """Whether no topics are left; otherwise requests their deletion, perhaps again."""
    topics = _topics(admin)
    for topic in admin.delete_topics(topics).values() if topics else ():
        try:
            topic.result(30)
        except KafkaException:
            pass  # deleted already, or there was an election
    return not topics


def _topics(admin: AdminClient) -> list[str]:
    return [name for name in admin.list_topics(timeout=30).topics if not name.startswith("__")]


def _empty_log(broker: Broker) -> None:
    os.truncate(broker.directory / "stderr", 0)


async def _delete_streams(server: NatsServer) -> None:
    client = await nats.connect(server.url)
    jetstream = client.jetstream(timeout=30)
    for stream in await jetstream.streams_info():
        await jetstream.delete_stream(stream.config.name or "")
    await client.close()
