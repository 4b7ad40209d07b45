"""What a command that is given an imported MODEL_DIR has in its hands."""

from pathlib import Path
from typing import Any, NamedTuple

from realm_jax import configuration
from realm_jax.checkpoints.manager import CheckpointStore
from realm_jax.models.reader import Reader
from realm_jax.models.retriever import Retriever
from realm_jax.text.wordpieces import WordpieceVocabulary


class Imported(NamedTuple):
  """The modules that model.gin binds, and the parameters of checkpoint 0."""

  retriever: Retriever
  reader: Reader
  params: dict[str, Any]


def load(model_dir: Path) -> Imported:
  """Reads a MODEL_DIR with nothing but its own files."""
  vocabulary = WordpieceVocabulary(model_dir / "vocab.txt")
  settings = {
    "vocab_size": vocabulary.vocab_size,
    "separator_id": vocabulary.sep_id,
  }
  with configuration.parsed([str(model_dir / "model.gin")]):
    retriever = configuration.configured(Retriever)()
    reader = configuration.configured(Reader)()
  store = CheckpointStore(model_dir)
  items = sorted(store.items(0) - {"loop"})
  params = store.restore(0, items=items)
  store.close()
  return Imported(
    retriever.for_vocabulary(**settings),
    reader.for_vocabulary(**settings),
    params,
  )
