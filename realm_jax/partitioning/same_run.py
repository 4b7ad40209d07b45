"""What all processes of a run must have in common."""

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax

from realm_jax.partitioning.agreement import Agreement

_PACKAGE_DIR = Path(__file__).resolve().parent.parent
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
      "the code of realm_jax": _source_digest(),
      "the number of devices": str(jax.device_count()),
      **facts,
      **dict(
        pair for name, value in configs.items() for pair in _values(name, value)
      ),
    }
  )


def _source_digest() -> str:
  """Returns a digest of this package's source files."""
  digest = hashlib.sha256()
  for path in sorted(_PACKAGE_DIR.rglob("*.py")):
    digest.update(path.relative_to(_PACKAGE_DIR).as_posix().encode())
    digest.update(path.read_bytes())
  return digest.hexdigest()[:12]


def _values(name: str, value: Any) -> Iterator[tuple[str, str]]:
  """Yields the name and value of each field, and of their fields."""
  if not dataclasses.is_dataclass(value):
    yield name, repr(value)
    return
  yield f"the type of {name}", type(value).__name__
  for field in dataclasses.fields(value):
    if field.name not in _MAY_DIFFER:
      yield from _values(f"{name}.{field.name}", getattr(value, field.name))
