"""Files: the disk, which stay open, what is in memory, deletion."""
