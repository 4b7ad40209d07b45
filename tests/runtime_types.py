"""What jaxtyping's import hook checks at run time, and with which checker."""

from pathlib import Path

from beartype import BeartypeConf, beartype

# As for a type checker, an int is a float (PEP 484).
checked = beartype(conf=BeartypeConf(is_pep484_tower=True))


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
