"""Links, tests of faults, extras and pinned requirements are there."""

import re
import runpy
from pathlib import Path

import pytest
import setuptools
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.conftest import PROJECT_DIR

DOCUMENTS = [
  path.relative_to(PROJECT_DIR).as_posix()
  for folder in (".", "benchmarks", "docs", "docs/reference")
  for path in sorted((PROJECT_DIR / folder).glob("*.md"))
]


def _anchors(document: Path) -> set[str]:
  """The anchors of a document's headings, as GitHub makes them."""
  text = re.sub(r"^```.*?^```", "", document.read_text(), flags=re.M | re.S)
  return {
    re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
    for heading in re.findall(r"^#+ (.*)$", text, re.M)
  }


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_somewhere(document: str):
  path = PROJECT_DIR / document
  missing = []
  links = re.findall(r"\]\(([\w./-]*)(?:#([^)]*))?\)", path.read_text())
  for page, anchor in links:
    target = path.parent / page if page else path
    if not target.exists() or (anchor and anchor not in _anchors(target)):
      missing.append(f"{page}#{anchor}")
  assert not missing, f"{document} links to what is not there: {missing}"


def test_every_named_test_of_a_fault_is_there():
  text = (PROJECT_DIR / "tests" / "FAULTS.md").read_text()
  named = re.findall(r"`(tests/[^`]+\.py)::(test_\w+)`", text)
  assert named
  missing = [
    f"{path}::{name}"
    for path, name in named
    if not (PROJECT_DIR / path).exists()
    or f"\ndef {name}(" not in (PROJECT_DIR / path).read_text()
  ]
  assert not missing


@pytest.fixture
def given(monkeypatch) -> dict:
  """What setup.py gives to setuptools."""
  given: dict = {}
  monkeypatch.setattr(
    setuptools, "setup", lambda **keywords: given.update(keywords)
  )
  monkeypatch.chdir(PROJECT_DIR)
  runpy.run_path("setup.py")
  return given


def test_the_extras_that_are_named_exist(given):
  files = [PROJECT_DIR / name for name in (*DOCUMENTS, "launch/Dockerfile")]
  files += [PROJECT_DIR / "Makefile", *PROJECT_DIR.rglob("realm_jax/**/*.py")]
  named = {
    name
    for path in files
    for names in re.findall(
      r"(?:realm_jax|'\.)\[([a-z0-9,]+)\]|EXTRAS :?= ?([a-z0-9,]+)|"
      r"EXTRAS=([a-z0-9,]+)",
      path.read_text(),
    )
    for name in "".join(names).split(",")
  }
  assert {"faiss", "serve", "tpu", "train"} <= named
  assert named <= given["extras_require"].keys()


def test_only_a_tag_of_a_version_publishes():
  folder = PROJECT_DIR / ".github" / "workflows"
  triggers, publishing = {}, []
  for path in sorted(folder.glob("*.yml")):
    read = yaml.safe_load(path.read_text())
    # YAML 1.1 reads `on` as true.
    triggers[path.stem] = read[True]
    if "gh-action-pypi-publish" in path.read_text():
      publishing.append(path.stem)
    for job in read["jobs"].values():
      assert {*([job.get("needs")] if "needs" in job else [])} <= {
        *read["jobs"]
      }
  assert publishing == ["release"]
  assert triggers["release"] == {"push": {"tags": ["v*"]}}


def test_what_is_declared_is_pinned(given):
  declared = {
    canonicalize_name(Requirement(text).name)
    for texts in (given["install_requires"], *given["extras_require"].values())
    for text in texts
  }
  files = sorted(PROJECT_DIR.glob("constraints/python*.txt"))
  assert files
  for path in files:
    lines = path.read_text().splitlines()
    pins = {canonicalize_name(line.partition("==")[0]) for line in lines}
    assert not declared - pins, path
