"""The broker's configuration: sources of properties, their typed values, listeners, warnings, entries of DescribeConfigs, and
levels of loggers.

It imports no other room.
"""
