"""The metadata log of a cluster: Raft among the controllers, by pysyncobj behind guards of our own.

From the inside out: `library.py` is all that knows pysyncobj's insides; `transport.py` lets no message reach it
unchecked (`append_guard.py`); `journal.py` and `files.py` keep its log; `election.py` asks
before a term is raised; `outbox.py` holds messages back until what they depend on is on disk; `engine.py` drives all
of it from the event loop; `raft_log.py` makes a MetadataLog of it. `peers.py` says what it needs from the network.
"""
