"""Clusters whose directories an earlier version wrote: started on other ports, node by node, and grown from one node.

`golden/cluster-1`: three combined nodes with Raft's journal and snapshot, stopped cleanly.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from compat_tests.company.read import read_all
from compat_tests.harness.cluster import Cluster
from compat_tests.harness.committed import committed
from compat_tests.harness.confluent_admin import ConfigResource, ResourceType
from compat_tests.harness.eventually import eventually
from compat_tests.harness.golden import GOLDEN, SETTINGS

RECORDS = [
    (f"key {number}".encode(), f"value {number}".encode()) for number in (*range(0, 10, 2), *range(1, 10, 2))
]

pytestmark = pytest.mark.barnabas_only


@pytest.mark.parametrize("name", sorted(path.name for path in GOLDEN.glob("cluster-*")))
def test_a_cluster_of_an_earlier_version_is_restarted_node_by_node(name: str, tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, "barnabas", settings=SETTINGS)
    for node in cluster.nodes:
        shutil.copytree(GOLDEN / name / f"node-{node}", tmp_path / f"node-{node}" / "data")
    try:
        cluster.start()
        _check(cluster)
        for node in cluster.nodes:
            cluster.restart(node)
        _check(cluster)
        _produce(cluster)
        cluster.kill(*cluster.nodes)
        cluster.start()
        assert eventually(lambda: read_all(cluster.bootstrap, "orders") == [*RECORDS, (b"new", b"new")])
    finally:
        cluster.close()


@pytest.mark.parametrize("name", sorted(path.name for path in GOLDEN.glob("directory-*")))
def test_a_single_node_of_an_earlier_version_grows_to_three(name: str, tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, "barnabas", settings=SETTINGS)
    shutil.copytree(GOLDEN / name, tmp_path / "node-1" / "data")
    try:
        cluster.start()
        _check(cluster)
        _produce(cluster)
        assert read_all(cluster.bootstrap, "orders") == [*RECORDS, (b"new", b"new")]
    finally:
        cluster.close()


def test_a_voter_whose_disk_is_lost_is_replaced_by_a_new_quorum(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, "barnabas", settings=SETTINGS)
    for node in cluster.nodes:
        shutil.copytree(GOLDEN / "cluster-1" / f"node-{node}", tmp_path / f"node-{node}" / "data")
    shutil.rmtree(tmp_path / "node-1" / "data")
    shutil.rmtree(tmp_path / "node-3" / "data" / "__cluster_metadata-0")
    left = cluster.nodes[2]
    command = [sys.executable, "-m", "barnabas.cli", "leave-quorum"]
    for name, value in left.settings.items():
        command += ["--set", f"{name}={value}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert done.stdout.startswith("node 2 has left its quorum")
    again = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert (again.returncode, "holds no metadata of a voter" in again.stderr) == (1, True)
    try:
        cluster.start()
        _check(cluster)
        _produce(cluster)
        assert eventually(
            lambda: all(sorted(cluster.partition("orders", index).isr) == [1, 2, 3] for index in (0, 1)), 30
        )
    finally:
        cluster.close()


def _produce(cluster: Cluster) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})
    producer.produce("orders", b"new", key=b"new", partition=1)
    assert producer.flush(30) == 0


def _check(cluster: Cluster) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    assert set(admin.list_topics(timeout=30).topics) == {"orders", "__consumer_offsets"}
    resource = ConfigResource(ResourceType.TOPIC, "orders")
    assert admin.describe_configs([resource])[resource].result(30)["max.message.bytes"].value == "54321"
    assert read_all(cluster.bootstrap, "orders") == RECORDS
    (found,) = committed(admin, "readers")
    assert found.offset == 3
