"""NATS subjects as topics: an extension of a broker, with a client of nats-server and the bindings of topics to subjects."""
