"""README's path for one's own text, as a user types it.

The commands are read out of README.md and run in a folder that has nothing but
the texts, with small sizes. The sidecar of a block is started first, as it
stands there.
"""

import contextlib
import dataclasses
import json
import re
import shlex
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.command_server import CommandServer, Started

pytestmark = pytest.mark.slow

_SECTION = "## Your own text"
_PATIENCE_SECONDS = 500.0
# Flags by the recipe or the module that a command names. The model's sizes are
# given to training alone: the other commands find the model of the run.
_SIZES = {
  "train": "--gin.NUM_STEPS=2 --gin.BATCH_SIZE=4 --gin.SAVE_EVERY_STEPS=1 "
  "--gin.MAX_SHAPE_BUCKETS=1 --gin.bert.BertConfig.hidden_size=16 "
  "--gin.bert.BertConfig.intermediate_size=32",
  "open_qa.gin": "--gin.NUM_SEARCHED=10",
}
# Commands that stand beside the path: other inputs, other studies.
_BESIDE_THE_PATH = ("tfds:", "seqio:", "--update", "realm_jax.ablate")
_PEOPLE = "Ada Bela Chloe Dora Emil Frida Gus Hana Iris Jorg Kai Lea".split()
_CITIES = "Velt Tarn Osk Mira Pola".split()


@dataclasses.dataclass(frozen=True)
class _Command:
  """A line of README: its words, and whether it runs in the background."""

  words: list[str]
  is_background: bool


def _blocks(readme: str) -> Iterator[list[_Command]]:
  """Yields the commands of each indented block of the section's steps."""
  section = readme.partition(f"{_SECTION}\n")[2].partition("\n## ")[0]
  for block in re.findall(r"(?:^ {8}.*\n?)+", section, re.MULTILINE):
    lines = re.sub(r"\\\n\s*", "", block).splitlines()
    commands = []
    for line in lines:
      if any(part in line for part in _BESIDE_THE_PATH):
        continue
      words = shlex.split(line)
      is_background = words[-1] == "&"
      commands.append(
        _Command(words[: -1 if is_background else None], is_background)
      )
    if commands:
      yield commands


@pytest.fixture
def folder(tmp_path, project_dir) -> Path:
  """A folder with texts, questions and a vocabulary, and a clone's recipes."""
  for name in ("gin", "tasks"):
    (tmp_path / name).symlink_to(project_dir / name)
  (tmp_path / "text").mkdir()
  articles, questions = [], []
  for i, name in enumerate(3 * _PEOPLE):
    city, other = _CITIES[i % 5], _CITIES[(i * 3 + 1) % 5]
    text = (
      f"{name} Stone was born in {city} in {1900 + i}. Later {name} Stone "
      f"built the bridge of {other}. In {other} nobody knew {name} Stone."
    )
    articles.append({"title": f"Notes {i}", "text": text})
    question = f"who was born in {city} in {1900 + i}?"
    questions.append({"question": question, "answer": [f"{name} Stone"]})
  for name, rows in {
    "text/articles.jsonl": articles,
    "train.jsonl": questions[:24],
    "test.jsonl": questions[24:],
  }.items():
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / name).write_text(lines)
  texts = (tmp_path / "text/articles.jsonl").read_text() + "who title ?"
  words = sorted(set(re.findall(r"\w+|[^\w\s]", texts.lower())))
  specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
  (tmp_path / "vocab.txt").write_text("\n".join(specials + words) + "\n")
  return tmp_path


class _Shell:
  """Runs the commands of README in a folder, one background job at a time."""

  def __init__(self, folder: Path, server: CommandServer):
    self._folder = folder
    self._server = server
    self._background: Started | None = None
    self._log = folder / "background.log"

  def run(self, commands: list[_Command]) -> str:
    """Runs a block, and returns what its last command has printed.

    Raises:
      AssertionError: A command failed, in the background or not.
    """
    printed = ""
    with contextlib.ExitStack() as killed:
      for command in commands:
        if command.words[0] == "kill":
          assert self._background is not None
          self._background.send_signal(signal.SIGTERM)
        elif command.is_background:
          with self._log.open("w") as log:
            self._background = self._start(command, stdout=log, stderr=log)
          killed.callback(self._background.kill)
        else:
          printed = self._finished(command)
      if self._background is not None:
        self._background.wait(_PATIENCE_SECONDS)
        self._assert_background_is_well()
        self._background = None
    return printed

  def _start(self, command: _Command, **streams) -> Started:
    first, *words = command.words
    assert first == "python", command
    module = words[1].rpartition(".")[2]
    sizes = [
      flag
      for name, flags in _SIZES.items()
      if name == module or any(word.endswith(name) for word in words)
      for flag in flags.split()
    ]
    return self._server.start(
      [sys.executable, *words[:2], *sizes, *words[2:]],
      cwd=self._folder,
      **streams,
    )

  def _finished(self, command: _Command) -> str:
    printed, errors = self._folder / "stdout", self._folder / "stderr"
    with printed.open("w") as out, errors.open("w") as err:
      process = self._start(command, stdout=out, stderr=err)
    limit = time.monotonic() + _PATIENCE_SECONDS
    try:
      while process.poll() is None:
        # A trainer would wait for a sidecar that has ended for a day.
        self._assert_background_is_well()
        assert time.monotonic() < limit, errors.read_text()[-2000:]
        time.sleep(0.1)
    finally:
      process.kill()
    assert process.returncode == 0, (command.words, errors.read_text()[-2000:])
    return printed.read_text()

  def _assert_background_is_well(self) -> None:
    if self._background is not None and self._background.poll():
      raise AssertionError(self._log.read_text()[-2000:])


def test_readme_leads_from_own_text_to_an_answer(
  folder, project_dir, command_server
):
  blocks = list(_blocks((project_dir / "README.md").read_text()))
  modules = [
    command.words[2].rpartition(".")[2]
    for block in blocks
    for command in block
    if command.words[0] == "python"
  ]
  assert modules == [
    "build_corpus",
    "show_task",
    *("train", "train"),
    *("build_index", "train"),
    *("build_index", "train"),
    *("evaluate", "ask"),
  ]
  shell = _Shell(folder, command_server)
  printed = [shell.run(block) for block in blocks][-1]
  # The answer stands with the title of its block.
  assert "Notes" in printed
  figures = json.loads((folder / "runs/qa/eval/metrics.json").read_text())
  assert figures["num_questions"] == 12
  generations = folder / "runs/realm/generations"
  assert (generations / "00000000/manifest.json").exists()
