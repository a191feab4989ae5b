"""The cluster's metadata: its image and records, the controller that changes it, and the log of a single node.

Imports no other room of the controller.
"""
