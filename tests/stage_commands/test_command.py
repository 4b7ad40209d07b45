"""A command of a stage, as it is typed and as gin reads it."""

import shlex
import sys

from realm_jax import configuration
from realm_jax.inputs.config import DataConfig
from realm_jax.stage_commands.command import StageCommand

_FILE = """
from __gin__ import dynamic_registration
from realm_jax.inputs import config
CORPUS_DIR = None
BATCH_SIZE = 4
RATE = 0.9
config.DataConfig.corpus_dir = %CORPUS_DIR
config.DataConfig.task = "inverse_cloze"
config.DataConfig.batch_size = %BATCH_SIZE
config.DataConfig.query_length = 8
config.DataConfig.block_length = 8
config.DataConfig.sentence_removal_probability = %RATE
"""


def test_the_text_of_a_command_and_its_values_say_the_same(tmp_path):
  (tmp_path / "data.gin").write_text(_FILE)
  files = [str(tmp_path / "data.gin")]
  values = {"CORPUS_DIR": 'a "b" c', "BATCH_SIZE": 2, "RATE": 0.5}
  command = StageCommand("show_task", files, values, ["--once"])
  typed = shlex.split(str(command))
  assert typed[:4] == ["python", "-m", "realm_jax.show_task", "--once"]
  assert command.argv == [sys.executable, *typed[1:]]
  # What the command line binds is what is parsed in this process.
  flags = configuration.expand_gin_flags(typed[5:])
  bindings = [flag.partition("=")[2] for flag in flags]
  assert bindings == command.gin_bindings
  with configuration.parsed(command.gin_files, command.gin_bindings):
    data = configuration.configured(DataConfig)()
    lines = configuration.bound_lines()
  assert data.corpus_dir == 'a "b" c'
  assert (data.batch_size, data.sentence_removal_probability) == (2, 0.5)
  assert "BATCH_SIZE = 2" in lines
  assert not [line for line in lines if line.startswith(("#", "from"))]
