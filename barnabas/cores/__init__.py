"""Several nodes of one configuration on one machine, under a supervisor (barnabas.cores).

`layout` derives each node's properties, `supervision` decides what to do when a node is ready or ends, `supervisor` runs the
processes, and `listener` serves their metrics and their health together.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

SUPERVISOR_PIPE: Final = "BARNABAS_SUPERVISOR_PIPE"  # the variable with a descriptor that is at its end when the supervisor has ended
NODE_FOLDER: Final = "node-"  # and the node's id: its part of each log directory


def names_in(directory: str | Path) -> list[str]:
    """Of all that is there. None where it can't be read: a broker takes such a directory offline, and says so."""
    try:
        return os.listdir(directory)
    except OSError:
        return []
