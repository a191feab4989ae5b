"""CRC-32C, from the package crc32c without the rest of it.

Importing that package also imports what its own command needs (argparse, importlib.metadata, email), which takes longer
than everything else a broker loads from outside. Its compiled module is all that is wanted, so it is loaded by itself;
where it lies elsewhere than expected the package is imported after all.
"""

from __future__ import annotations

from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from typing import TYPE_CHECKING

__all__ = ["crc32c"]

_PACKAGE = "crc32c"
_COMPILED = "_crc32c"

if TYPE_CHECKING:
    from crc32c import crc32c
else:

    def _load():
        package = PathFinder.find_spec(_PACKAGE)
        places = package.submodule_search_locations if package is not None else None
        spec = PathFinder.find_spec(_COMPILED, list(places)) if places else None
        if spec is None or spec.loader is None:
            import crc32c

            return crc32c.crc32c
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.crc32c

    crc32c = _load()
