"""The nodes of one configuration."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.controller.config.validators import ConfigError
from barnabas.cores import layout
from barnabas.cores.layout import CoreNode, PrivatePorts, check_folders, count_of, cpu_quota, nodes_of
from barnabas.extensions import EXTENSIONS
from barnabas.server import _check_folders

PORTS = PrivatePorts(40_000, [40_001, 40_002])


def config_of(**properties: str) -> BrokerConfig:
    """`_` for `.` in names."""
    return BrokerConfig.from_properties(
        {name.replace("_", "."): text for name, text in properties.items()}, EXTENSIONS
    )


def made(count: int = 2, **properties: str) -> list[CoreNode]:
    """Each node's properties are valid."""
    config = config_of(**properties)
    nodes = nodes_of(config, count, PORTS, "machine", "/secret")
    for node in nodes:
        BrokerConfig({**config.given, **node.overrides}, EXTENSIONS)
    return nodes


def test_a_cluster_by_itself() -> None:
    first, second = made(
        log_dirs="/a,/b", barnabas_metrics_listener=":9404", barnabas_console_listener=":9500"
    )
    assert first.is_controller
    assert not second.is_controller
    assert first.overrides == {
        "barnabas.cores": "1",
        "node.id": "1",
        "process.roles": "broker,controller",
        "listeners": "PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:40000",
        "broker.rack": "machine",
        "barnabas.metrics.listener": "127.0.0.1:40001",
        "barnabas.ready.lines": "",
        "log.dirs": "/a/node-1,/b/node-1",
        "controller.quorum.voters": "1@127.0.0.1:40000",
        "controller.quorum.bootstrap.servers": "",
        "barnabas.controller.secret.file": "/secret",
        "barnabas.console.listener": ":9500",
    }
    assert second.overrides == {
        **first.overrides,
        "node.id": "2",
        "process.roles": "broker",
        "listeners": "PLAINTEXT://127.0.0.1:9093",
        "barnabas.metrics.listener": "127.0.0.1:40002",
        "log.dirs": "/a/node-2,/b/node-2",
        "barnabas.console.listener": ":9501",
    }


