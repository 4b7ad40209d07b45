"""Retrieval-augmented language models that are trained with their index.

`realm_jax.load(MODEL_DIR)` opens a trained run (docs/evaluation.md), and
`realm_jax.Bm25Search(CORPUS_DIR)` searches a corpus without one. Importing this
package imports none of the libraries that they need.

epath reads `gs://` through gcsfs here. TensorFlow's client, which epath prefers
where TensorFlow is installed, returns no file from `open()`, and knows no
endpoint but Google's. Set EPATH_USE_TF=true to have it nevertheless.
"""

import importlib
import os
import signal
import sys
from types import FrameType
from typing import Any

os.environ.setdefault("EPATH_USE_TF", "false")

# epath reads the variable once: possibly before this package is imported, as
# where another library has used a path.
if _gpath := sys.modules.get("etils.epath.gpath"):
  _gpath._is_tf_installed.cache_clear()


def _interrupted(number: int, frame: FrameType | None) -> None:
  """Ends a command that Ctrl-C interrupts while it is imported."""
  del frame
  print("interrupted", file=sys.stderr, flush=True)
  os._exit(128 + number)


# As `python -m` looks for a command. Its `command_line.run`, or its supervisor,
# takes the signal later. One in the background of a shell may ignore it.
if (
  sys.argv[:1] == ["-m"]
  and signal.getsignal(signal.SIGINT) is signal.default_int_handler
):
  signal.signal(signal.SIGINT, _interrupted)

# The names of `realm_jax/api.py` that a program needs.
_API = (
  "Answer",
  "Bm25Search",
  "Hit",
  "LoadedRun",
  "Result",
  "load",
)


def __getattr__(name: str) -> Any:
  """Imports what opens a run, and its libraries, when it is first used."""
  if name in _API:
    return getattr(importlib.import_module("realm_jax.api"), name)
  raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
