"""The whole state of an in-process broker, taken while it runs: the files of its nodes, and the schemas of its registry.

All that was acknowledged to clients is in the files, so a broker that starts with them continues from there: topics, records, committed
offsets, configs, producer ids. Members of groups are not in it; they join again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from barnabas.testing.memory_disk import MemoryDisk

if TYPE_CHECKING:
    from collections.abc import Sequence

    from barnabas.storage.disk.disk import Disk
    from barnabas.testing.broker_node import BrokerNode
    from barnabas.testing.schema_registry.store import State

_SKIPPED = frozenset({".lock"})


class Snapshot:
    """Taken by `Broker.snapshot`; for `Broker.restore` and `Broker(snapshot=...)`, as often as one likes."""

    def __init__(self, stores: Sequence[MemoryDisk], log_dirs: Sequence[str]) -> None:
        self._stores = list(stores)
        self._log_dirs = list(log_dirs)
        self.schemas: State | None = None  # of a schema registry that was used

    @property
    def nodes(self) -> int:
        return len(self._stores)

    @property
    def bytes_count(self) -> int:
        """Of all files together."""
        return sum(store.bytes_count() for store in self._stores)

    def check(self, nodes: Sequence[BrokerNode]) -> None:
        """ValueError where there are more or fewer nodes."""
        if len(nodes) != self.nodes:
            raise ValueError(f"a snapshot of {self.nodes} nodes can't be restored by {len(nodes)}")

    def put(self, nodes: Sequence[BrokerNode]) -> None:
        """Give the nodes, which do not run, these files. ValueError as `check`."""
        self.check(nodes)
        for node, store, log_dir in zip(nodes, self._stores, self._log_dirs, strict=True):
            if node.is_in_memory and log_dir == node.log_dir:
                node.disk = store.copy()
            else:
                if node.disk.exists(node.log_dir):
                    node.disk.remove_tree(node.log_dir)
                _copy(store, log_dir, node.disk, node.log_dir)


def take_snapshot(nodes: Sequence[BrokerNode]) -> Snapshot:
    """On the loop: nothing changes meanwhile."""
    stores = []
    for node in nodes:
        if isinstance(node.disk, MemoryDisk):
            stores.append(node.disk.copy())
        else:
            store = MemoryDisk(power_failures=False)
            _copy(node.disk, node.log_dir, store, node.log_dir)
            stores.append(store)
    return Snapshot(stores, [node.log_dir for node in nodes])


def _copy(source: Disk, source_path: str, target: Disk, target_path: str) -> None:
    target.make_directory(target_path, parents=True)
    for name in source.list(source_path):
        here, there = f"{source_path}/{name}", f"{target_path}/{name}"
        if source.is_directory(here):
            _copy(source, here, target, there)
        elif name not in _SKIPPED:
            target.write_file(there, source.read_file(here), sync=False)
