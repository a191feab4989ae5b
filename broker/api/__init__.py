"""The handlers, one file per API: name, versions, what each version changed, and a function under `@api`.

A handler is loaded when its API is first asked for (requests/registry.py). It gets all of Services in its context; state
belongs to the rooms below. It may import all rooms but another handler, the connection and the dispatcher.
"""
