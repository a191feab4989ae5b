"""What a topic in the object store is called: `<cluster id>/topics/<topic id>`, its name, partitions and configs as JSON.

The leader of partition 0 writes it when the topic is first tiered, and when one of these changes. It is read by what has the bucket
alone (`barnabas tier`), and by a restore, to tell a topic of which nothing was tiered from one that is not there (restore.py).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec

from barnabas.runtime.backoff import Backoff
from barnabas.runtime.interface import Runtime
from barnabas.storage.tier.keys import ClusterKeys
from barnabas.storage.tier.object_store import ObjectMissing, ObjectStore

logger = logging.getLogger("barnabas.tier")

SIZE_MAX: Final = 1024 * 1024
RETRY_FIRST_S: Final = 0.5
RETRY_LONGEST_S: Final = 60.0


class CorruptDescription(ValueError):
    """Not a description, or not this topic's."""


class TopicDescription(msgspec.Struct, frozen=True, kw_only=True):
    """See the module. `configs`: those set on the topic itself."""

    topic_id: str
    name: str
    partitions: int
    configs: dict[str, str]


_DECODER: Final = msgspec.json.Decoder(TopicDescription)  # see manifest.py


def read_description(store: ObjectStore, keys: ClusterKeys, topic_id: str) -> TopicDescription | None:
    """Blocking; None where there is none. ObjectStoreError, CorruptDescription."""
    try:
        data, _ = store.get(keys.description(topic_id), SIZE_MAX)
    except ObjectMissing:
        return None
    try:
        found = _DECODER.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise CorruptDescription(f"{keys.description(topic_id)}: {error}") from error
    if found.topic_id != topic_id or found.partitions < 1:
        raise CorruptDescription(f"{keys.description(topic_id)} is of {found.topic_id}")
    return found


class Descriptions:
    """Writes them, each until the store has it. All calls on the loop."""

    def __init__(self, runtime: Runtime, store: ObjectStore, cluster_id: Callable[[], str]) -> None:
        self._runtime = runtime
        self._store = store
        self._cluster_id = cluster_id
        self._wanted: dict[str, TopicDescription] = {}  # by topic id: what the store has, or gets next
        self._busy: set[str] = set()
        self._is_stopped = False

    def stop(self) -> None:
        """Begin nothing more."""
        self._is_stopped = True

    def write(self, description: TopicDescription) -> None:
        """Unless it is what was written here last."""
        topic_id = description.topic_id
        if self._wanted.get(topic_id) == description:
            return
        self._wanted[topic_id] = description
        if topic_id not in self._busy:
            self._busy.add(topic_id)
            self._write(topic_id, Backoff(self._runtime, RETRY_FIRST_S, RETRY_LONGEST_S))

    def forget(self, topic_id: str) -> None:
        """Another broker leads, or the topic is deleted: what is written later is written anew."""
        self._wanted.pop(topic_id, None)

    def _write(self, topic_id: str, backoff: Backoff) -> None:
        wanted = self._wanted.get(topic_id)
        if wanted is None or self._is_stopped:
            self._busy.discard(topic_id)
            return

        def written(_result: object, error: BaseException | None) -> None:
            if error is not None:
                logger.warning("%s is not described in remote storage yet: %s", wanted.name, error)
                self._runtime.call_later(backoff.next_s(), partial(self._write, topic_id, backoff))
            elif self._wanted.get(topic_id) not in (None, wanted):
                self._write(topic_id, backoff)
            else:
                self._busy.discard(topic_id)

        key = ClusterKeys(self._cluster_id()).description(topic_id)
        content = msgspec.json.encode(wanted)
        self._runtime.run_in_thread(
            partial(self._store.put, key, [content]), written, remote=True, background=True
        )
