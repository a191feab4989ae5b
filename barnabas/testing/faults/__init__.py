"""Faults of a test broker's requests, and the record of all requests.

Begin with `engine.py`; rules are in `rules.py`, and `dispatcher.py` applies them.
"""
