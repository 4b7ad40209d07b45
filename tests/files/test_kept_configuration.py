"""The configuration in a MODEL_DIR."""

from absl import logging as absl_logging

from realm_jax.configuration import RunRecord
from realm_jax.files.kept_configuration import keep_configuration


def test_the_newest_is_kept_and_what_differs_is_logged(tmp_path, monkeypatch):
  lines = []
  monkeypatch.setattr(
    absl_logging, "warning", lambda text, *values: lines.append(text % values)
  )
  keep_configuration(tmp_path / "run", "# Macros:\nA = 1\nB = [2]\n")
  keep_configuration(tmp_path / "run", "# Others:\nA = 1\nB = [2]\n")
  assert not lines
  keep_configuration(tmp_path / "run", "# Macros:\nA = 1\nB = [3]\nC = 4\n")
  (text,) = lines
  assert text.splitlines()[1:] == ["  - B = [2]", "  + B = [3]", "  + C = 4"]
  kept = (tmp_path / "run" / "config.gin").read_text()
  assert kept == "# Macros:\nA = 1\nB = [3]\nC = 4\n"


def test_a_bucket_keeps_it_too(object_store):
  model_dir = object_store.path("kept/run")
  keep_configuration(model_dir, "A = 1\n")
  keep_configuration(model_dir, "A = 2\n")
  assert RunRecord.find(model_dir).content == "A = 2\n"
