"""Compares imported REALM models with Hugging Face's own values.

`benchmarks/peers/realm.py` makes the models, their inputs and these values.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from benchmarks.agreement import imported_model
from benchmarks.agreement.comparison import (
  Row,
  differences,
  gradient_cosines,
  relative,
  unequal,
)
from benchmarks.agreement.imported_model import ImportedModel, LossAndGradient
from realm_jax.weights.formats import ImportConfig
from realm_jax.weights.hugging_face import BLOCK_VECTORS
from realm_jax.weights.plan import Plan, make_plan

Arrays = Mapping[str, np.ndarray]

_EXPECTED = "expected.npz"
_GRADIENT = "gradient/"
# Biases that add the same value to all scores of a softmax.
_WITHOUT_GRADIENT = (
  "attention/key/bias",
  "span_head/norm/bias",
  "span_head/score/bias",
)


def compare_embedder(folder: Path) -> list[Row]:
  """Compares projected vectors."""
  plan, expected = _read(folder / "embedder")
  model = imported_model.load(plan)
  return [
    differences(
      "embedder: query vectors",
      model.query_vectors(expected["query"]),
      expected["query_vectors"],
    ),
    differences(
      "embedder: block vectors",
      model.block_vectors(expected["block"]),
      expected["block_vectors"],
    ),
  ]


def compare_two_towers(folder: Path) -> list[Row]:
  """Compares the relevance of a scorer with two towers."""
  plan, expected = _read(folder / "two_towers")
  found = imported_model.load(plan).relevance(
    expected["query"], expected["candidates"]
  )
  return [
    differences("scorer, two towers: relevance", found, expected["relevance"])
  ]


def compare_pretraining(folder: Path) -> list[Row]:
  """Compares relevance, masked-LM logits, and REALM's loss and gradient."""
  scorer_plan, of_scorer = _read(folder / "scorer")
  encoder_plan, expected = _read(folder / "encoder")
  retrieving, reading = map(imported_model.load, (scorer_plan, encoder_plan))
  params = {name: retrieving.params[name] for name in scorer_plan.parts}
  params |= {name: reading.params[name] for name in encoder_plan.parts}
  model = ImportedModel(retrieving.retriever, reading.reader, params)
  query, candidates = expected["query"], expected["candidates"]
  logits = model.masked_lm_logits(query, candidates, expected["mask_positions"])
  graded = model.pretraining(expected)
  relevance = model.relevance(query, candidates)
  return [
    differences("scorer: relevance", relevance, expected["relevance"]),
    differences("encoder: masked-LM logits", logits, expected["logits"]),
    relative("pre-training: loss", graded.loss, float(expected["loss"])),
    _gradients("pre-training: retriever", graded, scorer_plan, of_scorer),
    _gradients("pre-training: reader", graded, encoder_plan, expected),
  ]


def compare_reader(folder: Path) -> list[Row]:
  """Compares span scores and ORQA's loss, with given relevance."""
  plan, expected = _read(folder / "reader")
  model = imported_model.load(plan)
  batch = {**expected, "scores": expected["relevance"]}
  graded = model.open_qa(batch)
  chosen = _chosen_spans(model, batch, expected["relevance"])
  return [
    *_spans("reader", model, batch, expected, chosen),
    *_losses("reader", graded, expected),
    _gradients("reader", graded, plan, expected),
  ]


def compare_open_qa(folder: Path) -> list[Row]:
  """Compares relevance of stored vectors, span scores, and ORQA's loss."""
  plan, expected = _read(folder / "open_qa")
  model = imported_model.load(plan)
  stored = np.asarray(plan.source.tensors[BLOCK_VECTORS])
  rows = expected["rows"]
  query = expected["query"]
  relevance = np.einsum("bd,nd->bn", model.query_vectors(query), stored)
  best = np.argsort(-relevance, axis=-1)[:, : rows.shape[1]]
  candidates = _blocks_read(plan, expected)
  batch = {**expected, "candidates": candidates, "vectors": stored[rows]}
  graded = model.open_qa(batch)
  found = np.take_along_axis(relevance, rows, axis=-1)
  chosen = _chosen_spans(model, batch, found)
  return [
    differences("open QA: relevance", found, expected["relevance"]),
    unequal("open QA: retrieved blocks and their order", best, rows),
    *_spans("open QA", model, batch, expected, chosen),
    unequal(
      "open QA: block of the answer",
      rows[np.arange(len(rows)), chosen[:, 0]],
      expected["predicted_row"],
    ),
    *_losses("open QA", graded, expected),
    _gradients("open QA", graded, plan, expected),
  ]


def _blocks_read(plan: Plan, expected: Arrays) -> np.ndarray:
  """Returns the blocks that the reader is given, [b k l].

  They are `[CLS] [SEP] body [SEP]`, because Hugging Face's blocks have no
  titles.
  """
  words = plan.model.vocabulary
  _, num_read, length, _ = expected["span_logits"].shape
  rows = expected["rows"][:, :num_read]
  blocks = np.zeros((*rows.shape, length), np.int32)
  for place in np.ndindex(rows.shape):
    body = words.encode(str(expected["texts"][rows[place]]))
    tokens = [words.cls_id, words.sep_id, *body, words.sep_id]
    blocks[place][: len(tokens)] = tokens
  return blocks


def _read(folder: Path) -> tuple[Plan, Arrays]:
  with np.load(folder / _EXPECTED, allow_pickle=False) as expected:
    return make_plan(ImportConfig("hf_realm", folder)), dict(expected)


COMPARISONS = (
  compare_embedder,
  compare_two_towers,
  compare_pretraining,
  compare_reader,
  compare_open_qa,
)


def _gradients(
  what: str, graded: LossAndGradient, plan: Plan, expected: Arrays
) -> Row:
  """Compares the gradients of the parts that the plan imports."""
  theirs = {
    name.removeprefix(_GRADIENT): array
    for name, array in expected.items()
    if name.startswith(_GRADIENT)
  }
  ours = {
    path: array
    for path, array in graded.gradient.items()
    if path.partition("/")[0] in plan.parts
  }
  return gradient_cosines(
    f"{what}: gradient",
    ours,
    imported_model.named_as_ours(plan, theirs),
    without=_WITHOUT_GRADIENT,
  )


def _chosen_spans(
  model: ImportedModel, batch: Arrays, relevance: np.ndarray
) -> np.ndarray:
  """Returns the best spans of the blocks that are read, [b 3]."""
  candidates = batch["candidates"]
  num_read = candidates.shape[1]
  return model.chosen_spans(batch["query"], candidates, relevance[:, :num_read])


def _spans(
  what: str,
  model: ImportedModel,
  batch: Arrays,
  expected: Arrays,
  chosen: np.ndarray,
) -> list[Row]:
  ours = model.span_logits(batch["query"], batch["candidates"])
  theirs = expected["span_logits"]
  return [
    unequal(f"{what}: valid spans", np.isnan(ours), np.isnan(theirs)),
    differences(
      f"{what}: span logits", np.nan_to_num(ours), np.nan_to_num(theirs)
    ),
    unequal(f"{what}: predicted span", chosen, expected["span"]),
  ]


def _losses(what: str, graded: LossAndGradient, expected: Arrays) -> list[Row]:
  return [
    relative(
      f"{what}: {name.replace('_', ' ')}",
      graded.metrics[name],
      float(np.float64(expected[name]).mean()),
    )
    for name in ("retriever_loss", "reader_loss", "loss")
  ]
