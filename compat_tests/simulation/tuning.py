"""Small sizes for the code under test, so that a simulation reaches what otherwise takes megabytes: compacted
journals, snapshots in several chunks, followers that have fallen behind."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from barnabas.controller.link import metadata_feed
from barnabas.controller.metadata import controller
from barnabas.controller.metadata.committed_groups import CommittedGroups
from barnabas.controller.raft import engine, snapshots, transport
from barnabas.controller.raft.raft_log import RaftMetadataLog


@contextmanager
def small(chance: random.Random) -> Iterator[None]:
    """Sets small sizes for two seeds of three; the others have the real sizes."""
    with ExitStack() as stack:
        if chance.random() < 0.67:
            constants: list[tuple[Any, str, int]] = [
                (snapshots, "CHUNK_BYTES", chance.choice((100, 300, 700, 5000))),
                # Chunks that arrive in one step leave no time for other events between them; megabytes do.
                (transport, "STEP_BYTES_MAX", chance.choice((200, 200, 800, 8 << 20))),
                (engine, "JOURNAL_TO_SNAPSHOT", chance.choice((0, 1))),
                (snapshots, "KEPT_ENTRIES", chance.choice((1, 5, 30))),
                (metadata_feed, "METADATA_PIECE_BYTES", chance.choice((200, 3000))),
            ]
            for module, name, value in constants:
                assert hasattr(module, name), name
                stack.enter_context(mock.patch.object(module, name, value))
            defaults = RaftMetadataLog.__init__.__kwdefaults__
            assert defaults is not None
            assert "journal_bytes_min" in defaults
            bound = chance.choice((300, 1000, 4000))
            stack.enter_context(mock.patch.dict(defaults, {"journal_bytes_min": bound}))
            kept = (chance.choice((500, 3000)),)
            stack.enter_context(mock.patch.object(CommittedGroups.__init__, "__defaults__", kept))
            stack.enter_context(mock.patch.object(controller, "STEP_RECORDS", chance.choice((1, 2, 1000))))
        yield
