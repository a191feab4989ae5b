"""Operations in steps (metadata/decision.py), taken one record at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec

from barnabas.controller.metadata.decision import Decision, Steps
from barnabas.controller.metadata.image import MetadataDelta, MetadataImage

R = TypeVar("R")


def take(steps: Steps[R], replay: Callable[[msgspec.Struct], object]) -> Decision[R]:
    """What the steps are together; each record is replayed before the next one is decided."""
    records: list[msgspec.Struct] = []
    while True:
        try:
            record = next(steps)
        except StopIteration as end:
            return Decision(records, end.value)
        records.append(record)
        replay(record)


def decided(steps: Steps[R]) -> Decision[R]:
    """As `take`, on an image that stays as it is."""
    return take(steps, lambda _record: None)


def apply_steps(image: MetadataImage, steps: Steps[R]) -> Decision[R]:
    """As `take`, on this image."""

    def replay(record: msgspec.Struct) -> None:
        image.replay(record, MetadataDelta())
        image.offset += 1

    return take(steps, replay)
