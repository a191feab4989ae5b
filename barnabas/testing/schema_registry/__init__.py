"""A schema registry for tests, in memory: the REST API that serializers of Avro, JSON Schema and Protobuf use (docs/schema-registry.md).

`registry.py` is the whole, `routes.py` its paths, `store.py` what it holds. `formats.py` says what a schema is, `avro.py` parses
Avro's, and `compatibility.py` holds a new version against earlier ones.
"""
