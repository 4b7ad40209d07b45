"""What setup.py declares is pinned."""

import re
import runpy
from pathlib import Path

import setuptools
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def test_what_is_declared_is_pinned(monkeypatch, project_dir: Path):
  given: dict = {}
  monkeypatch.setattr(
    setuptools, "setup", lambda **keywords: given.update(keywords)
  )
  monkeypatch.chdir(project_dir)
  runpy.run_path("setup.py")
  declared = {
    canonicalize_name(Requirement(text).name)
    for texts in (given["install_requires"], *given["extras_require"].values())
    for text in texts
  }
  files = [
    path
    for path in project_dir.glob("constraints*/*.txt")
    if re.match(r"python\d", path.name)
  ] or [project_dir / "constraints.txt"]
  for path in files:
    pins = {
      canonicalize_name(line.partition("==")[0])
      for line in path.read_text().splitlines()
      if "==" in line
    }
    assert not declared - pins, path
