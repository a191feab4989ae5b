"""The transaction coordinator, and what brokers ask coordinators about transactions.

`TransactionCoordinator` (coordinator.py) has a shard for each partition of __transaction_state that this broker leads (shard.py): the
decisions about one transactional id (transaction.py) by its state (state.py), its records in Kafka's format (records.py), and
the markers that end a transaction in its partitions (markers.py). The leaders of partitions ask the coordinator whether a
partition is part of a transaction, or add it (verification.py); before a produce batch_verifier.py has them asked.

It may import coordinator and what that may import.
"""
