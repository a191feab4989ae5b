"""Tiered topics of this broker (KIP-405): the tier's settings, and which partitions it works on. Loaded only where
`remote.log.storage.system.enable` is on.

Imports partitions, config and below; storage/tier does the work.
"""
