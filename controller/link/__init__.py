"""What connects the nodes of a cluster: links on the controller listener, the forming of the quorum, and the way
of committed metadata to brokers that do not vote.

    links = Links(runtime, Identity(...), secret=bytes, tls=client_context)        links.py
    formation = Formation(runtime, disk, journal_directory, links, done, failed)   quorum_bootstrap.py; controllers
    formation.start()
    Discovery(links, targets, done)                                                quorum_bootstrap.py; other nodes
    links.listen(host, port, tls=server_context)                                   controllers
    links.call([(host, port, node id or None), ...])

    MetadataFeed(links, raft_log, lambda: controller.image.offset + 1)             metadata_feed.py; controllers
    FollowedMetadataLog(links)                                                     followed_log.py; other nodes

`Formation` tells the voters, and Raft's files stand on disk then: RaftMetadataLog takes no genesis. `links` is its
RaftPeers, and `links.raft = raft_log` lets it receive. `links.leader.announce(term, node_id)` tells everybody who
leads.
"""
