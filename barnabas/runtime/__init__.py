"""Clock, timers, randomness, threads and network behind one interface; work in slices; an HTTP server. Imports nothing of the
project."""
