"""Settings by name, gin files, and the configuration saved in MODEL_DIR.

A gin file starts with `from __gin__ import dynamic_registration` and imports
the modules whose arguments it binds, as in t5x. So the library has no gin
decorators and does not depend on gin. MODEL_DIR's configuration is JSON, which
imports nothing.

    gin files ──parsing──▶ Bindings ──build──▶ objects, such as a TrainConfig
                           ▲                        │
                           └─ MODEL_DIR/config.json ◀─ kept

`command_line` defines flags, so only commands import it. `realm_jax.load` reads
gin without flags.
"""

import os
import sys

from realm_jax.configuration.bindings import Bindings, ConfigurationError
from realm_jax.configuration.kept import Kept
from realm_jax.configuration.parsing import parsed

__all__ = ["Bindings", "ConfigurationError", "Kept", "parsed"]

# TensorFlow only reads text in this project. By default it reports, when it is
# imported, every accelerator library that it does not find. jax sets another
# value when it is imported; none of the imports above import jax, and if it
# came first, as in a notebook, its value is replaced.
_TF_LOGS = "TF_CPP_MIN_LOG_LEVEL"
if "jax" in sys.modules and os.environ.get(_TF_LOGS) == "1":
  del os.environ[_TF_LOGS]
os.environ.setdefault(_TF_LOGS, "3")
