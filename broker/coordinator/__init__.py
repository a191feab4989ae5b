"""The log of a coordinator: an internal topic that state machines are rebuilt from."""
