"""A built wheel has what it should, in a folder without a clone."""

import os
import shutil
import subprocess
import sys
import zipfile
from importlib import metadata

import pytest

pytestmark = pytest.mark.slow


def test_an_installed_package_brings_its_recipes(
  tmp_path, project_dir, command_environment
):
  # A copy, because a build leaves its files in the sources.
  sources = tmp_path / "sources"
  for name in ("realm_jax", "gin"):
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(project_dir / name, sources / name, ignore=ignored)
  for name in ("setup.py", "README.md", "LICENSE"):
    shutil.copy(project_dir / name, sources)
  pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel"]
  subprocess.run(
    [*pip, "--quiet", "--no-deps", "--no-build-isolation", "-w", "..", "."],
    cwd=sources,
    check=True,
  )
  shutil.rmtree(sources)
  (wheel,) = tmp_path.glob("*.whl")
  installed, elsewhere = tmp_path / "installed", tmp_path / "elsewhere"
  zipfile.ZipFile(wheel).extractall(installed)
  elsewhere.mkdir()
  (distribution,) = metadata.distributions(path=[str(installed)])
  folders = {path.name for path in installed.iterdir()}
  assert folders == {"realm_jax", f"realm_jax-{distribution.version}.dist-info"}
  (script,) = distribution.entry_points
  assert (script.name, script.value) == ("realm", "realm_jax.__main__:main")
  described = distribution.metadata
  assert "# realm_jax" in described.get_payload()
  assert {"License", "License-File", "Requires-Python", "Keywords"} <= {
    *described
  }

  def run(module, *arguments):
    done = subprocess.run(
      [sys.executable, "-m", f"realm_jax.{module}", *arguments],
      cwd=elsewhere,
      env={**command_environment, "PYTHONPATH": os.fspath(installed)},
      capture_output=True,
      text=True,
    )
    return done.stderr

  recipe = "gin/experiments/small_text/inverse_cloze.gin"
  said = run(
    *("train", f"--gin_file={recipe}", "--model_dir=run", "--corpus_dir=none")
  )
  # The recipe and what it includes are read; the corpus is what is missing.
  assert "train: no corpus in none" in said
  assert not (elsewhere / "run").exists()
  # The experiments are in a clone alone.
  assert "clone the repository" in run("demo")
  assert not (installed / "experiments").exists()
