"""One partition's log: append, read, flush, truncate, recover."""
