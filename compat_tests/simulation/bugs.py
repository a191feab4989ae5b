"""Known bugs, put back into the code from outside: the simulator is worth something when it finds each of them.

They are replacements of single methods, here and nowhere in the product.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

BUGS: dict[str, Callable[[], object]] = {}


@contextmanager
def put_in(bug: str) -> Iterator[None]:
    """While the simulation runs; the empty name is no bug."""
    yield
