"""One segment: its records, indexes and snapshots, in Kafka's formats."""
