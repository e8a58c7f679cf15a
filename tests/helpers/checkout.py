"""The tree that these tests lie in: it is what they test, wherever another one is installed.

pytest's own process finds it by `pythonpath` in pyproject.toml, what a test starts by PYTHONPATH. Packages
that PYTHONPATH brought along are found behind it.
"""

from __future__ import annotations

import os
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
# The product is found, and nothing else of the checkout: a person's folder is not on its path either.
_PRODUCT_FOLDERS = [str(CHECKOUT / folder) for folder in ("engine", "app")]
_PYTHONPATH_FOLDERS = [
    folder
    for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if folder and folder not in (*_PRODUCT_FOLDERS, str(CHECKOUT))
]
PRODUCT = os.pathsep.join([*_PRODUCT_FOLDERS, *_PYTHONPATH_FOLDERS])
# Helpers that are processes of their own import `tests` too.
PRODUCT_AND_TESTS = os.pathsep.join((str(CHECKOUT), PRODUCT))
