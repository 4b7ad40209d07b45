"""Flags of the command line, as gin reads them."""

import pytest
from absl import flags
from absl.testing import flagsaver

from realm_jax.configuration import ConfigurationError, command_line
from realm_jax.evaluation.run import RunConfig


def test_a_run_without_gin_files_is_configured_as_it_was(tmp_path):
  command_line.define_run_flags()
  flags.FLAGS.mark_as_parsed()
  (tmp_path / "model.gin").touch()
  (tmp_path / "config.gin").write_text(
    'include "gin/models/tiny.gin"\n'
    "MODEL_DIR = 'elsewhere'\n"
    "CORPUS_DIR = 'corpus'\n"
    "QUERY_LENGTH = 12\n"
  )
  with flagsaver.flagsaver(
    model_dir=str(tmp_path), gin_file=[], gin_bindings=["QUERY_LENGTH = 8"]
  ):
    source = command_line.call(RunConfig, block_length=9)
  assert (source.model_dir, source.corpus_dir) == (str(tmp_path), "corpus")
  assert (source.query_length, source.block_length) == (8, 9)


def test_a_command_without_a_run_asks_for_one():
  command_line.define_run_flags()
  flags.FLAGS.mark_as_parsed()
  with (
    flagsaver.flagsaver(model_dir=None, gin_file=[], gin_bindings=[]),
    pytest.raises(ConfigurationError, match="give its directory as --model_d"),
  ):
    command_line.require_run("gin/runs/ask.gin")
