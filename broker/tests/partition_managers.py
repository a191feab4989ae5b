"""Partition managers without a node: their metadata has no other brokers."""

from __future__ import annotations

from collections.abc import Mapping

from barnabas.broker.partitions.alter_partition import AlterPartitionManager
from barnabas.broker.partitions.isr_hedge import IsrHedge
from barnabas.broker.partitions.isr_rules import IsrRules
from barnabas.broker.partitions.partition_manager import PartitionManager
from barnabas.controller.metadata.image import MetadataImage
from barnabas.runtime.interface import Runtime
from barnabas.storage.manager.manager import LogManager


def make_partition_manager(
    log_manager: LogManager, runtime: Runtime, configs: Mapping[str, str] | None = None
) -> PartitionManager:
    """Of node 1, whose topics all have these configs."""
    image = MetadataImage()
    return PartitionManager(
        log_manager,
        IsrRules(
            1,
            runtime.monotonic,
            lambda: image,
            IsrHedge(runtime),
            may_take_over=lambda *_: True,
            on_append_failed=lambda: None,
        ),
        AlterPartitionManager(runtime, 1, lambda *_: None, lambda: -1),
        lambda _image, _topic: configs or {},
        runtime,
    )
