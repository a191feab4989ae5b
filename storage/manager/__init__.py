"""All logs of a broker: directories, checkpoints, retention, moves."""
