"""Shared parts of the examples: a broker, a Spark session, the data, and a program's progress lines and checks."""
