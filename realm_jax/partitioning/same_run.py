"""What all processes of a run must have in common."""

import dataclasses
import importlib.metadata
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax

from realm_jax.partitioning.agreement import Agreement

_PROJECT_DIR = Path(__file__).resolve().parents[2]
# Directories may be mounted elsewhere on each host, and flax adds the others.
_MAY_DIFFER = frozenset(
  {"corpus_dir", "pretraining_corpus_dir", "question_files", "parent", "name"}
)


def require_same(
  agreement: Agreement, configs: Mapping[str, Any], facts: Mapping[str, str]
) -> None:
  """Compares the code, the configuration and further facts of all processes.

  Args:
    agreement: Decisions that all processes take together.
    configs: Values by name. Of a dataclass the fields are compared, and theirs.
    facts: Further values, by what they are called in the error.

  Raises:
    ProcessesError: A value differs.
  """
  if agreement.count == 1:
    return
  agreement.require_same(
    {
      "the version of jax": jax.__version__,
      "the commit of realm_jax": commit(),
      "the number of devices": str(jax.device_count()),
      **facts,
      **dict(
        pair for name, value in configs.items() for pair in _values(name, value)
      ),
    }
  )


def commit() -> str:
  """Returns the commit of a clone, or else the version of this package."""
  if (_PROJECT_DIR / ".git").exists():
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    try:
      done = subprocess.run(
        command, cwd=_PROJECT_DIR, capture_output=True, text=True, check=True
      )
      return done.stdout.strip()
    except (OSError, subprocess.CalledProcessError):
      pass  # git is missing, or does not trust the folder's owner.
  return importlib.metadata.version("realm_jax")


def _values(name: str, value: Any) -> Iterator[tuple[str, str]]:
  """Yields the name and value of each field, and of their fields."""
  if not dataclasses.is_dataclass(value):
    yield name, repr(value)
    return
  yield f"the type of {name}", type(value).__name__
  for field in dataclasses.fields(value):
    if field.name not in _MAY_DIFFER:
      yield from _values(f"{name}.{field.name}", getattr(value, field.name))
