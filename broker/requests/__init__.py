"""Requests on the way to their handlers and back: registrations, context, dispatcher, work in slices, bounds.

It may import config alone.
"""
