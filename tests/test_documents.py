"""What documents and recipes say is true: files, commands and flags."""

import ast
import dataclasses
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from realm_jax import configuration

PROJECT_DIR = Path(__file__).resolve().parent.parent
DOCUMENTS = (
  "README.md",
  "WORKSPACE.md",
  "benchmarks/README.md",
  *(
    str(path.relative_to(PROJECT_DIR))
    for path in sorted((PROJECT_DIR / "docs").glob("*.md"))
  ),
)
RECIPES = tuple(
  str(path.relative_to(PROJECT_DIR))
  for path in sorted((PROJECT_DIR / "gin").rglob("*.gin"))
)


# Commands of others; tests/integration/test_t5x.py runs those of t5x.
_OTHERS = ("pip", "t5x", "venv")
# Its flags become those of several commands: tests/launch/test_documents.py.
LAUNCHER = "launch.xm_launch"


@dataclasses.dataclass(frozen=True)
class Command:
  """A `python -m` command as a document shows it."""

  document: str
  module: str
  arguments: tuple[str, ...]

  @property
  def is_abridged(self) -> bool:
    """Whether parts of it are left for the reader to fill in."""
    return any(mark in a for a in self.arguments for mark in "…{[")

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
  for line in (PROJECT_DIR / document).read_text().splitlines():
    if document.endswith(".gin"):
      # Its comments are the document.
      if line.startswith("#   "):
        lines.append(line.removeprefix("#").strip())
    elif line.lstrip().startswith("```"):
      fenced = not fenced
    elif fenced or line.startswith("    "):
      lines.append(line.strip())
  return "\n".join(lines).replace("\\\n", " ")


def gin_files_of(document: str) -> dict[str, str]:
  """The gin files that a document shows whole, by their first lines."""
  text = (PROJECT_DIR / document).read_text()
  shown = re.findall(r"^```gin\n(# (\S+\.gin)\n.*?)^```", text, re.M | re.S)
  return {name: content for content, name in shown}


def _commands() -> Iterator[Command]:
  for document in (*DOCUMENTS, *RECIPES):
    for line in _code(document).splitlines():
      found = re.match(r"\S*python3? -m (\S+) ?(.*)", line)
      if found is None or found[1].partition(".")[0] in _OTHERS:
        continue
      # A comment, a redirection or an ampersand ends the arguments.
      arguments = re.split(r" [#>&](?: |$)", found[2])[0]
      yield Command(document, found[1], tuple(shlex.split(arguments)))


def _entry_points() -> list[str]:
  return [
    f"{path.parent.name}.{path.stem}"
    for folder in ("realm_jax", "launch", "benchmarks")
    for path in sorted((PROJECT_DIR / folder).glob("*.py"))
    if '__name__ == "__main__"' in path.read_text()
  ]


COMMANDS = list(_commands())
MODULES = sorted({c.module for c in COMMANDS} | set(_entry_points()))


@pytest.fixture(scope="module")
def help_of(tmp_path_factory) -> dict[str, str]:
  """What each command answers to --helpfull, or to --help."""
  directory = tmp_path_factory.mktemp("help")
  subprocess.run(
    [sys.executable, "-m", "tests.help_child", directory, *MODULES],
    cwd=PROJECT_DIR,
    check=True,
    capture_output=True,
    timeout=300,
  )
  return {module: (directory / module).read_text() for module in MODULES}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_the_files_it_names_exist(document: str):
  text = (PROJECT_DIR / document).read_text()
  named = set(re.findall(r"`([\w./-]+\.(?:py|gin|md|sh|toml|txt))`", text))
  folder = Path(document).parent
  named |= {
    str(folder / link) for link in re.findall(r"\]\(([\w./-]+)\)", text)
  }
  # Folders of the project, written with their slash or below gin/.
  named |= set(re.findall(r"`((?:realm_jax|gin|tasks|tests)/[\w./-]*)`", text))
  missing = [
    name
    for name in sorted(named)
    if "/" in name
    # A file of realm_jax goes by its place in there, too.
    and not (PROJECT_DIR / name).exists()
    and not (PROJECT_DIR / "realm_jax" / name).exists()
    # What the commands write, and what a user brings.
    and not name.startswith(("out/", "runs/"))
  ]
  assert not missing, f"{document} names what is not there: {missing}"


def _anchors(document: Path) -> set[str]:
  """The anchors of a document's headings, as GitHub makes them."""
  text = re.sub(r"^```.*?^```", "", document.read_text(), flags=re.M | re.S)
  return {
    re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
    for heading in re.findall(r"^#+ (.*)$", text, re.M)
  }


