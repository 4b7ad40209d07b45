"""README's path for one's own text, as a user types it.

The commands are read out of README.md and run in a folder that has nothing but
the texts, with small sizes. The index builder of a block is started first, as
it stands there.
"""

import json
import re
import shlex
import signal
import sys
from pathlib import Path

import pytest

from tests import tiny_world
from tests.json_lines import write_lines

pytestmark = pytest.mark.slow

_SECTION = "## Your own text"
_PATIENCE_SECONDS = 500.0
# Flags by the recipe or the module that a command names. The model's sizes are
# given to training alone: the other commands find the model of the run.
_SIZES = {
  "realm_jax.train": "--gin.NUM_STEPS=2 --gin.BATCH_SIZE=4 "
  "--gin.SAVE_EVERY_STEPS=2 --gin.MAX_SHAPE_BUCKETS=1 "
  "--gin.bert.BertConfig.num_layers=1 --gin.bert.BertConfig.hidden_size=16 "
  "--gin.bert.BertConfig.intermediate_size=32",
  # A trainer would wait for an index builder that has ended for a day.
  "pretrain.gin": "--gin.TIMEOUT_SECONDS=300.0",
  "open_qa.gin": "--gin.TIMEOUT_SECONDS=300.0 --gin.NUM_SEARCHED=10",
}


def _commands(readme: str) -> list[list[str]]:
  """The words of each command of the section's steps."""
  section = readme.partition(f"{_SECTION}\n")[2].partition("\n## ")[0]
  blocks = re.findall(r"(?:^ {8}.*\n?)+", section, re.MULTILINE)
  text = re.sub(r"\\\n\s*", "", "".join(blocks))
  return [shlex.split(line) for line in text.splitlines()]


def _sized(words: list[str]) -> list[str]:
  """The arguments of Python, with small sizes."""
  sizes = [
    flag
    for name, flags in _SIZES.items()
    if any(word.endswith(name) for word in words)
    for flag in flags.split()
  ]
  return [*words[1:3], *sizes, *words[3:]]


@pytest.fixture
def folder(tmp_path, project_dir) -> Path:
  """A folder with texts and questions, and a clone's recipes."""
  (tmp_path / "gin").symlink_to(project_dir / "gin")
  (tmp_path / "text").mkdir()
  questions = tiny_world.questions()
  for name, rows in {
    "text/articles.jsonl": tiny_world.documents(),
    "train.jsonl": questions[:7],
    "test.jsonl": questions[7:],
  }.items():
    write_lines(tmp_path / name, rows)
  return tmp_path


def test_readme_leads_from_own_text_to_an_answer(
  folder, project_dir, command_server
):
  commands = _commands((project_dir / "README.md").read_text())
  builders, log = [], folder / "builders.log"
  try:
    for words in commands:
      if words[0] == "kill":
        builders[-1].send_signal(signal.SIGTERM)
      elif words[-1] == "&":
        command = [sys.executable, *_sized(words[:-1])]
        with log.open("a") as output:
          started = command_server.start(command, cwd=folder, stdout=output)
        builders.append(started)
      else:
        command = [sys.executable, *_sized(words)]
        done = command_server.run(
          command, cwd=folder, timeout=_PATIENCE_SECONDS
        )
        assert done.returncode == 0, (words, done.stderr[-2000:])
        if "show_task" in words[2]:
          assert "[MASK=" in done.stdout
    codes = [builder.wait(_PATIENCE_SECONDS) for builder in builders]
    assert codes == [0, 0], log.read_text()
  finally:
    for builder in builders:
      builder.kill()
  # The answer stands with the title of its block.
  assert "Stone" in done.stdout
  metrics = json.loads((folder / "runs/qa/eval/metrics.json").read_text())
  assert metrics["num_questions"] == 4
  snapshots = folder / "runs/realm/snapshots"
  assert (snapshots / "00000000/manifest.json").exists()
