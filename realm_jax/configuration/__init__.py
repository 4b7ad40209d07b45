"""Command lines and gin: what every entry point shares.

A gin file opens with `from __gin__ import dynamic_registration` and imports
the modules whose arguments it binds, as in t5x, so nothing in the library is
decorated and nothing in it knows gin.

`names` binds settings by their names, `parsing` reads gin files and bindings,
and `runs` knows what a MODEL_DIR keeps and what a command makes of it. The
names of `command_line` define flags, so they are imported when they are first
used: `realm_jax.load` parses gin where there are no flags.
"""

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

from realm_jax.configuration.parsing import (
  ConfigurationError,
  bound_lines,
  configured,
  message_of,
  names_in,
  parsed,
)
from realm_jax.configuration.runs import KeptModel, kept_files, parsed_for_run

if TYPE_CHECKING:
  from realm_jax.configuration.command_line import (
    call,
    define_run_flags,
    exit_code,
    expand_gin_flags,
    given,
    parsed_from_flags,
    require_run,
    run,
  )

__all__ = [
  "ConfigurationError",
  "KeptModel",
  "bound_lines",
  "call",
  "configured",
  "define_run_flags",
  "exit_code",
  "expand_gin_flags",
  "given",
  "kept_files",
  "message_of",
  "names_in",
  "parsed",
  "parsed_for_run",
  "parsed_from_flags",
  "require_run",
  "run",
]

# TensorFlow only reads text in this project. Without this it reports at its
# import every accelerator library that it does not find. jax sets another
# value when it is imported, which none of the imports above does; where jax
# came first, as in a notebook, its value is replaced.
_TF_LOGS = "TF_CPP_MIN_LOG_LEVEL"
if "jax" in sys.modules and os.environ.get(_TF_LOGS) == "1":
  del os.environ[_TF_LOGS]
os.environ.setdefault(_TF_LOGS, "3")


def __getattr__(name: str) -> Any:
  """Imports a name of `command_line`, which defines flags."""
  if name in __all__:
    module = importlib.import_module("realm_jax.configuration.command_line")
    return getattr(module, name)
  raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
