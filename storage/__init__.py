"""Logs on the disk, in Kafka's formats. Rooms, each importing those before it: disk, segment, log, manager, compaction | tier."""
