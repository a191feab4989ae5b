"""Streams groups (KIP-1071): the coordinator assigns the tasks of a Kafka Streams application to its members.

A group is the sum of its records, as in groups/modern: `group` has the last value of each key, `values` and `records` say what they
are. `heartbeats` decides about requests and timeouts, by `topology` (the topics and tasks of an application), `assignor` (who shall
have which tasks) and `reconciliation` (how a member gets there).

It may import what broker.groups may import, and its modules beside the requests.
"""
