"""A client of nats-server: the protocol, connections and who we are there."""
