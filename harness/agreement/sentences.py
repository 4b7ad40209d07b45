"""Compares vectors with those of sentence-transformers.

MiniLM is imported, and it and a REALM retriever of BERT-base size are exported.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from etils import epath
from jaxtyping import Int

from harness import peer_processes
from harness.agreement import imported_model
from harness.agreement.comparison import Row, differences, unequal
from harness.agreement.imported_model import ImportedModel
from realm_jax.text.wordpieces import WordpieceVocabulary
from realm_jax.weights import exporting
from realm_jax.weights.mapped_weights import BoundModel, flattened, map_weights
from realm_jax.weights.name_maps import RETRIEVER
from realm_jax.weights.registry import ImportConfig

# Of vectors of length 1 (MiniLM), or of about 10 (REALM).
_LIMIT = 1e-5
_QUERIES = (
  "who built the bridge over the river in York?",
  "What was Ada Lovelace's mother called?",
  "where was the first railway of the United States, in 1827, opened",
)
_DOCUMENTS = (
  ("Forth Bridge", "It was built by the railway. It's 2,467 m long."),
  ("", "A passage without a title, about Zoë Çelik and Kraków."),
  ("Baltimore and Ohio Railroad (B&O)", "Merchants of Baltimore were afraid."),
)


def compare_sentences(minilm: Path, realm: Path, folder: Path) -> Iterator[Row]:
  """Compares MiniLM as it is released, then both models as we export them.

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
  words: WordpieceVocabulary,
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
    found = peer_processes.run_on_texts("vectors", texts, folder, model=theirs)
    token_ids = _padded(words, ids)
    read = np.asarray(prepare(token_ids))[:, : found["token_ids"].shape[1]]
    what = f"{name}, {side}"
    yield unequal(f"{what}: tokens", read, found["token_ids"])
    yield differences(
      f"{what}: vectors", embed(token_ids), found["vectors"], _LIMIT
    )


def _padded(
  words: WordpieceVocabulary, ids: Sequence[Sequence[int]]
) -> Int[np.ndarray, "n l"]:
  """Returns `[CLS] … [SEP]` of each row, padded."""
  rows = [[words.cls_id, *row, words.sep_id] for row in ids]
  padded = np.zeros((len(rows), max(map(len, rows))), np.int32)
  for target, row in zip(padded, rows, strict=True):
    target[: len(row)] = row
  return padded
