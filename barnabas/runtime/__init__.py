"""Clock, timers, randomness, threads and network behind one interface; work in slices. Imports nothing of the project."""
