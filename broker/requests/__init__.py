"""From a frame to its handler: the registered APIs, the dispatcher, a request's context, handlers in slices.

It may import config alone.
"""
