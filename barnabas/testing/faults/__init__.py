"""Requests of a test broker: recorded, and made to go wrong.

`engine.py` is where to begin; a rule is in `rules.py`; `dispatcher.py` is where it happens.
"""
