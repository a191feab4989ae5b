"""Parts of the transaction coordinator; no API uses them yet.

Decisions about one transactional id (transaction) by its state (state), its records in Kafka's format (records), the markers
that end a transaction in its partitions (markers), and what the leaders of partitions ask about a transaction (verification).
It may import coordinator, partitions, cluster, requests and config.
"""
