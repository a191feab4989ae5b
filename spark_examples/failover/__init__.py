"""Reading while a cluster fails over."""
