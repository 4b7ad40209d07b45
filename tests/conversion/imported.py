"""Imports a model as the command does, and loads what was imported."""

import dataclasses
from pathlib import Path
from typing import Any, NamedTuple

from realm_jax import configuration
from realm_jax.checkpoints.store import CheckpointStore
from realm_jax.conversion import importing
from realm_jax.conversion.bert_models import TowerOptions
from realm_jax.conversion.google.released_index import BlockOptions
from realm_jax.conversion.mapping import Allowance
from realm_jax.conversion.parameters import BoundModel
from realm_jax.conversion.planning import ImportSource
from realm_jax.models.reader import Reader
from realm_jax.models.retriever import Retriever
from realm_jax.text.wordpieces import WordpieceVocabulary


def import_weights(
  kind: str, path: str | Path, output_dir: str | Path, **options: Any
) -> str:
  """Imports with options that have the names of the command's flags."""
  allowed = {n: options.pop(f"allow_{n}", ()) for n in ("left", "fresh")}
  seed = options.pop("seed", 0)

  def take(target: type[Any], **given: Any) -> Any:
    names = {field.name for field in dataclasses.fields(target)}
    given |= {n: options.pop(n) for n in names & options.keys()}
    return target(**given)

  source = take(ImportSource, kind=kind, input=path)
  towers, blocks = take(TowerOptions), take(BlockOptions)
  assert not options
  return importing.import_weights(
    source,
    output_dir,
    towers=towers,
    blocks=blocks,
    allowance=Allowance(**allowed),
    seed=seed,
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
