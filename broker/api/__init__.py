"""The handlers, one file per API: broker/requests/registry.py loads each when it is first asked for."""
