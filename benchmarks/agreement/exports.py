"""Compares exported retrievers in sentence-transformers with our vectors."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from etils import epath

from benchmarks import peer_processes
from benchmarks.agreement import comparison, imported_model
from benchmarks.agreement.comparison import Row
from benchmarks.agreement.imported_model import ImportedModel
from realm_jax.models.bert import BertConfig
from realm_jax.models.retriever import Retriever
from realm_jax.text.wordpieces import WordpieceVocabulary
from realm_jax.weights import exporting
from realm_jax.weights.formats import ImportConfig
from realm_jax.weights.model import (
  BoundModel,
  default_reader,
  flattened,
  nested,
  parameter_shapes,
)
from realm_jax.weights.plan import make_plan
from realm_jax.weights.tables import RETRIEVER

_LIMIT = 1e-5
QUERIES = (
  "who built the bridge over the river in York?",
  "What was Ada Lovelace's mother called?",
  "where was the first railway of the United States, in 1827, opened",
)
DOCUMENTS = (
  ("Forth Bridge", "It was built by the railway. It's 2,467 m long."),
  ("", "A passage without a title, about Zoë Çelik and Kraków."),
  ("Baltimore and Ohio Railroad (B&O)", "Merchants of Baltimore were afraid."),
)
_SIZES = {
  "base": BertConfig(),
  "tiny": BertConfig(
    hidden_size=24, num_layers=2, num_heads=2, intermediate_size=48
  ),
}


def compare_exports(minilm: Path, folder: Path, *, size: str) -> list[Row]:
  """Compares REALM's towers, of random parameters, and MiniLM's.

  Args:
    minilm: Folder of MiniLM's weights and vocabulary.
    folder: Folder for exported models and files between the processes.
    size: Size of the random model, `tiny` or `base`.
  """
  words = WordpieceVocabulary(minilm / "vocab.txt")
  config = ImportConfig("hf_bert", minilm, parts=(RETRIEVER,))
  imported = imported_model.load(make_plan(config))
  retriever = Retriever(bert=_SIZES[size], projection_dropout_rate=0.0)
  models = {"REALM": _random_model(retriever, words), "MiniLM": imported}
  return [
    row
    for name, model in models.items()
    for row in _compare(name, model, words, folder)
  ]


def _random_model(
  retriever: Retriever, words: WordpieceVocabulary, *, seed: int = 0
) -> ImportedModel:
  """Returns a model in which also biases and norms are drawn at random."""
  bound = BoundModel.of(retriever, default_reader(retriever.bert), words)
  rng = np.random.default_rng(seed)
  parameters = {}
  shapes = parameter_shapes(bound.retriever, bound.reader, (RETRIEVER,))
  for path, shape in shapes.items():
    # Products keep the scale of their inputs at any width.
    scale = 0.9 / np.sqrt(shape[0]) if path.endswith("kernel") else 0.1
    mean = 1.0 if path.endswith("scale") else 0.0
    parameters[path] = rng.normal(mean, scale, shape).astype(np.float32)
  return ImportedModel(bound.retriever, bound.reader, nested(parameters))


def _compare(
  name: str, model: ImportedModel, words: WordpieceVocabulary, folder: Path
) -> list[Row]:
  bound = BoundModel(model.retriever, model.reader, words)
  parameters = {
    path: np.asarray(array)
    for path, array in flattened({RETRIEVER: model.params[RETRIEVER]}).items()
  }
  directory = folder / f"exported_{name}"
  directory.mkdir()
  export = exporting.plan_export(bound, to="sentence_transformers")
  export.write(epath.Path(directory), parameters, words.pieces)
  documents: Sequence[str | tuple[str, str]] = DOCUMENTS
  if not model.retriever.title_separator:
    documents = [f"{title} {body}" for title, body in DOCUMENTS]
  rows = []
  for side, texts, ids, ours, prepare in (
    (
      "queries",
      QUERIES,
      [words.encode(text) for text in QUERIES],
      model.query_vectors,
      model.retriever.query_input,
    ),
    (
      "documents",
      documents,
      [
        [*words.encode(title), words.sep_id, *words.encode(body)]
        for title, body in DOCUMENTS
      ],
      model.block_vectors,
      model.retriever.block_input,
    ),
  ):
    theirs = peer_processes.run_on_texts(
      "vectors", texts, folder, model=directory
    )
    token_ids = _padded(words, ids)
    tokens = np.asarray(prepare(token_ids))[:, : theirs["token_ids"].shape[1]]
    what = f"{name} exported to sentence-transformers: {side}"
    rows += [
      comparison.unequal(f"{what}, tokens", tokens, theirs["token_ids"]),
      comparison.differences(
        what, ours(token_ids), theirs["vectors"], limit=_LIMIT
      ),
    ]
  return rows


def _padded(
  words: WordpieceVocabulary, ids: Sequence[Sequence[int]]
) -> np.ndarray:
  """Returns `[CLS] … [SEP]` of each row, padded."""
  rows = [[words.cls_id, *row, words.sep_id] for row in ids]
  padded = np.zeros((len(rows), max(map(len, rows))), np.int32)
  for target, row in zip(padded, rows, strict=True):
    target[: len(row)] = row
  return padded
