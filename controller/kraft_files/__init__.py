"""Apache Kafka's own metadata log: read and written, so that either takes over the other's directory."""
