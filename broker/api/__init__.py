"""The handlers, one file per API: broker/registry.py loads each when it is first asked for."""
