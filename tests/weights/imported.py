"""Imports a model as the command does, and loads what was imported."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from realm_jax import configuration
from realm_jax.checkpoints.store import CheckpointStore
from realm_jax.models.reader import Reader
from realm_jax.models.retriever import Retriever
from realm_jax.text.wordpieces import WordpieceVocabulary
from realm_jax.weights import importing
from realm_jax.weights.formats import ImportConfig
from realm_jax.weights.model import BoundModel
from realm_jax.weights.plan import Plan, make_plan


class Read(NamedTuple):
  """A plan, the parameters by path, and the report."""

  plan: Plan
  params: dict[str, np.ndarray]
  report: str

  def part_of_report(self, title: str) -> str:
    """Returns the lines below the title that begins so."""
    return self.report.partition(f"\n{title}")[2].partition("\n  ")[2]


def read(kind: str, path: str | Path, **options: Any) -> Read:
  """Reads weights into memory."""
  plan = make_plan(ImportConfig(kind, path, **options))
  params, lines = plan.load()
  return Read(plan, params, "\n".join([*lines, *plan.notes]))


def import_weights(
  kind: str, path: str | Path, output_dir: str | Path, **options: Any
) -> str:
  """Writes a MODEL_DIR; the options have the names of the command's flags."""
  return importing.import_weights(
    ImportConfig(kind, path, **options), output_dir
  )


class Imported(NamedTuple):
  """The modules that model.gin binds, and the parameters of checkpoint 0."""

  retriever: Retriever
  reader: Reader
  params: dict[str, Any]


def load(model_dir: Path) -> Imported:
  """Reads a MODEL_DIR with nothing but its own files."""
  vocabulary = WordpieceVocabulary(model_dir / "vocab.txt")
  with configuration.parsed(None, [str(model_dir / "model.gin")]):
    retriever = configuration.configured(Retriever)()
    reader = configuration.configured(Reader)()
  store = CheckpointStore(model_dir)
  items = sorted(store.items(0) - {"loop"})
  params = store.restore(0, items=items)
  store.close()
  bound = BoundModel.of(retriever, reader, vocabulary)
  return Imported(bound.retriever, bound.reader, params)
