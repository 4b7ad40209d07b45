"""Compares imported REALM models with Hugging Face's values.

`harness/peers/realm.py` creates the models, their inputs and these values.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from harness.agreement import imported_model
from harness.agreement.comparison import (
  Row,
  differences,
  gradient_cosines,
  relative,
  unequal,
)
from harness.agreement.imported_model import Graded, ImportedModel
from realm_jax.weights.mapped_weights import (
  BLOCK_VECTORS,
  MappedWeights,
  map_weights,
)
from realm_jax.weights.registry import ImportConfig

Arrays = Mapping[str, np.ndarray]

# Biases that add the same value to all scores of a softmax.
_WITHOUT_GRADIENT = (
  "attention/key/bias",
  "span_head/norm/bias",
  "span_head/score/bias",
)


def compare_two_towers(folder: Path) -> list[Row]:
  """Compares the relevance of a scorer with two towers."""
  mapped, expected = _read(folder / "two_towers")
  model = imported_model.load(mapped)
  ours = model.relevance(expected["query"], expected["candidates"])
  return [differences("two towers: relevance", ours, expected["relevance"])]


def compare_pretraining(folder: Path) -> list[Row]:
  """Compares relevance, masked-LM logits, and REALM's loss and gradient."""
  mapped_scorer, of_scorer = _read(folder / "scorer")
  mapped_encoder, expected = _read(folder / "encoder")
  retrieving, reading = map(
    imported_model.load, (mapped_scorer, mapped_encoder)
  )
  params = {name: retrieving.params[name] for name in mapped_scorer.parts}
  params |= {name: reading.params[name] for name in mapped_encoder.parts}
  model = ImportedModel(retrieving.retriever, reading.reader, params)
  query, candidates = expected["query"], expected["candidates"]
  logits = model.masked_lm_logits(query, candidates, expected["mask_positions"])
  graded = model.pretraining(expected)
  relevance = model.relevance(query, candidates)
  return [
    differences("scorer: relevance", relevance, expected["relevance"]),
    differences("encoder: masked-LM logits", logits, expected["logits"]),
    relative("pre-training: loss", graded.metrics["loss"], expected["loss"]),
    relative(
      "pre-training: loss of the step that ours is timed against",
      *(graded.metrics["loss"], expected["tuned_loss"]),
    ),
    _gradients("pre-training: retriever", graded, mapped_scorer, of_scorer),
    _gradients("pre-training: reader", graded, mapped_encoder, expected),
  ]


def compare_open_qa(folder: Path) -> list[Row]:
  """Compares relevance of stored vectors, span scores, and ORQA's loss."""
  mapped, expected = _read(folder / "open_qa")
  model = imported_model.load(mapped)
  stored = np.asarray(mapped.source.tensors[BLOCK_VECTORS])
  rows = expected["rows"]
  query = expected["query"]
  relevance = np.einsum("bd,nd->bn", model.query_vectors(query), stored)
  best = np.argsort(-relevance, axis=-1)[:, : rows.shape[1]]
  candidates = _blocks_read(mapped, expected)
  batch = {**expected, "candidates": candidates, "vectors": stored[rows]}
  graded = model.open_qa(batch)
  of_rows = np.take_along_axis(relevance, rows, axis=-1)
  logits = model.span_logits(query, candidates)
  theirs = expected["span_logits"]
  # The best span, chosen as in evaluations.
  totals = logits + of_rows[:, : theirs.shape[1], None, None]
  best_spans = np.nanargmax(totals.reshape(len(query), -1), axis=1)
  chosen = np.stack(np.unravel_index(best_spans, theirs.shape[1:]), axis=-1)
  return [
    differences("open QA: relevance", of_rows, expected["relevance"]),
    unequal("open QA: retrieved blocks and their order", best, rows),
    unequal("open QA: valid spans", np.isnan(logits), np.isnan(theirs)),
    differences(
      "open QA: span logits", np.nan_to_num(logits), np.nan_to_num(theirs)
    ),
    unequal("open QA: predicted span", chosen, expected["span"]),
    unequal(
      "open QA: block of the answer",
      rows[np.arange(len(rows)), chosen[:, 0]],
      expected["predicted_row"],
    ),
    *(
      relative(
        *(f"open QA: {name}", graded.metrics[name]),
        np.float64(expected[name]).mean(),
      )
      for name in ("retriever_loss", "reader_loss", "loss")
    ),
    _gradients("open QA", graded, mapped, expected),
  ]


def _blocks_read(mapped: MappedWeights, expected: Arrays) -> np.ndarray:
  """Returns the blocks that the reader reads, [b k l].

  They are `[CLS] [SEP] body [SEP]`, because Hugging Face's blocks have no
  titles.
  """
  words = mapped.model.vocabulary
  _, num_read, length, _ = expected["span_logits"].shape
  rows = expected["rows"][:, :num_read]
  blocks = np.zeros((*rows.shape, length), np.int32)
  for place in np.ndindex(rows.shape):
    body = words.encode(str(expected["texts"][rows[place]]))
    tokens = [words.cls_id, words.sep_id, *body, words.sep_id]
    blocks[place][: len(tokens)] = tokens
  return blocks


def _read(folder: Path) -> tuple[MappedWeights, Arrays]:
  with np.load(folder / "expected.npz", allow_pickle=False) as expected:
    return map_weights(ImportConfig("hf_realm", folder)), dict(expected)


COMPARISONS = (compare_two_towers, compare_pretraining, compare_open_qa)


def _gradients(
  what: str, graded: Graded, mapped: MappedWeights, expected: Arrays
) -> Row:
  """Compares the gradients of the imported parts."""
  theirs = {
    name.removeprefix("gradient/"): array
    for name, array in expected.items()
    if name.startswith("gradient/")
  }
  ours = {
    path: array
    for path, array in graded.gradient.items()
    if path.partition("/")[0] in mapped.parts
  }
  return gradient_cosines(
    f"{what}: gradient",
    ours,
    imported_model.named_as_ours(mapped, theirs),
    without=_WITHOUT_GRADIENT,
  )
