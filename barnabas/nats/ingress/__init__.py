"""Core bindings: from the messages of subscriptions to records in the logs.

Owns subscriptions, lanes and their batches, acknowledgements and message ids, queue groups, templates, standbys, gaps and
backpressure. Imports binding, client, records and the modules at the root of nats.
"""
