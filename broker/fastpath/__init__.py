"""Produce and Fetch requests of the usual shape, served and sent without the general codec."""
