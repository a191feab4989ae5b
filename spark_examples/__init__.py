"""PySpark pipelines over the stock Kafka connector. Start with `demo.py`."""
