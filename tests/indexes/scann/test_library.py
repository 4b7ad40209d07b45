"""ScaNN is imported without TensorFlow, which takes seconds."""

import subprocess
import sys

_PROGRAM = """
import importlib.util, sys
from realm_jax.indexes.scann import library as scann
library, proto = scann.library(), scann.proto("proto.scann_pb2")
print(library.__name__, proto.__name__)
print("tensorflow" in sys.modules)
print(importlib.util.find_spec("tensorflow") is not None)
"""


def test_scann_leaves_tensorflow_out_and_to_others(command_environment):
  done = subprocess.run(
    [sys.executable, "-c", _PROGRAM],
    check=True,
    capture_output=True,
    text=True,
    env=command_environment,
  )
  assert done.stdout.split() == [
    "scann.scann_ops.py.scann_ops_pybind",
    "scann.proto.scann_pb2",
    "False",
    "True",
  ]
