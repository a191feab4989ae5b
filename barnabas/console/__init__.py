"""The web console of a broker: a read-only page for an operator, with the JSON and the server-sent events that it reads.

Owns its listener (`barnabas.console.listener`), what is asked of the cluster for a view, and the page in `page/`, which a browser
gets as it lies there. It is an extension (broker/extension.py): it imports from the broker, the broker does not know it, and what
other extensions report it shows by name. It asks brokers with Kafka's own requests, so that a view is right in a cluster as well.

All work for a request is bounded: pages of rows, records and bytes of one read, slices of the loop. It changes nothing.
"""
