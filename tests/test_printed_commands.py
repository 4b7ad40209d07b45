"""Every command that README.md and docs/ print parses, and its recipe is whole.

The commands of t5x are checked by what our recipes for it need, and by t5x's
own flags where it is installed.
"""

import ast
import dataclasses
import importlib.util
import pkgutil
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from absl import flags as absl_flags

from launch.jobs import define, gin_error, name_of, plan, split_bindings
from realm_jax import configuration
from realm_jax.configuration import command_line, names
from realm_jax.training.config import TrainConfig
from tests.command_server import CommandServer

_PROJECT_DIR = Path(__file__).resolve().parent.parent
_DOCUMENTS = ("README.md", *sorted(_PROJECT_DIR.glob("docs/*.md")))
# Commands of others.
_OTHERS = ("pip", "venv")
_LAUNCHER = "launch.xm_launch"
_T5X = "t5x.train"
# Flags of t5x that gin and its files need.
_GIN_FLAGS = {"gin_file", "gin_bindings", "gin_search_paths"}


@dataclasses.dataclass(frozen=True)
class _Command:
  """A `python -m` command as a document prints it."""

  document: str
  module: str
  arguments: tuple[str, ...]

  @property
  def is_abridged(self) -> bool:
    """Whether parts of it are left for the reader to fill in."""
    return any(mark in a for a in self.arguments for mark in "…{[")

  @property
  def flags(self) -> set[str]:
    """Names of its flags, except `--gin.NAME` and `--help`."""
    given = {
      argument.partition("=")[0].lstrip("-")
      for argument in self.arguments
      if argument.startswith("--") and ".gin." not in argument
    }
    return {flag for flag in given if not flag.startswith("gin.")} - {"help"}

  @property
  def bindings(self) -> list[str]:
    """What it binds, as gin reads it; its directories, too."""
    expanded = command_line.expand_gin_flags(self.arguments)
    prefix = "--gin_bindings="
    return [
      *(a.removeprefix(prefix) for a in expanded if a.startswith(prefix)),
      *(
        f"{name.upper()} = {path!r}"
        for name in ("model_dir", "corpus_dir")
        for path in self.values(f"--{name}=")
      ),
    ]

  def values(self, flag: str) -> list[str]:
    return [
      argument.removeprefix(flag)
      for argument in self.arguments
      if argument.startswith(flag)
    ]

  def __str__(self) -> str:
    return f"{self.document}: {shlex.join([self.module, *self.arguments])}"


def _code(document: str) -> str:
  """The lines of indented and fenced blocks, continued lines joined."""
  lines, fenced = [], False
  for line in (_PROJECT_DIR / document).read_text().splitlines():
    if line.lstrip().startswith("```"):
      fenced = not fenced
    elif fenced or line.startswith("    "):
      lines.append(line.strip())
  return "\n".join(lines).replace("\\\n", " ")


def _printed() -> Iterator[_Command]:
  for path in _DOCUMENTS:
    document = str((_PROJECT_DIR / path).relative_to(_PROJECT_DIR))
    for line in _code(document).splitlines():
      found = re.match(r"\S*python3? -m (\S+) ?(.*)", line)
      if found is None or found[1].partition(".")[0] in _OTHERS:
        continue
      # A comment, a redirection or an ampersand ends the arguments.
      arguments = re.split(r" [#>&](?: |$)", found[2])[0]
      yield _Command(document, found[1], tuple(shlex.split(arguments)))


_COMMANDS = list(_printed())
_OURS = [c for c in _COMMANDS if c.module != _T5X]
_OF_T5X = [c for c in _COMMANDS if c.module == _T5X]


def _help(server: CommandServer, module: str) -> str:
  flag = "--help" if module.startswith("benchmarks.") else "--helpfull"
  done = server.run([sys.executable, "-m", module, flag])
  return done.stdout + done.stderr


def _flags_of(text: str) -> set[str]:
  return set(re.findall(r"^\s+(?:-\w,)?--(?:\[no\])?(\w+)", text, re.M))


@pytest.fixture(scope="module")
def help_of(command_server) -> dict[str, str]:
  """What each command answers to --helpfull, or to --help."""
  modules = {command.module for command in _OURS}
  return {module: _help(command_server, module) for module in modules}


@pytest.mark.slow
@pytest.mark.parametrize("command", _OURS, ids=str)
def test_the_flags_of_a_command_exist(command, help_of):
  text = help_of[command.module]
  assert "Traceback" not in text, text
  assert command.flags <= _flags_of(text)


# What commands configure, and their own recipes over which they read a run's.
_CONFIGURES = {
  "realm_jax.ablate": ("realm_jax.ablation.plan:chosen_ablation", ""),
  "realm_jax.ask": (
    "realm_jax.evaluation.run:RunConfig",
    "gin/runs/ask.gin",
  ),
  "realm_jax.build_index": (
    "realm_jax.generations.sidecar:build_index",
    "gin/runs/build_index.gin",
  ),
  "realm_jax.evaluate": (
    "realm_jax.evaluation.evaluate:evaluate",
    "gin/runs/eval_masked.gin",
  ),
  "realm_jax.explain": (
    "realm_jax.evaluation.run:RunConfig",
    "gin/runs/explain.gin",
  ),
  "realm_jax.export_weights": (
    "realm_jax.weights.exporting:export_weights",
    "",
  ),
  "realm_jax.train": ("realm_jax.training.config:TrainConfig", ""),
}
# What such commands give themselves.
_GIVEN = {"realm_jax.export_weights": ["output_dir", "to"]}


