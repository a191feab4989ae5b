"""Duties of the active controller besides metadata: broker sessions, periodic elections, the transfer of leadership.

Imports the rooms metadata, operations, link and raft.
"""
