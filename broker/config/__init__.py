"""The broker's configuration: where properties come from, their typed values, listeners, warnings, descriptions, and the levels
of loggers.

It imports no other room.
"""
