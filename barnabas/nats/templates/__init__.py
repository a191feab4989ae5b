"""Topics that a template makes of subjects."""
