"""This broker among others: registration, the way to the controller and to peers, the metadata as clients see it."""
