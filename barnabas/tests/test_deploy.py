"""What deploy/ names is there: properties, commands, probes."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.config.sources import NOT_PROPERTIES, properties_from_environment
from barnabas.broker.metrics.listener import PATHS
from barnabas.broker.node import Node
from barnabas.controller.config.validators import ConfigError
from barnabas.tests.product import ROOT
from compat_tests.virtual.runtime import VirtualRuntime

DEPLOY = ROOT / "deploy"
IMAGE = DEPLOY / "image" / "rootfs"


def texts() -> dict[str, str]:
    return {
        str(path.relative_to(DEPLOY)): path.read_text()
        for path in sorted(DEPLOY.rglob("*"))
        if path.is_file() and path.suffix not in (".json", ".png") and "target" not in path.parts  # Maven's
    }


def test_every_variable_is_a_property() -> None:
    known = set(BrokerConfig.from_properties().tables.broker)
    dropped = {"KAFKA_BROKER_ID", "KAFKA_ZOOKEEPER_CONNECT"}  # by the image's start script
    named = {name for text in texts().values() for name in re.findall(r"\bKAFKA_[A-Z_]+\b", text)}
    assert len(named) > 10
    for name in named - dropped - NOT_PROPERTIES:
        (found,) = properties_from_environment({name: "x"})
        assert found in known, name


def test_probes_ask_for_pages_that_are_served() -> None:
    asked = {path for text in texts().values() for path in re.findall(r"httpGet: \{ path: (\S+),", text)}
    assert asked
    assert asked <= set(PATHS)


def test_scripts_of_the_image_are_executable_and_call_each_other() -> None:
    scripts = [path for path in IMAGE.rglob("*") if path.is_file() and path.name != "bash-config"]
    assert len(scripts) > 5
    found = 0
    for script in scripts:
        assert os.access(script, os.X_OK), script
        for called in re.findall(
            r"(?:exec|^\.|^) ?(/(?:etc|opt/barnabas/start)\S*)", script.read_text(), re.M
        ):
            assert (IMAGE / called.lstrip("/")).exists(), f"{script} calls {called}"
            found += 1
    assert found > 3


def test_a_cluster_id_of_the_environment(tmp_path: Path) -> None:
    """CLUSTER_ID names a new cluster, and no other."""
    text = "4L6g3nShT-eMCtK--X86sw"
    settings = [f"log.dirs={tmp_path}", "listeners=PLAINTEXT://127.0.0.1:0"]
    config = BrokerConfig.load(None, {"CLUSTER_ID": text}, settings)
    for given in (
        config,
        BrokerConfig.load(None, {}, settings),
        BrokerConfig.load(None, {"CLUSTER_ID": "other"}, settings),
    ):
        node = Node(given, VirtualRuntime())
        node.start()
        assert node.cluster_id == text
        node.stop()
    with pytest.raises(ConfigError, match="CLUSTER_ID: 'a b' is no cluster id"):
        BrokerConfig.load(None, {"CLUSTER_ID": "a b"}, settings)
