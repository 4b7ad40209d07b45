"""Retrieval-augmented language models that are trained with their index.

`realm_jax.load(MODEL_DIR)` opens a trained run (docs/evaluation.md). To
import this package imports none of the libraries that this needs.

epath reads `gs://` through gcsfs here. TensorFlow's client, which epath prefers
where TensorFlow is installed, returns no file from `open()`, and knows no
endpoint but Google's. Set EPATH_USE_TF=true to have it nevertheless.
"""

import importlib
import os
import sys
from typing import Any

os.environ.setdefault("EPATH_USE_TF", "false")

# epath reads the variable once: possibly before this package is imported, as
# where another library has used a path.
if _gpath := sys.modules.get("etils.epath.gpath"):
  _gpath._is_tf_installed.cache_clear()

# The names of `realm_jax/api.py` that a program needs.
_API = (
  "Answer",
  "Answered",
  "Explanation",
  "LoadedRun",
  "RetrievedBlock",
  "load",
)


def __getattr__(name: str) -> Any:
  """Imports what opens a run, and its libraries, when it is first used."""
  if name in _API:
    return getattr(importlib.import_module("realm_jax.api"), name)
  raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
