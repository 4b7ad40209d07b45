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
from typing import Any, NamedTuple

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


class _Documented(NamedTuple):
  """A public class or function of a module, with its docstring."""

  module: str
  name: str
  text: str
  is_called: bool

  def __str__(self) -> str:
    return f"{self.module}:{self.name}"


def _documented() -> Iterator[_Documented]:
  """Yields all that is public; an import hook hides it from `doctest`."""

  def inside(node: Any, prefix: str) -> Iterator[_Documented]:
    for one in node.body:
      is_documented = isinstance(one, (ast.ClassDef, ast.FunctionDef))
      if not is_documented or one.name.startswith("_"):
        continue
      name, text = f"{prefix}{one.name}", ast.get_docstring(one) or ""
      # Classes and properties are shown in examples of functions.
      is_called = isinstance(one, ast.FunctionDef) and not any(
        "property" in ast.dump(decorator) for decorator in one.decorator_list
      )
      yield _Documented(module, name, text, is_called and bool(text))
      if isinstance(one, ast.ClassDef):
        yield from inside(one, f"{name}.")

  for file in sorted(_PACKAGE.rglob("*.py")):
    parts = file.relative_to(_PACKAGE.parent).with_suffix("").parts
    module = ".".join(parts)
    yield from inside(ast.parse(file.read_text(encoding="utf-8")), "")


_ALL = list(_documented())


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
  "one", [one for one in _ALL if ">>>" in one.text], ids=str
)
def test_an_example_runs(one, folder, names, monkeypatch):
  monkeypatch.chdir(folder)
  scope = {**vars(importlib.import_module(one.module)), **names}
  parsed = doctest.DocTestParser().get_doctest(
    one.text, scope, str(one), None, None
  )
  written = list[str]()
  runner = doctest.DocTestRunner(_Checker(), optionflags=doctest.ELLIPSIS)
  failed, _ = runner.run(parsed, out=written.append)
  assert not failed, "".join(written)


def test_what_users_call_has_an_example():
  lacking = [
    str(one)
    for one in _ALL
    if one.module.startswith(_COMPLETE)
    and one.is_called
    and ">>>" not in one.text
  ]
  assert lacking == []
