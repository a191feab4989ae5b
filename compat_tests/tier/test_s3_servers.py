"""The contract of object stores against S3 servers that `make test-tier` installs; each is left out where it is not named."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from barnabas.storage.tier.object_store import ObjectStore, StoreRefused
from barnabas.storage.tier.store_config import check_conditions, open_store
from compat_tests.harness.object_store_contract import ObjectStoreContract
from compat_tests.harness.s3_servers import properties_of, seaweedfs, versitygw

pytestmark = [pytest.mark.sockets, pytest.mark.barnabas_only, pytest.mark.long]

# The variable that names a program, and how it is started
SERVERS = {"versitygw": ("BARNABAS_VERSITYGW", versitygw), "seaweedfs": ("BARNABAS_WEED", seaweedfs)}


@pytest.fixture(scope="module", params=list(SERVERS))
def server_port(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Of a server of this module."""
    variable, start = SERVERS[request.param]
    executable = os.environ.get(variable)
    if not executable:
        pytest.skip(f"{variable} names no {request.param}")
    with start(os.path.abspath(executable), tmp_path_factory.mktemp(request.param)) as port:
        yield port


class TestS3Servers(ObjectStoreContract):
    """What every object store does."""

    @pytest.fixture
    def store(self, server_port: int, request: pytest.FixtureRequest) -> ObjectStore:
        """A prefix of each test's own."""
        if request.node.name == "test_listing[seaweedfs]":
            reason = "SeaweedFS lists a folder's keys before those of a file beside it: a/b, then a-"
            request.node.add_marker(pytest.mark.xfail(reason=reason, strict=True))
        name = re.sub(r"\W", "-", request.node.name)
        return open_store(properties_of(server_port, f"prefix/{name}"), lambda: 0)


def test_wrong_credentials(server_port: int) -> None:
    """An operator has to act."""
    properties = properties_of(server_port) | {"rsm.config.secret.access.key": "wrong"}
    with pytest.raises(StoreRefused):
        check_conditions(open_store(properties, lambda: 0), os.urandom)


def test_no_bucket(server_port: int, request: pytest.FixtureRequest) -> None:
    """The same."""
    if "seaweedfs" in request.node.name:
        pytest.skip("SeaweedFS makes the bucket")
    with pytest.raises(StoreRefused, match="NoSuchBucket"):
        check_conditions(
            open_store(properties_of(server_port, bucket="no-such-bucket"), lambda: 0), os.urandom
        )


def test_a_killed_upload_is_not_visible(server_port: int) -> None:
    """What was uploaded of it is no object."""
    program = """
import sys, time
from barnabas.storage.tier.store_config import open_store
from compat_tests.harness.s3_servers import properties_of
def parts():
    for _ in range(3):
        yield bytes(9_000_000)
    print(1, flush=True)
    time.sleep(600)
open_store(properties_of(int(sys.argv[1]), "killed"), lambda: 0).put("k", parts())
"""
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", program, str(server_port)], stdout=subprocess.PIPE, cwd=root
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"1\n"
        process.kill()
    assert list(open_store(properties_of(server_port, "killed"), lambda: 0).list("")) == []
