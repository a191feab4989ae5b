"""Name of the test property with a line for the summary of the run; pytest passes it from the worker to the summary."""

from __future__ import annotations

SUMMARY = "spark example"
