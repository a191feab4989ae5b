"""The metadata log of a cluster: Raft among the controllers, with pysyncobj and checks around it.

From the inside out: `library.py` alone uses pysyncobj's internals; `transport.py` checks every message for it;
`journal.py` and `files.py` keep its log; `election.py` adds pre-vote; `outbox.py` holds messages back
until what they depend on is on disk; `engine.py` drives all of it from the event loop, in the states of `voter_state.py`;
`raft_log.py` makes a MetadataLog of it. `voters.py` has the rules by which voters come and go, `voter_changes.py` the requests
for it. `peers.py` is its interface to the network. The room imports controller/metadata.
"""