@pytest.mark.parametrize("document", DOCUMENTS)
def test_the_sections_it_links_to_exist(document: str):
  path = PROJECT_DIR / document
  links = re.findall(r"\]\(([\w./-]*)#([^)]*)\)", path.read_text())
  missing = [
    f"{page}#{anchor}"
    for page, anchor in links
    if anchor not in _anchors(path.parent / page if page else path)
  ]
  assert not missing, f"{document} links to what is not there: {missing}"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_the_tests_it_names_exist(document: str):
  text = (PROJECT_DIR / document).read_text()
  for path, name in re.findall(r"`(tests/[\w./]+)::(\w+)`", text):
    source = (PROJECT_DIR / path).read_text()
    assert f"def {name}(" in source, f"{path} has no {name}"


def test_the_make_targets_exist():
  targets = set(
    re.findall(r"^([\w-]+):", (PROJECT_DIR / "Makefile").read_text(), re.M)
  )
  for document in DOCUMENTS:
    for line in _code(document).splitlines():
      if line.startswith("make "):
        words = line.removeprefix("make ").partition("#")[0].split()
        named = {word for word in words if re.fullmatch(r"[a-z][\w-]*", word)}
        assert named <= targets, f"{document}: {line}"


@pytest.mark.slow
@pytest.mark.parametrize("module", MODULES)
def test_a_command_explains_itself(module: str, help_of: dict[str, str]):
  text = help_of[module]
  assert "Traceback" not in text, text
  path = PROJECT_DIR / module.replace(".", "/")
  path = path / "__main__.py" if path.is_dir() else path.with_suffix(".py")
  story = ast.get_docstring(ast.parse(path.read_text()))
  assert story, f"{module} has no docstring for its help"
  assert story.splitlines()[0] in text


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_the_flags_of_a_command_exist(
  command: Command, help_of: dict[str, str]
):
  flags = {
    argument.partition("=")[0].lstrip("-")
    for argument in command.arguments
    if argument.startswith("--") and ".gin." not in argument
  }
  flags = {flag for flag in flags if not flag.startswith("gin.")} - {"help"}
  known = set(
    re.findall(
      r"^\s+(?:-\w,)?--(?:\[no\])?(\w+)", help_of[command.module], re.M
    )
  )
  assert flags <= known, f"{command} has flags that do not exist"


def _bindings(command: Command) -> list[str]:
  """What a command binds, by the flags of its directories, too."""
  return [
    *(binding.replace("=", " = ", 1) for binding in command.values("--gin.")),
    *(
      f"{name.upper()} = {path!r}"
      for name in ("model_dir", "corpus_dir")
      for path in command.values(f"--{name}=")
    ),
  ]


# Recipes over which commands read what a run has kept.
_RECIPES = {
  "realm_jax.ask": ["ask"],
  "realm_jax.build_index": ["build_index"],
  "realm_jax.evaluate": ["eval", "eval_masked"],
  "realm_jax.explain": ["explain"],
  "realm_jax.export_weights": ["export_vectors", "export"],
}


@pytest.mark.parametrize(
  "command",
  [
    c
    for c in COMMANDS
    if c.module in _RECIPES
    and not c.values("--gin_file=")
    and not c.is_abridged
  ],
  ids=str,
)
def test_a_run_and_its_recipe_complete_a_command(command: Command):
  assert command.values("--model_dir="), command
  has_questions = any("QUESTIONS" in b for b in command.values("--gin."))
  is_first = has_questions or "--to=vectors" in command.arguments
  recipe = _RECIPES[command.module][0 if is_first else -1]
  kept = 'include "gin/models/bert_base.gin"\nOUTPUT_DIR = "eval"\n'
  if not command.values("--corpus_dir="):
    kept += 'CORPUS_DIR = "corpus"\n'
  with configuration.parsed(
    [f"gin/runs/{recipe}.gin"], _bindings(command), of_run=kept
  ):
    pass


@pytest.mark.parametrize(
  "command",
  [
    c
    for c in COMMANDS
    if c.values("--gin_file=") and not c.is_abridged and c.module != LAUNCHER
  ],
  ids=str,
)
def test_the_recipe_of_a_command_is_complete(command: Command, tmp_path: Path):
  bindings = _bindings(command)
  for name, text in gin_files_of(command.document).items():
    (tmp_path / name).write_text(text)
  # The model file that an import writes takes the place of this one.
  files = [
    "gin/models/bert_base.gin" if file.startswith("runs/") else file
    for file in command.values("--gin_file=")
  ]
  files = [
    str(tmp_path / file) if (tmp_path / file).exists() else file
    for file in files
  ]
  # Its recipes need no data.
  without_data = command.module == "realm_jax.precompile"
  with configuration.parsed(files, bindings, without_data=without_data):
    pass
