"""The handlers: a file for each API, or for a few that are one concept, with their names, versions, what each version changed,
and a function under `@api` for each.

A file is loaded when one of its APIs is first asked for (requests/registry.py). It gets all of Services in its context; state
belongs to the rooms below. It may import all rooms but another handler, the connection and the dispatcher.
"""
