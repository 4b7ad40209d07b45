"""Pages that list all of something list all of it."""

import re
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from realm_jax import configuration
from realm_jax.evaluation.scoring.summary import summarize
from realm_jax.objectives.inverse_cloze import inverse_cloze_loss
from realm_jax.objectives.masked_lm import marginal_masked_lm_loss
from realm_jax.objectives.open_qa import open_qa_loss
from tests.evaluation.scoring.lines import line
from tests.test_documents import COMMANDS, DOCUMENTS, gin_files_of

PROJECT_DIR = Path(__file__).resolve().parent.parent
# Names in capitals that are no settings: placeholders, environment variables.
_NO_SETTINGS = {
  *("BUCKET", "CLUSTER", "NAME", "NUMBER", "PROJECT"),
  *("EPATH_USE_TF", "TMPDIR", "TPU_LIBRARY_PATH", "XMANAGER_ENDPOINT"),
}


def _named_in(page: str) -> set[str]:
  """Words that stand in code quotes on a page of docs."""
  text = (PROJECT_DIR / "docs" / page).read_text()
  return set(re.findall(r"`([^`\s]+)`", text))


def _of_losses() -> Iterator[str]:
  """Names of what the objectives return, which nothing has to compute."""
  numbers = jax.ShapeDtypeStruct((2, 3), jnp.float32)
  truths = jax.ShapeDtypeStruct((2, 3), bool)
  spans = jax.ShapeDtypeStruct((2, 3, 4, 5), bool)
  scores = jax.ShapeDtypeStruct((2, 3, 4, 5), jnp.float32)
  targets = jax.ShapeDtypeStruct((2, 4), jnp.int32)
  weights = jax.ShapeDtypeStruct((2, 4), jnp.float32)
  removed = jax.ShapeDtypeStruct((2,), bool)
  for loss, arrays in (
    (inverse_cloze_loss, (numbers, numbers, removed)),
    (marginal_masked_lm_loss, (numbers, scores, targets, weights)),
    (open_qa_loss, (numbers, truths, scores, spans, spans)),
  ):
    yield "loss"
    yield from jax.eval_shape(loss, *arrays).metrics


def _of_hosts() -> Iterator[str]:
  """Names of what the loop adds: `metrics["name"] = …` in the sources."""
  for folder in ("training", "retrieval"):
    for path in (PROJECT_DIR / "realm_jax" / folder).rglob("*.py"):
      yield from re.findall(r'metrics\["(\w+)"\] = ', path.read_text())


def test_every_metric_of_a_step_is_described():
  names = {*_of_losses(), *_of_hosts()}
  assert {"loss", "retrieval_utility", "span_accuracy", "search_ms"} <= names
  assert names - _named_in("metrics.md") == set()


def test_every_figure_of_an_evaluation_is_described():
  answered = {"prediction": "x", "answers": [], "f1": 1.0, "correct": True}
  of_answers = summarize([line(0, **answered), line(1, **answered)])
  patterns = {**answered, "answer_kind": "regex", "f1": None}
  of_patterns = summarize([line(0, **patterns)])
  names = {*of_answers, *of_patterns}
  assert {"exact_match", "f1", "bad_patterns", "intervals"} <= names
  assert names - _named_in("metrics.md") == set()


def test_every_recipe_is_listed():
  listed = _named_in("recipes.md")
  for path in sorted((PROJECT_DIR / "gin").rglob("*.gin")):
    name = path.relative_to(PROJECT_DIR)
    # The recipes of an experiment are listed by their folder.
    assert {str(name), f"{name.parent}/"} & listed, f"{name} is not listed"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_the_settings_it_names_exist(document: str):
  text = (PROJECT_DIR / document).read_text()
  named = re.findall(r"`(?:--gin\.)?%?([A-Z][A-Z0-9_]{3,})(?:`| ?=)", text)
  settings = {
    name
    for path in (PROJECT_DIR / "gin").rglob("*.gin")
    for name in re.findall(r"^([A-Z][A-Z0-9_]+) = ", path.read_text(), re.M)
  }
  unknown = {
    name
    for name in {*named} - settings - _NO_SETTINGS
    if not name.startswith("REALM_JAX_")
  }
  assert not unknown, f"{document} names settings that do not exist"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_the_recipes_it_shows_can_be_read(document: str, tmp_path: Path):
  for name, text in gin_files_of(document).items():
    (tmp_path / name).write_text(text)
    # It is used by a command of the page.
    used = [c for c in COMMANDS if f"--gin_file={name}" in c.arguments]
    assert [c.document for c in used] == [document]
    data = ['MODEL_DIR = "run"', 'CORPUS_DIR = "corpus"']
    with configuration.parsed([str(tmp_path / name)], data):
      pass
