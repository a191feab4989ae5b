"""`barnabas tier` with a bucket alone."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from barnabas.cli import main
from barnabas.storage.tier.descriptions import TopicDescription
from barnabas.storage.tier.file_store import FileStore
from barnabas.storage.tier.keys import ClusterKeys
from barnabas.storage.tier.tests.test_tiered_log import TieredWorkshop


def test_a_bucket_is_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    workshop = TieredWorkshop()
    workshop.fill()
    workshop.tier()
    store = FileStore(str(tmp_path))
    for each in workshop.store.list(""):
        store.put(each.key, [workshop.store.get(each.key, 1 << 20)[0]])
    topic_id, keys = workshop.keys.topic_id, ClusterKeys("cluster")
    arguments = ["tier", "list", "--set", f"rsm.config.url=file://{tmp_path}"]
    segments, size = len(workshop.present), sum(entry.log_size for entry in workshop.present)
    assert main(arguments) == 0
    assert capsys.readouterr().out == f"cluster\t{topic_id}\t-\t-\t{segments}\t{size}\n"
    described = TopicDescription(topic_id=topic_id, name="t", partitions=1, configs={})
    store.put(keys.description(topic_id), [msgspec.json.encode(described)])
    store.put(f"{keys.topic(topic_id)}odd", [b""])
    store.put("other", [b""])
    store.put("cluster/x/y", [b""])
    assert main(arguments) == 0
    assert capsys.readouterr().out == f"cluster\t{topic_id}\tt\t1\t{segments}\t{size}\n"
    store.put(workshop.keys.manifest, [b"damaged"])
    assert main(arguments) == 0
    assert capsys.readouterr().out.startswith(f"cluster\t{topic_id}\tt\t-\t-\t- (manifest:")


@pytest.mark.sockets
def test_nothing_is_removed_without_a_cluster_that_can_be_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"rsm.config.url=file://{tmp_path}"
    assert main(["tier", "remove-unknown", "--set", url]) == 1
    assert "--topic-id" in capsys.readouterr().err
    hasty = tmp_path / "client.properties"
    hasty.write_text("default.api.timeout.ms=100\n")
    arguments = ["--set", url, "--bootstrap-server", "127.0.0.1:1", "--command-config", str(hasty)]
    assert main(["tier", "remove-unknown", "--topic-id", "a" * 22, *arguments]) == 1
    assert main(["tier", "restore", "--cluster-id", "c", *arguments]) == 1
    assert capsys.readouterr().err.count("no connection to 127.0.0.1:1") >= 2
    hasty.unlink()
    assert list(FileStore(str(tmp_path)).list("")) == []


def test_a_store_has_to_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tier", "list"]) == 1
    assert "rsm.config.url" in capsys.readouterr().err
