"""How costs grow with sizes, as curves beside Apache Kafka."""
