"""The group coordinator: groups and their offsets, one state machine per partition of __consumer_offsets.

Requests are decided (classic, offset_requests), appended, and replayed into the state (group_store, group, offsets); records has the
file format. Groups whose coordinator assigns the work are in rooms of their own (consumer, share, streams), on what they have in common
(modern). It may import share_coordinator and what that may import.
"""
