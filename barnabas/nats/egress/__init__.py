"""Topics out to subjects: committed records published as messages.

Owns publishers, their positions (offsets of a consumer group) and the form of messages. Imports binding, client, records,
cluster and the modules at the root of nats.
"""
