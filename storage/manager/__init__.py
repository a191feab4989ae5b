"""All logs of a broker: directories, checkpoints, retention, moves. Imports log, segment and disk."""
