"""One partition's log: append, read, sync, truncate, recover. Imports segment and disk."""
