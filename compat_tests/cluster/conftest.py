"""Fixtures of the cluster tests: clusters of a test's own, of the kind that `--broker` names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

import pytest

from compat_tests.harness.cluster import THREE, Cluster


class ClusterFactory(Protocol):
    """`fresh_cluster(roles, settings=..., proxied=...)`."""

    def __call__(
        self,
        roles: Mapping[int, str] = THREE,
        *,
        settings: Mapping[str, str] | None = None,
        node_settings: Mapping[int, Mapping[str, str]] | None = None,
        proxied: bool = False,
        start: bool = True,
    ) -> Cluster: ...


@pytest.fixture
def fresh_cluster(
    request: pytest.FixtureRequest, broker_kind: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ClusterFactory]:
    """Makes a cluster, started unless told otherwise; killed in the end."""
    if broker_kind not in ("barnabas", "apache"):
        pytest.skip("needs a cluster of its own; this broker is run by somebody else")
    tools = request.getfixturevalue("java_tools") if broker_kind == "apache" else None
    made: list[Cluster] = []

    def make(
        roles: Mapping[int, str] = THREE,
        *,
        settings: Mapping[str, str] | None = None,
        node_settings: Mapping[int, Mapping[str, str]] | None = None,
        proxied: bool = False,
        start: bool = True,
    ) -> Cluster:
        one = Cluster(
            tmp_path_factory.mktemp("cluster"),
            broker_kind,
            roles,
            settings,
            node_settings,
            proxied=proxied,
            tools=tools,
            loop=request.config.getoption("--loop"),
        )
        made.append(one)
        if start:
            one.start()
        return one

    yield make
    for one in made:
        one.close()
