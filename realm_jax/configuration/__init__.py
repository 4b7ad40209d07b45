"""Settings by name, gin files, and what a MODEL_DIR keeps of them.

A gin file opens with `from __gin__ import dynamic_registration` and imports
the modules whose arguments it binds, as in t5x, so nothing in the library is
decorated and nothing in it knows gin. What a run keeps is JSON, which imports
nothing.

    gin files ──parsing──▶ Bindings ──build──▶ objects, such as a TrainConfig
                           ▲                        │
                           └─ MODEL_DIR/config.json ◀─ kept

`command_line` defines flags, so commands alone import it: `realm_jax.load`
reads gin without flags.
"""

import os
import sys

from realm_jax.configuration.bindings import Bindings, ConfigurationError
from realm_jax.configuration.kept import Kept
from realm_jax.configuration.parsing import parsed

__all__ = ["Bindings", "ConfigurationError", "Kept", "parsed"]

# TensorFlow only reads text in this project. Without this it reports at its
# import every accelerator library that it does not find. jax sets another
# value when it is imported, which none of the imports above does; where jax
# came first, as in a notebook, its value is replaced.
_TF_LOGS = "TF_CPP_MIN_LOG_LEVEL"
if "jax" in sys.modules and os.environ.get(_TF_LOGS) == "1":
  del os.environ[_TF_LOGS]
os.environ.setdefault(_TF_LOGS, "3")
