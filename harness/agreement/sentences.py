"""Compares vectors and losses with sentence-transformers.

MiniLM is imported. Then MiniLM and a REALM retriever of BERT-base size are
exported.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from etils import epath
from jaxtyping import Int

from harness import peer_processes
from harness.agreement import imported_model
from harness.agreement.comparison import (
  Row,
  differences,
  gradient_cosines,
  relative,
  unequal,
)
from harness.agreement.imported_model import ImportedModel
from realm_jax.text.vocabulary import BertVocabulary
from realm_jax.training.stages.contrastive import Contrastive
from realm_jax.weights import exporting
from realm_jax.weights.hugging_face import read_cross_encoder
from realm_jax.weights.mapped_weights import (
  BoundModel,
  MappedWeights,
  flattened,
  map_weights,
)
from realm_jax.weights.name_maps import RETRIEVER
from realm_jax.weights.registry import ImportConfig

# Limit for vectors of length 1 (MiniLM), or about 10 (REALM).
_LIMIT = 1e-5
_QUERIES = (
  "who built the bridge over the river in York?",
  "What was Ada Lovelace's mother called?",
  "where was the first railway of the United States, in 1827, opened",
)
_NEGATIVES = (
  "It crosses the Ouse at York.",
  "Lovelace wrote about the engine of Charles Babbage.",
  "The first steam locomotive ran in Wales.",
)
_DOCUMENTS = (
  ("Forth Bridge", "It was built by the railway. It's 2,467 m long."),
  ("", "A passage without a title, about Zoë Çelik and Kraków."),
  ("Baltimore and Ohio Railroad (B&O)", "Merchants of Baltimore were afraid."),
)


def compare_sentences(minilm: Path, realm: Path, folder: Path) -> Iterator[Row]:
  """Compares the released MiniLM, then our exports of both models.

  Args:
    minilm: Folder of MiniLM's weights.
    realm: Folder of a random RealmEmbedder.
    folder: Folder for exports and for files between the processes.
  """
  for name, kind, source in (
    ("MiniLM", "hf_bert", minilm),
    ("REALM", "hf_realm", realm),
  ):
    mapped = map_weights(ImportConfig(kind, source, parts=(RETRIEVER,)))
    model, words = imported_model.load(mapped), mapped.model.vocabulary
    if name == "MiniLM":
      yield from _compare("MiniLM imported", model, words, minilm, folder)
      yield from _compare_losses(model, mapped, minilm, folder)
      yield _compare_pairs(words, minilm, folder)
    exported = folder / f"{name}_exported"
    exported.mkdir()
    bound = BoundModel(model.retriever, model.reader, words)
    parameters = flattened({RETRIEVER: model.params[RETRIEVER]})
    exporting.write_export(
      exporting.plan_export(bound, to="sentence_transformers"),
      epath.Path(exported),
      {path: np.asarray(array) for path, array in parameters.items()},
      words,
    )
    yield from _compare(f"{name} exported", model, words, exported, folder)


def _compare(
  name: str,
  model: ImportedModel,
  words: BertVocabulary,
  theirs: Path,
  folder: Path,
) -> Iterator[Row]:
  """Compares the tokens and vectors of queries and of documents."""
  retriever = model.retriever
  queries = [words.encode(text) for text in _QUERIES]
  blocks = [
    [*words.encode(title), words.sep_id, *words.encode(body)]
    for title, body in _DOCUMENTS
  ]
  documents: Sequence[str | tuple[str, str]] = _DOCUMENTS
  if not retriever.title_separator:
    documents = [f"{title} {body}" for title, body in _DOCUMENTS]
  for side, texts, ids, prepare, embed in (
    ("queries", _QUERIES, queries, retriever.query_input, model.query_vectors),
    (
      "documents",
      documents,
      blocks,
      retriever.block_input,
      model.block_vectors,
    ),
  ):
    expected = peer_processes.run_on_texts(
      "vectors", texts, folder, model=theirs
    )
    token_ids = _padded(words, ids)
    read = np.asarray(prepare(token_ids))[:, : expected["token_ids"].shape[1]]
    what = f"{name}, {side}"
    yield unequal(f"{what}: tokens", read, expected["token_ids"])
    yield differences(
      f"{what}: vectors", embed(token_ids), expected["vectors"], _LIMIT
    )


def _compare_losses(
  model: ImportedModel, mapped: MappedWeights, theirs: Path, folder: Path
) -> Iterator[Row]:
  """Compares the contrastive losses and their gradients."""
  words = mapped.model.vocabulary
  passages = [f"{title} {body}".strip() for title, body in _DOCUMENTS]
  rows = [*zip(_QUERIES, passages, reversed(_NEGATIVES), strict=True)]
  expected = peer_processes.run_on_texts("losses", rows, folder, model=theirs)
  query = _padded(words, [words.encode(text) for text in _QUERIES])
  # Blocks have titles, which are empty here.
  texts = [[words.sep_id, *words.encode(x)] for row in rows for x in row[1:]]
  blocks = _padded(words, texts).reshape(len(query), 2, -1)
  # By default, their losses multiply cosines by 20.
  temperature = model.retriever.score_scale / 20
  settings: dict[str, dict[str, Any]] = {
    "ranking": {},
    "cached": {},
    "symmetric": {"symmetric": True},
    "matryoshka": {"vector_sizes": (128, 32)},
  }
  for name, choices in settings.items():
    stage = Contrastive(temperature=temperature, **choices)
    read = blocks[:, :1] if name == "symmetric" else blocks
    graded = model.contrastive(stage, query, read)
    yield relative(
      f"{name} loss", graded.metrics["loss"], expected[f"{name}/loss"]
    )
    prefix = f"{name}/gradient/"
    gradient = {
      path.removeprefix(prefix): array
      for path, array in expected.items()
      if path.startswith(prefix)
    }
    yield gradient_cosines(
      f"{name} loss: gradient",
      {p: g for p, g in graded.gradient.items() if p.startswith(RETRIEVER)},
      imported_model.named_as_ours(mapped, gradient),
      # These add the same value to all scores of a softmax.
      without=("attention/key/bias",),
    )


def _compare_pairs(words: BertVocabulary, minilm: Path, folder: Path) -> Row:
  """Compares the scores of an imported cross-encoder."""
  passages = [f"{title} {body}".strip() for title, body in _DOCUMENTS]
  pairs = [(query, text) for query in _QUERIES for text in passages]
  expected = peer_processes.run_on_texts("pairs", pairs, folder, model=minilm)
  module, params, *_ = read_cross_encoder(folder / "pairs")
  query = _padded(words, [words.encode(text) for text in _QUERIES])
  blocks = [
    [*words.encode(title), words.sep_id, *words.encode(body)]
    for title, body in _DOCUMENTS
  ]
  each = np.tile(_padded(words, blocks), (len(query), 1, 1))
  scores = np.asarray(module.apply({"params": params}, query, each))
  theirs = expected["scores"].reshape(scores.shape)
  return differences("cross-encoder: scores", scores, theirs)


def _padded(
  words: BertVocabulary, ids: Sequence[Sequence[int]]
) -> Int[np.ndarray, "n l"]:
  """Returns `[CLS] … [SEP]` of each row, padded."""
  rows = [[words.cls_id, *row, words.sep_id] for row in ids]
  padded = np.zeros((len(rows), max(map(len, rows))), np.int32)
  for target, row in zip(padded, rows, strict=True):
    target[: len(row)] = row
  return padded
