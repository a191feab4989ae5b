"""CRC-32C: the compiled module of the package crc32c.

Importing the package also imports what its command-line tool needs (argparse, importlib.metadata, email), which takes longer
than all other third-party imports of a broker. So the compiled module is loaded alone; where it is not found, the package is
imported.
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
