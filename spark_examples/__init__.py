"""PySpark pipelines over the stock Kafka connector, one in each folder. Start with README.md."""
