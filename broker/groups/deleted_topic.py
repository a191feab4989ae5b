"""What the coordinator tells a shard of a topic that is gone."""

from __future__ import annotations

import msgspec


class DeletedTopic(msgspec.Struct, frozen=True):
    """By name, as offsets are committed, and by id, as newer ones are."""

    name: str
    topic_id: bytes
