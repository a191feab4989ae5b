"""The object tier (KIP-405): closed segments of tiered topics in an object store, and reading them from there.

Imports the rooms below: disk, segment, log and manager. Of Barnabas nothing of it is loaded unless
`remote.log.storage.system.enable` is on.
"""