@pytest.mark.parametrize(
  "command",
  [
    c
    for c in _OURS
    if c.module in _CONFIGURES
    and c.values("--model_dir=")
    and not c.values("--gin_file=")
    and not c.is_abridged
  ],
  ids=str,
)
def test_a_run_and_its_recipe_complete_a_command(command, tmp_path):
  function, recipe = _CONFIGURES[command.module]
  if "--to=vectors" in command.arguments:
    function = "realm_jax.weights.vectors:export_vectors"
  if command.module == "realm_jax.train":
    recipe = "gin/runs/pretrain.gin"
  if "QUESTIONS" in "".join(command.bindings):
    recipe = "gin/runs/eval.gin"
  if "--follow" in command.arguments:
    function = "realm_jax.evaluation.evaluate:follow"
  kept = tmp_path / "model.gin"
  kept.write_text('include "gin/models/bert_base.gin"\nCORPUS_DIR = "corpus"\n')
  with configuration.parsed(
    pkgutil.resolve_name(function),
    [recipe, str(kept)] if recipe else [str(kept)],
    command.bindings,
    given=_GIVEN.get(command.module, ()),
  ):
    pass


def _shown_gin_files(document: str) -> dict[str, str]:
  """The gin files that a document shows whole, by their first lines."""
  text = (_PROJECT_DIR / document).read_text()
  shown = re.findall(r"^```gin\n(# (\S+\.gin)\n.*?)^```", text, re.M | re.S)
  return {name: content for content, name in shown}


@pytest.mark.parametrize(
  "command",
  [
    c
    for c in _OURS
    if c.module != _LAUNCHER and c.values("--gin_file=") and not c.is_abridged
  ],
  ids=str,
)
def test_the_recipe_of_a_command_is_complete(command, tmp_path):
  for name, text in _shown_gin_files(command.document).items():
    (tmp_path / name).write_text(text)
  files = [
    # The model file that an import writes takes the place of this one.
    "gin/models/bert_base.gin" if file.startswith("runs/") else file
    for file in command.values("--gin_file=")
  ]
  files = [
    str(tmp_path / file) if (tmp_path / file).exists() else file
    for file in files
  ]
  function, recipe = _CONFIGURES.get(command.module, (None, ""))
  # What only looks at a recipe needs no data.
  if command.module == "realm_jax.precompile":
    is_index = any("build_index" in file for file in files)
    function = (
      "realm_jax.generations.build:GenerationConfig"
      if is_index
      else "realm_jax.training.config:TrainConfig"
    )
  if command.module == "realm_jax.precompile" or "gin_help" in command.flags:
    files.append("gin/runs/precompile.gin")
  # With --model_dir, a command finds the model that a run keeps.
  if recipe and command.values("--model_dir="):
    files.insert(0, "gin/models/bert_base.gin")
  with configuration.parsed(
    function and pkgutil.resolve_name(function), files, command.bindings
  ):
    pass


@pytest.mark.slow
@pytest.mark.parametrize(
  "command",
  [
    c
    for c in _COMMANDS
    if c.module == _LAUNCHER and c.values("--gin_file=") and not c.is_abridged
  ],
  ids=str,
)
def test_a_launch_could_start(command):
  others, bindings = split_bindings(["xm_launch", *command.arguments])
  given = absl_flags.FlagValues()
  define(given)
  assert given(others) == ["xm_launch"]
  assert name_of(given)
  jobs = plan(given, bindings)
  errors = [gin_error(job) for job in jobs]
  assert errors == [None] * len(jobs)


def _gin_text(file: str) -> str:
  """A gin file and all that it includes, without comments."""
  text = re.sub(r"#.*", "", (_PROJECT_DIR / file).read_text())
  for included in re.findall(r'^include "(.*)"', text, re.M):
    text += _gin_text(included)
  return text


@pytest.mark.parametrize("command", _OF_T5X, ids=str)
def test_a_command_of_t5x_gives_what_our_recipe_for_it_needs(command):
  """t5x reads gin itself: it has no flags of ours, and texts have quotes."""
  assert command.flags <= _GIN_FLAGS
  model, recipe = command.values("--gin_file=")
  text = _gin_text(model) + _gin_text(recipe)
  assert "train_script.train:" in text
  (of_stage,) = re.findall(r'^include "(gin/runs/\w+\.gin)"', text, re.M)[:1]
  with configuration.parsed(
    TrainConfig, [model, of_stage, "gin/runs/precompile.gin"]
  ):
    fields = {parameter.macro for parameter in names.parameters()}
  given = dict(binding.split(" = ", 1) for binding in command.bindings)
  for value in given.values():
    ast.literal_eval(value)
  used = set(re.findall(r"%([A-Z]\w*)", text))
  required = set(re.findall(r"^(\w+) = %gin\.REQUIRED", text, re.M))
  bound = set(re.findall(r"^([A-Z]\w*) = (?!%gin\.REQUIRED)", text, re.M))
  assert set(given) <= used | bound | required | fields
  assert required - bound <= set(given)


@pytest.mark.slow
@pytest.mark.skipif(
  importlib.util.find_spec("t5x") is None,
  reason="t5x is absent; `make t5x` adds it",
)
def test_the_flags_of_t5x_are_its_own(command_server):
  known = _flags_of(_help(command_server, _T5X))
  assert _OF_T5X
  for command in _OF_T5X:
    assert command.flags <= known
