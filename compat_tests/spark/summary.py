"""The name under which a test reports a line for the end of the run; pytest takes it from worker to summary."""

from __future__ import annotations

SUMMARY = "spark example"
