"""What is imported is declared, and what is declared is pinned."""

import importlib.metadata
import re
import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest
import setuptools
from packaging.requirements import Requirement

from tests import import_rules

# Libraries whose distributions have other names.
_DISTRIBUTIONS = {
  "absl": "absl-py",
  "faiss": "faiss-cpu",
  "gin": "gin-config",
  "google": "protobuf",
  "orbax": "orbax-checkpoint",
  "xmanager_cloud": "xmanager",
  "yaml": "pyyaml",
}
# Used where somebody has it, and in no extra: torch outweighs all the rest, and
# t5x is in no registry.
_OPTIONAL = ("t5x", "torch")
_EXTRA_OF = {
  "aiohttp": "gcs",
  "apache_beam": "beam",
  "clu": "t5x",
  "faiss": "faiss",
  "gcsfs": "gcs",
  "matplotlib": "demo",
  "starlette": "serve",
  "uvicorn": "serve",
  "xmanager": "launch",
  "xmanager_cloud": "launch",
  "yaml": "launch",
}
_INSTALLED_EXTRAS = ("beam", "demo", "dev", "faiss", "launch", "serve", "tfds")


def _canonical(name: str) -> str:
  return re.sub(r"[-_.]+", "-", name).lower()


@pytest.fixture
def declared(monkeypatch, project_dir: Path) -> dict[str, set[str]]:
  """The distributions of setup.py by extra; the core's under ""."""
  given: dict = {}
  monkeypatch.setattr(
    setuptools, "setup", lambda **keywords: given.update(keywords)
  )
  monkeypatch.chdir(project_dir)
  runpy.run_path("setup.py")
  extras = {"": given["install_requires"], **given["extras_require"]}
  return {
    extra: {_canonical(Requirement(r).name) for r in requirements}
    for extra, requirements in extras.items()
  }


@pytest.fixture
def pins(project_dir: Path) -> dict[str, str]:
  """The versions of constraints.txt."""
  lines = (project_dir / "constraints.txt").read_text().splitlines()
  pins = [line.split("==") for line in lines if not line.startswith("#")]
  return {_canonical(name): version for name, version in pins}


def test_what_is_imported_is_declared(declared):
  missing = [
    str(found)
    for package in ("realm_jax", "tasks", "launch")
    for file in import_rules.sources(package)
    for found in import_rules.third_party(file)
    if found.library not in _OPTIONAL
    and _canonical(_DISTRIBUTIONS.get(found.library, found.library))
    not in declared[_EXTRA_OF.get(found.library, "")]
  ]
  assert not missing, "setup.py does not declare:\n" + "\n".join(missing)


def test_what_the_core_declares_is_imported(declared):
  imported = {
    _canonical(_DISTRIBUTIONS.get(found.library, found.library))
    for package in ("realm_jax", "tasks")
    for file in import_rules.sources(package)
    for found in import_rules.third_party(file)
  }
  assert declared[""] <= imported


def _installed_closure() -> Iterator[importlib.metadata.Distribution]:
  """All that an environment with the usual extras consists of."""
  waiting = [("realm-jax", _INSTALLED_EXTRAS)]
  seen = set()
  while waiting:
    name, extras = waiting.pop()
    if (name, extras) in seen:
      continue
    seen.add((name, extras))
    distribution = importlib.metadata.distribution(name)
    yield distribution
    for text in distribution.requires or ():
      requirement = Requirement(text)
      if requirement.marker is None or any(
        requirement.marker.evaluate({"extra": extra}) for extra in ("", *extras)
      ):
        waiting.append(
          (_canonical(requirement.name), tuple(sorted(requirement.extras)))
        )


def test_what_is_declared_is_pinned(declared, pins):
  assert not set().union(*declared.values()) - pins.keys()


def test_what_is_installed_is_what_is_pinned(pins):
  wrong = {
    f"{distribution.name} {distribution.version}"
    for distribution in _installed_closure()
    if _canonical(distribution.name) != "realm-jax"
    and pins.get(_canonical(distribution.name)) != distribution.version
  }
  assert not wrong, (
    f"not the versions of constraints.txt (run `make env`): {sorted(wrong)}"
  )
