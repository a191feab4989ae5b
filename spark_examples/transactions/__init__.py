"""Transactions: totals of what was committed, with aborts in between."""
