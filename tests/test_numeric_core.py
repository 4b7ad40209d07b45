"""The numeric core is imported where TensorFlow, seqio and gin do not exist."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

# A process of its own, because this one has imported TensorFlow long before.
_PROGRAM = """
import importlib, pkgutil, sys

class Absent:
  def find_spec(self, name, path=None, target=None):
    if name.partition(".")[0] in {absent}:
      raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
for name in {core}:
  module = importlib.import_module(name)
  inside = pkgutil.walk_packages(getattr(module, "__path__", ()), f"{{name}}.")
  for inner in inside:
    importlib.import_module(inner.name)
"""
_ABSENT = (
  *("apache_beam", "clu", "faiss", "gin", "scann", "sentencepiece"),
  *("seqio", "tensorflow", "tensorflow_datasets", "tensorflow_text"),
  *("sentencex", "xmanager"),
)
# What a user of the models, losses and steps imports.
_CORE = (
  "realm_jax.indexes.exact",
  "realm_jax.models",
  "realm_jax.objectives",
  "realm_jax.partitioning",
  "realm_jax.training.stages.pretraining",
  "realm_jax.training.step",
)


def test_the_core_needs_no_other_libraries(
  project_dir: Path, command_environment: dict[str, str]
):
  program = _PROGRAM.format(absent=_ABSENT, core=_CORE)
  subprocess.run(
    [sys.executable, "-c", program],
    cwd=project_dir,
    env=command_environment,
    check=True,
    timeout=300,
  )
