"""The controller: the cluster's metadata, how it is decided, kept and replicated.

Rooms, each importing only those below it: sessions; kraft_files and link; raft; operations; extension; config; metadata.
"""
