"""NATS subjects as topics: a client of nats-server, and the bindings between subjects and the topics led here."""
