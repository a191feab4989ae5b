"""Brokers in other processes: Barnabas, Apache Kafka, or one at an address. They are reached over their ports."""
