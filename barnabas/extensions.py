"""The extensions that a Barnabas node comes with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from barnabas.console.extension import ConsoleExtension
from barnabas.nats.extension import NatsExtension

if TYPE_CHECKING:
    from collections.abc import Sequence

    from barnabas.broker.extension import Extension

EXTENSIONS: Final[Sequence[Extension]] = (NatsExtension(), ConsoleExtension())
