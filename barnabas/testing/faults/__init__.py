"""Requests of a test broker: recorded, and made to go wrong.

`engine.py` is where to begin; a rule is in `rules.py`; `dispatcher.py` is where it happens.
"""

from barnabas.testing.faults.engine import Faults, Link
from barnabas.testing.faults.requests import Recorded, Requests
from barnabas.testing.faults.rules import Rule

__all__ = ["Faults", "Link", "Recorded", "Requests", "Rule"]
