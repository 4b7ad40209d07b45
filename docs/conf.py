"""Configures Sphinx, with which `make docs` builds the site, without a network.

The documents of the clone are its pages. Two references are written from the
code: commands from their --help, and HTTP from the docstrings of its handlers.
"""

import ast
import concurrent.futures
import os
import re
import subprocess
import sys
import typing
from pathlib import Path
from xml.etree import ElementTree

import jax
from sphinx.application import Sphinx
from sphinx.util.typing import stringify_annotation

from realm_jax.__main__ import COMMANDS

_ROOT = Path(__file__).resolve().parent.parent
# The module that defines the flags of every command.
_COMMON = "realm_jax.configuration.command_line"
_NAVIGATION = """
```{toctree}
:hidden:
Concepts <docs/concepts>
Training <docs/training>
Languages <docs/languages>
Readers <docs/readers>
Retrievers <docs/retrievers>
Two hops <docs/multi_hop>
Index refresh <docs/index_refresh>
Evaluation <docs/evaluation>
Service <docs/service>
Agents <docs/agents>
Weights <docs/weights>
Accelerators <docs/accelerators>
Results <docs/results>
Results in detail <docs/results_in_detail>
Fidelity <docs/fidelity>
Metrics <docs/metrics>
Benchmarks <benchmarks/README>
Extending <docs/extending>
Troubleshooting <docs/troubleshooting>
Map of the code <WORKSPACE>
Contributing <CONTRIBUTING>
```

```{toctree}
:hidden:
:caption: Reference
Python <docs/reference/python>
HTTP <docs/reference/http>
Commands <docs/reference/commands>
```
"""

# As jaxtyping shows it: Float[Array, "b k"].
jax.Array.__name__ = "Array"

project = html_title = "realm_jax"
html_theme = "furo"
root_doc = "README"
include_patterns = [
  "README.md",
  "WORKSPACE.md",
  "CONTRIBUTING.md",
  "benchmarks/*.md",
  "docs/**.md",
]
exclude_patterns = [
  path.name
  for path in _ROOT.iterdir()
  if path.is_dir() and path.name not in ("benchmarks", "docs")
]
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_heading_anchors = 4
# In docstrings, `x` is code.
default_role = "code"
python_maximum_signature_line_length = 70
autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
napoleon_attr_annotations = napoleon_numpy_docstring = False
napoleon_use_ivar = True


def setup(app: Sphinx) -> None:
  """Adds what settings cannot say."""
  app.connect("source-read", _generate)
  # Napoleon has read the sections by then.
  app.connect("autodoc-process-docstring", _complete, priority=900)
  app.connect("autodoc-process-signature", _shorten)
  app.connect("autodoc-skip-member", _skip)


def _generate(app: Sphinx, name: str, content: list[str]) -> None:
  """Adds the generated part of a page."""
  del app
  parts = {
    "commands": _commands,
    "http": _routes,
    root_doc: lambda: _NAVIGATION,
  }
  if make := parts.get(name.removeprefix("docs/reference/")):
    # Flags are code, as what is indented or quoted is already.
    pieces = re.split(r"(`[^`]*`|^    .*$)", make(), flags=re.M)
    pieces[::2] = [re.sub(r"(--\w[^\s,.;)]*)", r"`\1`", x) for x in pieces[::2]]
    content[0] += "".join(pieces)


def _complete(*event: typing.Any) -> None:
  """Adds the types of a class's attributes, and marks indented text as code."""
  _, what, _, found, _, lines = event
  for number, line in reversed([*enumerate(lines)]):
    before = [*lines[max(number - 2, 0) : number], "", ""]
    if line[:4] == "    " and before[1] == "" and before[0][:1] != " ":
      lines[number:number] = ["::", ""]
    if what == "class" and (match := re.match(r":ivar (\w+):", line)):
      name, getter = (
        match[1],
        getattr(getattr(found, match[1], None), "fget", found),
      )
      hint = typing.get_type_hints(getter).get(
        "return" if getter is not found else name
      )
      if hint is not None:
        shown = stringify_annotation(hint, "smart")
        lines.insert(number, f":vartype {name}: {shown}")


def _shorten(*event: typing.Any) -> tuple[str | None, str | None]:
  """Leaves out ranges, functions and what protocols inherit of typing."""
  *_, arguments, result = event
  if arguments:
    ranged = r"~typing\.Annotated\[([^,]+), [~.\w]+\(.*?\)\]"
    arguments = re.sub(ranged, r"\1", arguments)
    arguments = re.sub(r"<function [^,)]*", "...", arguments)
  return "" if arguments == "(*args, **kwargs)" else arguments, result


def _skip(*event: typing.Any) -> bool | None:
  """Leaves out the fields of named tuples, which their classes list."""
  return (event[3].__doc__ or "").startswith("Alias for field") or None


def _routes() -> str:
  """Returns a section for each route of the service."""
  source = (_ROOT / "realm_jax" / "serving" / "app.py").read_text()
  handlers = {
    node.name: ast.get_docstring(node)
    for node in ast.walk(ast.parse(source))
    if isinstance(node, ast.AsyncFunctionDef)
  }
  route = r'Route\("(.+)", self\.(\w+)(?:, methods=\["(\w+)"\])?\)'
  text = "".join(
    f"\n## {method or 'GET'} {path}\n\n{handlers[name]}\n"
    for path, name, method in re.findall(route, source)
  )
  # Sections of docstrings become lists.
  text = re.sub(r"^(Body|Reply):$", r"**\1**\n", text, flags=re.M)
  text = re.sub(r"^  (\w[\w, ]*): ", r"- `\1`: ", text, flags=re.M)
  return re.sub(r"^    ", "  ", text, flags=re.M)


def _commands() -> str:
  """Returns a section for each command: its docstring and its flags."""
  with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
    helps = [*pool.map(_help, COMMANDS)]
  parts = list[str]()
  for name, told in zip(COMMANDS, helps, strict=True):
    usage = told.findtext("usage") or ""
    parts += [f"## {name}", usage, _flags(told, "key", "yes")]
  common = _flags(helps[0], "file", _COMMON)
  return "\n\n".join([*parts, "## Flags of every command", common])


def _help(command: str) -> ElementTree.Element:
  line = [sys.executable, "-m", f"realm_jax.{command}", "--helpxml"]
  done = subprocess.run(line, cwd=_ROOT, stdout=subprocess.PIPE, check=True)
  return ElementTree.fromstring(done.stdout)


def _flags(told: ElementTree.Element, field: str, value: str) -> str:
  """Returns a list of those flags of a command that have a value in a field."""
  items = list[str]()
  for flag in told.iter("flag"):
    name, kind, default, text = (
      flag.findtext(one) or "" for one in ("name", "type", "default", "meaning")
    )
    text = text.partition(";\n    repeat this option")[0]
    kind = kind.replace("multi string", "string, repeatable")
    if choices := re.match(r"<(.+?)>: *", text):
      kind, text = choices[1].replace("|", ", "), text[choices.end() :]
    if default not in ("", "None", "[]"):
      kind += f"; default {default}"
    if flag.findtext(field) == value:
      # A choice may have a line of its own.
      items.append(f"- `--{name}` ({kind}): " + text.replace("\n", "\n  - "))
  return "\n".join(items)
