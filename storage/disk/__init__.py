"""Files and the machine's disk: reading, writing, open files, page cache, deletion, checkpoint files. Imports no other room."""
