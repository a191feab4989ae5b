"""The configuration that the controller's decisions depend on."""

from __future__ import annotations

from typing import Protocol


class ControllerSettings(Protocol):
    """`value`: the text of a property on this node, None for null."""

    @property
    def node_id(self) -> int: ...
    def value(self, name: str) -> str | None: ...
