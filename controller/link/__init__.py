"""Links between the nodes of a cluster, over controller listeners.

The room owns the connections between nodes, the formation of the quorum, and the replication of committed metadata to
brokers that do not vote. It imports controller/metadata and controller/raft.

    links = Links(runtime, Identity(...), secret=bytes, tls=client_context)        links.py
    bootstrap = QuorumBootstrap(runtime, disk, directory, links, done, failed)     quorum_bootstrap.py; controllers
    bootstrap.start()
    Discovery(links, targets, done)                                                followed_log.py; other nodes
    links.listen(host, port, tls=server_context)                                   controllers
    links.call([(host, port, node id or None), ...])

    MetadataFeed(links, raft_log, lambda: controller.image.offset + 1)             metadata_feed.py; controllers
    FollowedMetadataLog(links)                                                     followed_log.py; other nodes

`QuorumBootstrap` calls back with the voters once Raft's files are on disk, so RaftMetadataLog takes no genesis. `links` is its
RaftPeers, and `links.attach_raft(raft_log)` lets it receive. `links.leader.announce(term, node_id)` tells all linked nodes which
controller is active.
"""
