"""Features (KIP-584): which levels this release can run at, and what a new cluster begins with.

Only features that are implemented are supported; the levels that count stand in the image (FeatureLevelRecord).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from barnabas.controller.image import MetadataImage

METADATA_VERSION: Final = "metadata.version"
METADATA_VERSION_MIN: Final = 7  # 3.3-IV3
METADATA_VERSION_LEVEL: Final = 30  # 4.3-IV0
ELR_VERSION: Final = "eligible.leader.replicas.version"

# name -> (lowest, highest) level, as Kafka 4.3 states them
SUPPORTED_FEATURES: Final[Mapping[str, tuple[int, int]]] = {
    ELR_VERSION: (0, 1),
    METADATA_VERSION: (METADATA_VERSION_MIN, METADATA_VERSION_LEVEL),
}


def with_elr(image: MetadataImage) -> bool:
    """Whether eligible leader replicas are in use (KIP-966)."""
    return image.features.get(ELR_VERSION, 0) > 0
