"""What a node says that ends because its metadata can't be written: which disk it is, and what to do."""

from __future__ import annotations

import errno


def why_it_ends(error: Exception, directory: str) -> str:
    """`directory` holds the metadata. Anything but an OSError says itself what is wrong."""
    if not isinstance(error, OSError):
        return str(error)
    text = f"the metadata can't be written to {directory}: {error.strerror or error}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{text}. Make room there and start this node again; it has lost nothing"
    if error.errno == errno.EFBIG:
        return f"{text}. Raise this process's limit of a file's size (ulimit -f) and start this node again"
    return f"{text}. See to the disk (the system's log may say more), then start this node again"
