"""The broker's configuration: sources, typed values, listeners, warnings, descriptions."""
