"""The fixtures of storage's tests."""

from __future__ import annotations

from barnabas.storage.tests.workshop import make_workshop, workshop

__all__ = ["make_workshop", "workshop"]
