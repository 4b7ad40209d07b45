"""Retrieval-augmented language models that are trained with their index.

epath reads `gs://` through gcsfs here. TensorFlow's client, which epath prefers
where TensorFlow is installed, returns no file from `open()`, and knows no
endpoint but Google's. Set EPATH_USE_TF=true to have it nevertheless.
"""

import os
import sys

os.environ.setdefault("EPATH_USE_TF", "false")

# epath reads the variable once: possibly before this package is imported, as
# where another library has used a path.
if _gpath := sys.modules.get("etils.epath.gpath"):
  _gpath._is_tf_installed.cache_clear()
