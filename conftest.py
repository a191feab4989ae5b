"""For all tests: a property is never refused because the machine was busy for a moment."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("barnabas", deadline=None)
settings.load_profile("barnabas")
