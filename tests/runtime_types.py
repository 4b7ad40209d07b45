"""What jaxtyping's import hook checks at run time, and with which checker."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jaxtyping
from beartype import BeartypeConf, beartype

# As for a type checker, an int is a float (PEP 484).
checked = beartype(conf=BeartypeConf(is_pep484_tower=True))
_of_all = jaxtyping.jaxtyped


def modules_with_shapes(package: Path) -> list[str]:
  """Returns the modules of a package that annotate the shapes of arrays."""
  files = [
    file
    for file in sorted(package.rglob("*.py"))
    if "from jaxtyping import" in file.read_text(encoding="utf-8")
  ]
  return [
    ".".join(file.relative_to(package.parent).with_suffix("").parts)
    for file in files
  ]


def of_shapes(**settings: Any) -> Callable[[Any], Any]:
  """Returns `jaxtyping.jaxtyped` for what annotates the shapes of arrays.

  The type checker sees the other functions, and a call of one that is checked
  takes twenty microseconds more.
  """

  def decorate(what: Any) -> Any:
    has_shapes = "jaxtyping." in repr(getattr(what, "__annotations__", {}))
    return _of_all(**settings)(what) if has_shapes else what

  return decorate
