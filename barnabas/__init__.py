"""Barnabas: a Kafka-wire-compatible broker.

`barnabas start` runs one (barnabas/cli.py); the parts are barnabas.wire, .storage, .controller and .broker.
"""

from __future__ import annotations

import os.path

__version__ = "0.1.0"

# In a clone the parts lie beside this folder, which hides installed ones from a Python that is started there.
if not os.path.isdir(os.path.join(__path__[0], "wire")):
    __path__.append(os.path.dirname(__path__[0]))
