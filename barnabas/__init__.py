"""Barnabas: a Kafka-wire-compatible broker.

`barnabas start` runs one (barnabas/cli.py); the parts are barnabas.wire, .storage, .controller and .broker.
"""

from __future__ import annotations

__version__ = "0.1.0"
