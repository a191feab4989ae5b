"""Share groups (KIP-932): their members, and the partitions that have a delivery state. Records are delivered by broker.share_partitions.

A group is the sum of its records, as in groups/modern: `group` has the last value of each key, `values` and `records` say what they
are. `heartbeats` decides about requests and timeouts, by `assignor`; `state_topics` decides which partitions are initialized, and
`offsets` serves the requests about start offsets, both through the share coordinator's client.

It may import what broker.groups may import, and its modules beside the requests.
"""
