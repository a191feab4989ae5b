"""A client of nats-server: the protocol, connections, logins and TLS. Imports nothing else of nats."""
