"""Share partitions on their leader (KIP-932): which records of a partition the members of a share group have, and may get.

share_partition.py decides, without I/O and clock, over in_flight.py, the ranges of records that are neither finished nor new;
acquisition.py has the rules by which records are handed out.
manager.py has the share partitions that this broker leads, whose state it reads and writes through the share coordinator;
sessions.py the share sessions of connections. fetch.py reads the log and acquires what it has read.

It may import share_coordinator, fetch and what these may import.
"""
