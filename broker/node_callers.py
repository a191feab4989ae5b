"""Nodes that call a listener for clients as if it were a controller's: somebody has named its port in
controller.quorum.voters. They are told so in their own protocol, and so stop trying twice a second without a word; the log
here names them once a minute.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from barnabas.controller.link.framing import PREFACE, encode_frame
from barnabas.controller.link.messages import REFUSED, Refused, encode
from barnabas.controller.link.refusals import VOTERS, RefusalLog

if TYPE_CHECKING:
    from barnabas.storage.runtime import Runtime

_CORRECTION: Final = "controller.quorum.voters (or controller.quorum.bootstrap.servers) must name the port of the controller listener"


class NodeCallers:
    """Of one broker."""

    def __init__(self, runtime: Runtime) -> None:
        self._refusals = RefusalLog(runtime)

    def refuse(self, host: str, listener: str) -> bytes:
        """What to answer a node at `host` before its connection is closed."""
        self._refusals.warn(
            host,
            f"a node of a cluster calls the listener {listener}, which is for clients: its properties are wrong, "
            f"{_CORRECTION}",
        )
        reason = f"{listener} is a listener for clients, and {_CORRECTION}"
        return PREFACE + encode_frame(REFUSED, encode(Refused(VOTERS, reason)), None)
