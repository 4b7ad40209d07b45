"""The examples of docstrings run as `help` shows them.

Each runs with the names of its module, in a folder with a corpus and two runs
of `tests/tiny_world.py`: `runs/qa`, which is also the name `run`, and
`runs/realm`.
"""

import ast
import doctest
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import realm_jax

_PACKAGE = Path(realm_jax.__file__).parent
# Whatever is public in these has an example.
_COMPLETE = ("realm_jax.api", "realm_jax.objectives.")
_NUMBER = re.compile(r"-?\d+\.\d* *")


class _Checker(doctest.OutputChecker):
  """Compares numbers to three decimals, as docstrings have them."""

  def check_output(self, want: str, got: str, optionflags: int) -> bool:
    texts = [_NUMBER.sub("0.0", text) for text in (want, got)]
    if not super().check_output(*texts, optionflags):
      return False
    numbers = [[*map(float, _NUMBER.findall(text))] for text in (want, got)]
    return np.allclose(*numbers, rtol=0, atol=1e-3)


def _docstrings() -> Iterator[tuple[str, str, ast.AST]]:
  """Yields what is public; an import hook hides it from `doctest`."""
  for file in sorted(_PACKAGE.rglob("*.py")):
    source = file.read_text(encoding="utf-8")
    parts = file.relative_to(_PACKAGE.parent).with_suffix("").parts
    module = ".".join(parts)
    if not (">>>" in source or module.startswith(_COMPLETE)):
      continue
    nodes: list[tuple[str, Any]] = [(f"{module}:", ast.parse(source))]
    for prefix, node in nodes:
      for one in node.body:
        is_documented = isinstance(one, (ast.ClassDef, ast.FunctionDef))
        if is_documented and not one.name.startswith("_"):
          yield f"{prefix}{one.name}", ast.get_docstring(one) or "", one
          if isinstance(one, ast.ClassDef):
            nodes.append((f"{prefix}{one.name}.", one))


_ALL = list(_docstrings())


@pytest.fixture(scope="module")
def folder(
  world, model_dir, keep_record, project_dir, tmp_path_factory
) -> Path:
  """Where examples run."""
  folder = tmp_path_factory.mktemp("examples")
  for name, target in {
    "corpus": world.corpus_dir,
    "questions.jsonl": world.question_file,
    "model.gin": project_dir / "tests/integration/tiny.gin",
    "bert": project_dir / "tests/golden/hf_bert/masked_lm",
  }.items():
    (folder / name).symlink_to(target)
  for name, recipe in {"qa": "open_qa", "realm": "pretrain"}.items():
    made = folder / "runs" / name
    made.mkdir(parents=True)
    for part in ("checkpoints", "snapshots"):
      (made / part).symlink_to(model_dir / part)
    keep_record(recipe, made)
  return folder


@pytest.fixture(scope="module")
def names(folder, one_device) -> dict[str, Any]:
  """What examples know besides the names of their modules."""
  known = {"jax": jax, "jnp": jnp, "np": np, "realm_jax": realm_jax}
  return {**known, "run": realm_jax.load(folder / "runs/qa")}


@pytest.mark.slow
@pytest.mark.parametrize(
  ("name", "text"), [(name, text) for name, text, _ in _ALL if ">>>" in text]
)
def test_an_example_runs(name, text, folder, names, monkeypatch):
  monkeypatch.chdir(folder)
  module = importlib.import_module(name.partition(":")[0])
  parsed = doctest.DocTestParser().get_doctest(
    text, {**vars(module), **names}, name, None, None
  )
  written = list[str]()
  runner = doctest.DocTestRunner(_Checker(), optionflags=doctest.ELLIPSIS)
  failed, _ = runner.run(parsed, out=written.append)
  assert not failed, "".join(written)


def test_what_users_call_has_an_example():
  # Classes and properties are shown with the functions that use them.
  assert [
    name
    for name, text, node in _ALL
    if isinstance(node, ast.FunctionDef)
    and "property" not in map(ast.unparse, node.decorator_list)
    and name.startswith(_COMPLETE)
    and text
    and ">>>" not in text
  ] == []
