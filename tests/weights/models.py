"""Tiny models: transformers' own in `tests/golden`, and one of this project."""

import functools
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import safetensors.numpy

from realm_jax import configuration
from realm_jax.models.bert import BertConfig
from realm_jax.models.reader import BertReader
from realm_jax.models.retriever import BertRetriever
from realm_jax.storage.json_files import write_json
from realm_jax.text.wordpieces import WordpieceVocabulary
from realm_jax.weights import importing
from realm_jax.weights.mapped_weights import (
  BoundModel,
  MappedWeights,
  map_weights,
)
from realm_jax.weights.registry import ImportConfig
from tests import tiny_world

GOLDEN = Path(__file__).resolve().parents[1] / "golden"

# --- Directories of Hugging Face ----------------------------------------------


def tensors(directory: Path) -> dict[str, np.ndarray]:
  """Returns the tensors of a directory by name."""
  return safetensors.numpy.load_file(directory / "model.safetensors")


def copy(
  name: str,
  directory: Path,
  weights: dict[str, np.ndarray] | None = None,
  pieces: list[str] | None = None,
  **changes: Any,
) -> Path:
  """Copies a golden model, with other weights, pieces or config.json."""
  golden = GOLDEN / name
  config = json.loads((golden / "config.json").read_text(encoding="utf-8"))
  write_json(directory / "config.json", config | changes)
  weights = tensors(golden) if weights is None else weights
  safetensors.numpy.save_file(weights, directory / "model.safetensors")
  words = (golden / "vocab.txt").read_text(encoding="utf-8")
  words = "\n".join(pieces) if pieces else words
  (directory / "vocab.txt").write_text(words, encoding="utf-8")
  return directory


def write_sentence_modules(directory: Path) -> None:
  """Writes what sentence-transformers adds for the mean of tokens."""
  chain = {
    "": "Transformer",
    "1_Pooling": "Pooling",
    "2_Normalize": "Normalize",
  }
  write_json(
    directory / "modules.json",
    [{"path": path, "type": f"models.{kind}"} for path, kind in chain.items()],
  )
  modes = ("cls_token", "mean_tokens", "max_tokens")
  write_json(
    directory / "1_Pooling" / "config.json",
    {f"pooling_mode_{name}": name == "mean_tokens" for name in modes},
  )


# --- Imports ------------------------------------------------------------------


def read(kind: str, path: str | Path, **options: Any) -> MappedWeights:
  """Reads weights into memory."""
  return map_weights(ImportConfig(kind, path, **options))


def part_of_report(mapped: MappedWeights, title: str) -> str:
  """Returns the lines below the title that begins so."""
  report = "\n".join(mapped.lines)
  return report.partition(f"\n{title}")[2].partition("\n  ")[2]


def import_weights(
  kind: str, path: str | Path, output_dir: str | Path, **options: Any
) -> str:
  """Writes a MODEL_DIR; the options have the names of the command's flags."""
  config = ImportConfig(kind, path, **options)
  return importing.import_weights(config, output_dir)


def load(model_dir: Path) -> tuple[BertRetriever, BertReader]:
  """Returns the modules that a MODEL_DIR's own file binds."""
  parsed = configuration.parsed(None, [str(model_dir / "config.json")])
  models = (parsed.names["RETRIEVER"], parsed.names["READER"])
  return tuple(parsed.configured(one)() for one in models)


# --- A model of this project, over the words of the tiny world ----------------

BERT = BertConfig(
  hidden_size=8,
  num_layers=2,
  num_heads=2,
  intermediate_size=12,
  max_positions=64,
)
RETRIEVER = BertRetriever(bert=BERT, projection_size=4)
READER = BertReader(bert=BERT, joint_length=40, span_size=6, max_answer_width=4)


@functools.cache
def vocabulary() -> WordpieceVocabulary:
  return WordpieceVocabulary(tiny_world.pieces())


def bound(retriever: BertRetriever, reader: BertReader = READER) -> BoundModel:
  return BoundModel.of(retriever, reader, vocabulary())


def assert_same_bits(one: Any, two: Any) -> None:
  """Checks that two trees have the same leaves, dtypes included."""
  assert jax.tree.structure(one) == jax.tree.structure(two)
  for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True):
    assert a.dtype == b.dtype
    np.testing.assert_array_equal(a, b)
