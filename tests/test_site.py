"""The site that `make docs` builds from documents, docstrings and flags."""

import importlib.util
import re
import subprocess
import sys

import pytest

from realm_jax.__main__ import COMMANDS

pytestmark = pytest.mark.slow


@pytest.mark.skipif(
  importlib.util.find_spec("furo") is None,
  reason="no Sphinx; `make docs` installs it",
)
def test_it_is_whole_and_loads_nothing_from_elsewhere(
  project_dir, tmp_path, command_environment
):
  flags = ["-q", "--fail-on-warning", "-c", "docs", "-d", tmp_path / "read"]
  done = subprocess.run(
    [sys.executable, "-m", "sphinx", *flags, ".", tmp_path / "site"],
    cwd=project_dir,
    env=command_environment,
    stderr=subprocess.PIPE,
    text=True,
  )
  # Missing pages, links, anchors and docstrings are warnings.
  assert done.returncode == 0, done.stderr
  pages = {path.stem: path.read_text() for path in tmp_path.rglob("*.html")}
  for name, page in pages.items():
    tags = re.findall(r"<(?:script|img|link)\b[^>]*>", page)
    assert not [tag for tag in tags if re.search(r'="(https?:)?//', tag)], name
  for name in COMMANDS:
    assert f"realm_jax.{name}" in pages["commands"] or name == "demo"
  assert "--explore_temperature" in pages["commands"]
  assert "POST /retrieve" in pages["http"]
