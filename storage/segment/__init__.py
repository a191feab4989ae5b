"""One segment of a log: records, indexes, transaction markers, in Kafka's formats. Imports disk."""
