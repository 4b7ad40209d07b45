"""Embeds every block of a corpus, with little padding and few shapes."""

import collections
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Int

from realm_jax.console.counter import Counter
from realm_jax.corpus.store import NULL_ROW, Corpus
from realm_jax.generations.embeddings import EmbeddingsWriter
from realm_jax.partitioning import rules
from realm_jax.partitioning.mesh import DATA_AXIS

# Batches that the devices work on while the host writes an earlier one.
_IN_FLIGHT = 2


def length_batches(
  lengths: Int[np.ndarray, " n"],
  *,
  tokens_per_batch: int,
  length_step: int,
  longest: int,
  multiple: int = 1,
) -> Iterator[tuple[int, Int[np.ndarray, " b"]]]:
  """Batches of rows of about one length; a shape for each length.

  Rows go shortest first. Those that do not fill a batch go along with the
  next longer ones, so that only the last batch holds padding rows.

  Args:
    lengths: tokens of each row.
    tokens_per_batch: rows times length, about.
    length_step: lengths are rounded up to a multiple of it, …
    longest: … but to no more than this.
    multiple: the number of rows is a multiple of this.

  Yields:
    A length and rows, of which the last batch's may be `NULL_ROW`.
  """
  rounded = np.minimum(-(-lengths // length_step) * length_step, longest)
  order = np.argsort(rounded, kind="stable")
  waiting = np.zeros(0, np.int64)
  size = multiple
  for length in np.unique(rounded).tolist():
    size = max(1, tokens_per_batch // length // multiple) * multiple
    first, limit = np.searchsorted(
      rounded, [length, length + 1], sorter=order
    ).tolist()
    waiting = np.concatenate([waiting, order[first:limit]])
    while len(waiting) >= size:
      yield length, waiting[:size]
      waiting = waiting[size:]
  if len(waiting):
    padding = size - len(waiting)
    yield length, np.pad(waiting, (0, padding), constant_values=NULL_ROW)


class CorpusEmbedder:
  """Embeds one corpus again and again, compiling once.

  Args:
    corpus: whose blocks to embed.
    embed_blocks: `(parameters, token ids [b, l]) -> vectors [b, d]`.
    mesh: batches are spread over its data axis.
    tokens_per_batch: bounds the memory of activations.
    length_step: lengths are rounded up to a multiple of this; smaller wastes
      less and compiles more.
  """

  def __init__(
    self,
    corpus: Corpus,
    embed_blocks: Callable[[Any, jax.Array], jax.Array],
    *,
    mesh: Mesh,
    tokens_per_batch: int = 16_384,
    length_step: int = 32,
  ):
    self._corpus = corpus
    self._mesh = mesh
    self._embed = jax.jit(
      embed_blocks, out_shardings=rules.batch_sharding(mesh)
    )
    self._batches = list(
      length_batches(
        corpus.lengths,
        tokens_per_batch=tokens_per_batch,
        length_step=length_step,
        longest=corpus.block_length,
        multiple=mesh.shape[DATA_AXIS],
      )
    )

  def embed(
    self,
    params: Any,
    writer: EmbeddingsWriter,
    *,
    check: Callable[[], None] = lambda: None,
  ) -> None:
    """Writes the vector of every block.

    Args:
      params: on the devices.
      writer: takes the vectors by row.
      check: called at every batch; what it raises ends the work.
    """
    in_flight: collections.deque[tuple[np.ndarray, jax.Array]]
    in_flight = collections.deque()
    with Counter("blocks embedded", total=self._corpus.num_blocks) as progress:

      def write_oldest():
        rows, vectors = in_flight.popleft()
        real = rows != NULL_ROW
        writer.write(rows[real], np.asarray(vectors)[real])
        progress.advance(int(real.sum()))

      for length, rows in self._batches:
        check()
        tokens = {"block": self._corpus.gather(rows, length)}
        blocks = rules.to_devices(tokens, self._mesh)["block"]
        in_flight.append((rows, self._embed(params, blocks)))
        if len(in_flight) > _IN_FLIGHT:
          write_oldest()
      while in_flight:
        write_oldest()
