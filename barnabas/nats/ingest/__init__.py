"""Messages on their way into the partitions led here: lanes, acknowledgements, ids seen before."""
