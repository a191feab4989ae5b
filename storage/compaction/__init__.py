"""The log cleaner (`cleanup.policy=compact`): of each key the last record stays. Imports all other rooms."""
