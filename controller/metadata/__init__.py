"""The cluster's metadata: the image, its records, the controller that changes it, a single node's log."""
