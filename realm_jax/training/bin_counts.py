"""Chooses the bin counts for which a step is compiled.

They are chosen before the first step. One count suffices for most batches.
Another one suffices for half of the batches, if it is much smaller, as it is
for small batches. Larger counts form a geometric series. Batches that exceed
these use one bin for each sequence.
"""

import functools
import math
from collections.abc import Iterator

import jax
import numpy as np

from realm_jax.corpus.store import NULL_ROW, Corpus
from realm_jax.inputs.reader_texts import passage_ids
from realm_jax.models.components import Components
from realm_jax.models.packing import num_groups, token_sequences
from realm_jax.training.encoder_inputs import BinCounts, needed_bins
from realm_jax.training.stages.stage import ExampleArrays, Stage, StepBatch

# Number of random batches for the estimates.
_SAMPLES = 8
# Factor of the estimates, because retrieved blocks may be longer than random
# ones. A step that needs more bins uses the next count.
_MARGIN = 1.05
# Share of tokens that a count must save, compared to the next one, to be worth
# compiling.
_MIN_SAVING = 0.15
# Assumed share of tokens in padded sequences, without a corpus.
_ASSUMED_SHARE = 0.65


def choose_bin_counts(
  stage: Stage,
  components: Components,
  shapes: ExampleArrays,
  corpus: Corpus | None,
  *,
  groups: int,
  at_most: int,
) -> tuple[BinCounts, ...]:
  """Chooses bin counts, smallest first.

  They depend only on the arguments, so that a resumed run has the same ones:
  with others, its sums would be rounded differently.

  Args:
    shapes: Arrays of a global batch.
    corpus: Corpus to sample random sentences and blocks from; without one, a
      share of the tokens is assumed.
    groups: Number of parts of a batch, over all devices.
    at_most: Maximum number of layouts, including the one that pads all
      sequences.
  """
  if at_most == 1:
    return ()

  def divided(batch: StepBatch) -> StepBatch:
    return jax.tree.map(
      lambda leaf: leaf.reshape(groups, -1, *leaf.shape[1:]), batch
    )

  def needed(part: StepBatch) -> jax.Array:
    return needed_bins(stage.inputs(components, part))

  one = jax.tree.map(lambda leaf: leaf[0], divided(stage.dummy_batch(shapes)))
  shapes_of_inputs = input_shapes(stage, components, one)
  largest = np.array([n // num_groups(n) for n, _ in shapes_of_inputs])
  # Tokens of one bin in each group.
  tokens = np.array([num_groups(n) * length for n, length in shapes_of_inputs])
  if corpus is None:
    by_batch = _ASSUMED_SHARE * largest[None]
  else:
    needed_by_group = jax.jit(jax.vmap(needed))
    samples = [
      np.asarray(needed_by_group(divided(batch)))
      for batch in random_batches(stage, shapes, corpus)
    ]
    by_batch = np.max(samples, axis=1)
  half, usual = (
    np.minimum(np.ceil(needed * _MARGIN).astype(int), largest)
    for needed in (np.median(by_batch, axis=0), np.max(by_batch, axis=0))
  )
  ratio = np.dot(usual, tokens) / np.dot(largest, tokens)
  useful = 1 + int(math.log(ratio) / math.log(1 - _MIN_SAVING))
  steps = min(at_most, useful) - 1
  counts = [
    tuple(
      math.ceil(few * (most / few) ** (step / steps))
      for few, most in zip(usual.tolist(), largest.tolist(), strict=True)
    )
    for step in range(steps)
  ]
  saved = 1 - np.dot(half, tokens) / np.dot(usual, tokens)
  if counts and at_most > 2 and saved >= _MIN_SAVING:
    counts = [tuple(half.tolist()), *counts][: at_most - 1]
  return tuple(counts)


def input_shapes(
  stage: Stage, components: Components, batch: StepBatch
) -> list[tuple[int, ...]]:
  """Returns the number of sequences of each encoder input, and their length."""
  inputs = jax.eval_shape(functools.partial(stage.inputs, components), batch)
  return [one.token_ids.shape for one in token_sequences(inputs)]


def random_batches(
  stage: Stage, shapes: ExampleArrays, corpus: Corpus
) -> Iterator[StepBatch]:
  """Yields batches of random sentences and blocks, the same in every call."""
  rng = np.random.default_rng(0)
  num_queries, query_length = shapes.query.shape
  *shape, block_length = shapes.candidates.shape
  for _ in range(_SAMPLES):
    rows = rng.integers(corpus.num_blocks, size=num_queries)
    query = corpus.random_sentences(rows, query_length, rng)
    rows = rng.integers(corpus.num_blocks, size=shape)
    if stage.null_block:
      rows[:, 0] = NULL_ROW
    candidates, passages = corpus.gather(rows, block_length), None
    if stage.reads_passages:
      reader = shapes.components.text_reader
      passages = passage_ids(reader, corpus.view(reader.view), rows)
    yield stage.dummy_batch(
      shapes._replace(query=query, candidates=candidates, passages=passages)
    )
