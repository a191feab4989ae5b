"""The cases, one file per family of APIs. Importing them registers them."""

from __future__ import annotations

import importlib
import pkgutil


def load_all() -> None:
    """Import every case file beside this one."""
    for module in sorted(pkgutil.iter_modules(__path__), key=lambda found: found.name):
        importlib.import_module(f"{__name__}.{module.name}")
