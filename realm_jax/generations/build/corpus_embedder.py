"""Embeds blocks of a corpus, with little padding and few shapes."""

import collections
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Float, Int

from realm_jax.console.progress import Progress
from realm_jax.corpus.store import NULL_ROW, Corpus
from realm_jax.generations.build.length_buckets import (
  choose_lengths,
  length_batches,
  round_up,
)
from realm_jax.generations.store.manifest import GenerationError
from realm_jax.partitioning import rules
from realm_jax.partitioning.mesh import DATA_AXIS

# Batches that the devices work on while the host stores an earlier one.
_IN_FLIGHT = 2
# So many batches at least, where the rows are few: what does not fill the last
# is padding.
_BATCHES = 64


class CorpusEmbedder:
  """Embeds rows of one corpus again and again, compiling once.

  What a call computes depends on its rows alone, so that whoever embeds the
  same ones, on as many devices of the same kind, gets the same bytes.

  Args:
    corpus: whose blocks to embed.
    embed_blocks: `(parameters, token ids [b, l]) -> vectors [b, d]`.
    dim: of the vectors.
    mesh: batches are spread over its data axis.
    tokens_per_batch: bounds the memory of activations.
    rows_at_once: of a call, about: for few of them batches are smaller.
    num_lengths: the most lengths that batches have; more waste less and
      compile longer.
  """

  def __init__(
    self,
    corpus: Corpus,
    embed_blocks: Callable[[Any, jax.Array], jax.Array],
    *,
    dim: int,
    mesh: Mesh,
    tokens_per_batch: int = 16_384,
    rows_at_once: int | None = None,
    num_lengths: int = 16,
  ):
    self._corpus = corpus
    self._dim = dim
    self._mesh = mesh
    rows = min(rows_at_once or corpus.num_blocks, corpus.num_blocks)
    tokens = int(corpus.lengths.mean() * rows) // _BATCHES
    self._tokens_per_batch = min(tokens_per_batch, tokens)
    self._embed = jax.jit(
      embed_blocks, out_shardings=rules.batch_sharding(mesh)
    )
    self.lengths = choose_lengths(
      corpus.lengths, longest=corpus.block_length, most=num_lengths
    )

  def costs(self) -> Int[np.ndarray, " N"]:
    """The tokens that are computed on for each block."""
    return round_up(self._corpus.lengths, self.lengths)

  def embed(
    self,
    params: Any,
    rows: Int[np.ndarray, " n"],
    *,
    check: Callable[[], None] = lambda: None,
  ) -> Float[np.ndarray, "n d"]:
    """The vectors of some blocks, in float32.

    Args:
      params: on the devices.
      rows: rising.
      check: called at every batch; what it raises ends the work.

    Raises:
      GenerationError: a vector is not finite.
    """
    vectors = np.empty((len(rows), self._dim), np.float32)
    in_flight: collections.deque[tuple[np.ndarray, jax.Array]]
    in_flight = collections.deque()
    batches = length_batches(
      rows,
      self._corpus.lengths[rows],
      to=self.lengths,
      tokens_per_batch=self._tokens_per_batch,
      multiple=self._mesh.shape[DATA_AXIS],
    )
    with Progress("blocks embedded", total=len(rows)) as progress:

      def store_oldest():
        batch, found = in_flight.popleft()
        real = batch != NULL_ROW
        vectors[np.searchsorted(rows, batch[real])] = np.asarray(found)[real]
        progress.advance(int(real.sum()))

      for length, batch in batches:
        check()
        tokens = {"block": self._corpus.gather(batch, length)}
        blocks = rules.to_devices(tokens, self._mesh)["block"]
        in_flight.append((batch, self._embed(params, blocks)))
        if len(in_flight) > _IN_FLIGHT:
          store_oldest()
      while in_flight:
        store_oldest()
    finite = np.isfinite(vectors).all(axis=1)
    if not finite.all():
      raise GenerationError(
        f"the vector of block {int(rows[~finite][0])} is not finite; the "
        "checkpoint is broken"
      )
    return vectors
