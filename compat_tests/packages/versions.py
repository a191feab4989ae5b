"""The version, which every package has to have."""

from __future__ import annotations

import re

from compat_tests.packages.build import ROOT

# In each file the first match is the version.
_PLACES = {
    "barnabas/__init__.py": r'__version__ = "(.+)"',
    "pyproject.toml": r'version = "(.+)"',
    "deploy/helm/barnabas/Chart.yaml": r"\nversion: (.+)",
    "deploy/junit/pom.xml": r"<version>(.+)</version>",
    "deploy/junit/README.md": r"<version>(.+)</version>",
    "deploy/npm/package.json": r'"version": "(.+)"',
    "deploy/go/README.md": r"testbroker@v(\S+)",
    "compat_tests/languages/java/pom.xml": r"barnabas-junit</artifactId>\s*<version>(.+)</version>",
    "compat_tests/languages/go/go.mod": r"testbroker v(\S+)",
    "docs/testing-languages.md": r"barnabas-junit:([\d.]+)",
}


def versions() -> dict[str, str]:
    """By the file that says it."""
    found = {}
    for place, pattern in _PLACES.items():
        match = re.search(pattern, (ROOT / place).read_text())
        found[place] = match.group(1) if match else "none"
    return found
