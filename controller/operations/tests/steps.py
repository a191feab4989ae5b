"""Operations in steps (metadata/decision.py), taken as the controller takes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec

from barnabas.controller.metadata.decision import Decision, Steps
from barnabas.controller.metadata.image import MetadataDelta, MetadataImage

R = TypeVar("R")


def take(steps: Steps[R], replay: Callable[[msgspec.Struct], object], size: int = 1) -> Decision[R]:
    """What the steps are together; each has `size` records, which are replayed before the next one is decided."""
    records: list[msgspec.Struct] = []
    replayed = 0
    while True:
        try:
            records.append(next(steps))
        except StopIteration as end:
            for record in records[replayed:]:
                replay(record)
            return Decision(records, end.value)
        if len(records) == replayed + size:
            for record in records[replayed:]:
                replay(record)
            replayed = len(records)


def decided(steps: Steps[R]) -> Decision[R]:
    """As `take`, on an image that stays as it is."""
    return take(steps, lambda _record: None)


def apply_steps(image: MetadataImage, steps: Steps[R], size: int = 1) -> Decision[R]:
    """As `take`, on this image."""

    def replay(record: msgspec.Struct) -> None:
        image.replay(record, MetadataDelta())
        image.offset += 1

    return take(steps, replay, size)
