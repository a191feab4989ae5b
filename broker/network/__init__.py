"""Client connections: listening, receiving, sending, limits.

`listeners` accepts connections. `session` decides which request is served next, without I/O. `connection` is its edge to the
event loop, with `response_writer`, `connection_limits` and `memory_pool`; `wrong_protocol` refuses peers that do not speak
Kafka's protocol.

It may import requests, quotas, security and config.
"""
