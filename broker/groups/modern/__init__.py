"""What groups have in common whose coordinator assigns the work (Kafka's "modern groups": consumer, share, streams).

Such a group is the sum of its records, each of which sets one value (`group`); a decision is made on a draft of it (`draft`); its
members have timeouts (`timeouts`), and `lifecycle` commits decisions. `offset_checks` says who may commit offsets.

It may import what broker.groups may import.
"""
