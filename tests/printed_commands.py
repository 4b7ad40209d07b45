"""The `python -m` commands that README.md and docs/ print."""

import dataclasses
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from realm_jax.configuration import command_line

PROJECT_DIR = Path(__file__).resolve().parent.parent
T5X = "t5x.train"
_DOCUMENTS = ("README.md", *sorted(PROJECT_DIR.glob("docs/*.md")))
# Commands of others.
_OTHERS = ("pip", "venv")


@dataclasses.dataclass(frozen=True)
class PrintedCommand:
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


def fenced(document: str, heading: str) -> str:
  """Returns the only fenced block below a heading."""
  page = "\n" + (PROJECT_DIR / document).read_text()
  section = page.partition(f"\n{heading}\n")[2].partition("\n#")[0]
  (found,) = re.findall(r"```\w+\n(.*?)```", section, re.DOTALL)
  return found


def _code(document: str) -> str:
  """The lines of indented and fenced blocks, continued lines joined."""
  lines, fenced = [], False
  for line in (PROJECT_DIR / document).read_text().splitlines():
    if line.lstrip().startswith("```"):
      fenced = not fenced
    elif fenced or line.startswith("    "):
      lines.append(line.strip())
  return "\n".join(lines).replace("\\\n", " ")


def printed() -> Iterator[PrintedCommand]:
  """Yields all commands but those of other projects."""
  for path in _DOCUMENTS:
    document = str((PROJECT_DIR / path).relative_to(PROJECT_DIR))
    for line in _code(document).splitlines():
      found = re.match(r"\S*python3? -m (\S+) ?(.*)", line)
      if found is None or found[1].partition(".")[0] in _OTHERS:
        continue
      # A comment, a redirection or an ampersand ends the arguments.
      arguments = re.split(r" [#>&](?: |$)", found[2])[0]
      yield PrintedCommand(document, found[1], tuple(shlex.split(arguments)))