def test_what_is_configured_stays() -> None:
    nodes = made(
        listeners="PLAINTEXT://:0,CONTROLLER://:19093",
        advertised_listeners="PLAINTEXT://public:7000",
        broker_rack="here",
        metadata_log_dir="/m",
        cordoned_log_dirs="/a",
        log_dirs="/a,/b",
        barnabas_controller_secret_file="/own",
        listener_security_protocol_map="PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    )
    first, second = (each.overrides for each in nodes)
    assert first["listeners"] == "PLAINTEXT://:0,CONTROLLER://:19093"
    assert second["listeners"] == "PLAINTEXT://:0"
    assert first["controller.quorum.voters"] == second["controller.quorum.voters"] == "1@127.0.0.1:19093"
    assert second["advertised.listeners"] == "PLAINTEXT://public:7001"
    assert second["broker.rack"] == "here"
    assert second["metadata.log.dir"] == "/m/node-2"
    assert second["cordoned.log.dirs"] == "/a/node-2"
    assert "barnabas.controller.secret.file" not in second


def test_a_map_of_protocols_without_the_controllers() -> None:
    nodes = made(
        listeners="IN://127.0.0.1:9092",
        listener_security_protocol_map="IN:PLAINTEXT",
        inter_broker_listener_name="IN",
    )
    assert {each.overrides["listener.security.protocol.map"] for each in nodes} == {
        "IN:PLAINTEXT,CONTROLLER:PLAINTEXT"
    }


def test_in_a_larger_cluster_the_named_voters_are_controllers() -> None:
    nodes = nodes_of(
        config_of(
            node_id="4",
            listeners="PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9192",
            controller_quorum_voters="1@a:9192,4@b:9192,6@c:9194",
        ),
        3,
        PrivatePorts(40_000, []),
        "machine",
        "/secret",
    )
    assert [each.is_controller for each in nodes] == [True, False, True]
    assert [each.overrides["listeners"].count("CONTROLLER") for each in nodes] == [1, 0, 1]
    assert nodes[2].overrides["listeners"] == "PLAINTEXT://127.0.0.1:9094,CONTROLLER://127.0.0.1:9194"
    assert all("controller.quorum.voters" not in each.overrides for each in nodes)
    assert nodes[0].overrides["barnabas.metrics.listener"] == ""


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        (
            {"listeners": "PLAINTEXT://:9092,CONTROLLER://:9093"},
            "port 9093 would be that of CONTROLLER of node 1 and of PLAINTEXT of node 2",
        ),
        ({"listeners": "PLAINTEXT://:65535"}, "PLAINTEXT of node 2 would have port 65536"),
        (
            {"process_roles": "controller", "listeners": "CONTROLLER://:9093"},
            "process.roles has no broker",
        ),
        (
            {"barnabas_console_listener": ":9091"},
            "port 9092 would be that of PLAINTEXT of node 1 and of barnabas.console",
        ),
    ],
)
def test_what_cannot_be(properties: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        made(2, **properties)


def test_values() -> None:
    assert count_of("3") == 3
    assert count_of("auto") == len(os.sched_getaffinity(0))
    for wrong in ("", "0", "-1", "two", "1025"):
        with pytest.raises(ConfigError, match=r"barnabas\.cores: it must be auto or a number"):
            config_of(barnabas_cores=wrong)


def test_a_containers_limit_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cpu_quota(tmp_path) == math.inf
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert cpu_quota(tmp_path) == math.inf
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    assert cpu_quota(tmp_path) == 1.5
    (tmp_path / "pods" / "one").mkdir(parents=True)
    (tmp_path / "pods" / "cpu.max").write_text("50000 100000\n")
    own = tmp_path / "own"
    own.write_text("1:cpu:/else\n0::/pods/one\n")
    assert cpu_quota(tmp_path, own) == 0.5
    own.write_text("1:cpu:/else\n0::/\n")
    assert cpu_quota(tmp_path, own) == 1.5
    monkeypatch.setattr(layout, "CGROUPS", tmp_path)
    assert count_of("auto") == min(2, len(os.sched_getaffinity(0)))
    (tmp_path / "cpu.max").write_text("1000 100000\n")
    assert count_of("auto") == 1


def with_data(directory: Path) -> None:
    directory.mkdir(parents=True)
    (directory / "meta.properties").touch()


def test_folders_that_would_be_left_out(tmp_path: Path) -> None:
    config = config_of(log_dirs=str(tmp_path / "data"))
    check_folders(config, 1)
    check_folders(config, 2)
    for node_id in (1, 2, 3):
        with_data(tmp_path / f"data/node-{node_id}")
    (tmp_path / "data/node-7").mkdir()  # of partition 7 of a topic
    check_folders(config, 3)
    check_folders(config, 4)
    with pytest.raises(
        ConfigError, match=r"data of node 3, which barnabas\.cores=2 .* Start with barnabas\.cores=3 again"
    ):
        check_folders(config, 2)
    with pytest.raises(ConfigError, match=r"data of nodes 1, 2, 3, which barnabas\.cores=1 "):
        check_folders(config, 1)
    with pytest.raises(ConfigError, match=r"data of nodes 1, 2, which"):
        check_folders(config_of(log_dirs=str(tmp_path / "data"), node_id="3"), 2)


def test_data_of_one_node(tmp_path: Path) -> None:
    with_data(tmp_path / "data")
    with pytest.raises(ConfigError, match=r"move all that is in \S+/data into \S+/data/node-1"):
        check_folders(config_of(log_dirs=str(tmp_path / "data")), 2)


@pytest.mark.parametrize("cores", [1, 2])
def test_a_directory_that_can_not_be_read_is_left_to_the_storage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: int
) -> None:
    """It is offline, and the others are served."""

    def fail(_path: object) -> list[str]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "listdir", fail)
    config = config_of(log_dirs=str(tmp_path))
    check_folders(config, cores)
    _check_folders(config)
