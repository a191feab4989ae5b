"""Core bindings: messages of subscriptions on their way into the logs.

Owns subscriptions, encoders' sinks, lanes and batches, acknowledgements and ids, queue groups, templates, standbys, gaps and
backpressure. Imports the client, records, cluster and the modules at the root of nats; jetstream only for searches in logs.
"""
