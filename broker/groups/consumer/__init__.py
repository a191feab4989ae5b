"""Consumer groups (KIP-848): the coordinator assigns the partitions, and a heartbeat is the one request of a member.

A group is the sum of its records: `group` holds the last value of each key, and what follows from all of them. `heartbeats` decides
about requests and timeouts, by `assignors` (who shall have which partitions) and `reconciliation` (how a member gets there),
`records` has the file format. `classic_members` serves members of the classic protocol in such a group, `conversion` makes one kind
of group from the other.

It may import what broker.groups may import, and its modules beside the requests.
"""
