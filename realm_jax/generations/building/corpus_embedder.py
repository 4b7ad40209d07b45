"""Embedding of blocks, in batches of similar length.

Batches have one of a few lengths, chosen so that they hold little padding; the
embedding function compiles once for each.
"""

from collections.abc import Callable, Iterator, Sequence

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Float, Int

from realm_jax.console.progress import Progress
from realm_jax.corpus.store import NULL_ROW, Corpus
from realm_jax.generations.store.embeddings import check_finite
from realm_jax.models.parameters import Params
from realm_jax.partitioning import rules

# Batches that the devices compute while the host stores an earlier one.
_BATCHES_IN_FLIGHT = 2
# A call has at least about so many batches. With fewer, the last one, which is
# padded to its full size, would be a large part of the work.
_MIN_BATCHES = 64
# Lengths of batches are multiples of the width of vector units.
_LENGTH_MULTIPLE = 8


class CorpusEmbedder:
  """Embeds rows of one corpus, and compiles once for any number of calls.

  The result depends on the rows of a call alone: all workers that embed the
  same rows on the same number and kind of devices get the same bytes.

  The function `embed_blocks` maps parameters and token ids [b, l] to vectors
  [b, dim]. Batches are spread over the data axis of the mesh. They have at most
  `tokens_per_batch` rows times length, one of at most `num_lengths` lengths,
  and are smaller where a call has few rows: about `rows_per_call`, or all.
  """

  def __init__(
    self,
    corpus: Corpus,
    embed_blocks: Callable[[Params, jax.Array], jax.Array],
    *,
    dim: int,
    mesh: Mesh,
    tokens_per_batch: int = 16_384,
    rows_per_call: int | None = None,
    num_lengths: int = 16,
  ):
    self._corpus = corpus
    self._dim = dim
    self._mesh = mesh
    rows = min(rows_per_call or corpus.num_blocks, corpus.num_blocks)
    tokens = int(corpus.lengths.mean() * rows) // _MIN_BATCHES
    self._tokens_per_batch = min(tokens_per_batch, tokens)
    self._embed = jax.jit(
      embed_blocks, out_shardings=rules.batch_sharding(mesh)
    )
    self.lengths = choose_lengths(
      corpus.lengths, longest=corpus.block_length, max_lengths=num_lengths
    )

  def costs(self) -> Int[np.ndarray, " N"]:
    """Returns the number of tokens that each block takes, with padding."""
    return round_up(self._corpus.lengths, self.lengths)

  def embed(
    self,
    params: Params,
    rows: Int[np.ndarray, " n"],
    *,
    check: Callable[[], None] = lambda: None,
  ) -> Float[np.ndarray, "n d"]:
    """Returns the vectors of rows, given in rising order, in float32.

    The function `check` is called at every batch; an exception stops the work.
    A vector that is not finite is a GenerationError.
    """
    vectors = np.empty((len(rows), self._dim), np.float32)
    in_flight: list[tuple[np.ndarray, jax.Array]] = []
    batches = length_batches(
      rows,
      self._corpus.lengths[rows],
      batch_lengths=self.lengths,
      tokens_per_batch=self._tokens_per_batch,
      multiple=rules.row_groups(self._mesh).count,
    )
    with Progress("blocks embedded", total=len(rows)) as progress:

      def store_oldest() -> None:
        batch, embedded = in_flight.pop(0)
        is_row = batch != NULL_ROW
        places = np.searchsorted(rows, batch[is_row])
        vectors[places] = np.asarray(embedded)[is_row]
        progress.advance(int(is_row.sum()))

      for length, batch in batches:
        check()
        tokens = {"block": self._corpus.gather(batch, length)}
        blocks = rules.to_devices(tokens, self._mesh)["block"]
        in_flight.append((batch, self._embed(params, blocks)))
        if len(in_flight) > _BATCHES_IN_FLIGHT:
          store_oldest()
      while in_flight:
        store_oldest()
    check_finite(vectors, rows)
    return vectors


def choose_lengths(
  lengths: Int[np.ndarray, " n"],
  *,
  longest: int,
  max_lengths: int = 16,
  max_padding: float = 1.05,
) -> tuple[int, ...]:
  """Chooses the batch lengths, in rising order, that leave the least padding.

  Each is compiled, so there are no more than are needed for at most
  `max_padding` computed tokens per token of the rows. Rows with more tokens
  than `longest` are cut.
  """
  if max_lengths < 1:
    raise ValueError(
      f"num_lengths={max_lengths}; want at least one length of batches"
    )
  useful = int(np.minimum(lengths, longest).sum())
  rounded = -(-lengths // _LENGTH_MULTIPLE) * _LENGTH_MULTIPLE
  rounded = np.minimum(rounded, longest)
  values, counts = np.unique(rounded, return_counts=True)
  below = np.concatenate([[0], np.cumsum(counts)])
  # Dynamic programming over the number of lengths. tokens[i] is the lowest
  # number of tokens for the rows of the first i values.
  tokens = np.where(np.arange(len(values) + 1) == 0, 0.0, np.inf)
  begins = []
  for _ in range(min(max_lengths, len(values))):
    # Column j: the longest batches have length values[j]. Row i: they hold the
    # rows from values[i] on.
    rows = np.maximum(below[None, 1:] - below[:-1, None], 0)
    total = tokens[:-1, None] + rows * values[None, :]
    total[np.tril_indices(len(values), -1)] = np.inf
    begins.append(np.argmin(total, axis=0))
    tokens = np.concatenate([[np.inf], total.min(axis=0)])
    if tokens[-1] <= max_padding * useful:
      break
  chosen, end = [], len(values)
  for begin in reversed(begins):
    chosen.append(int(values[end - 1]))
    end = int(begin[end - 1])
  return tuple(reversed(chosen))


def round_up(
  lengths: Int[np.ndarray, " n"], batch_lengths: Sequence[int]
) -> Int[np.ndarray, " n"]:
  """Rounds up to the next batch length; longer rows are cut to the last."""
  place = np.searchsorted(batch_lengths, lengths)
  return np.asarray(batch_lengths)[np.minimum(place, len(batch_lengths) - 1)]


def length_batches(
  rows: Int[np.ndarray, " n"],
  lengths: Int[np.ndarray, " n"],
  *,
  batch_lengths: Sequence[int],
  tokens_per_batch: int,
  multiple: int = 1,
) -> Iterator[tuple[int, Int[np.ndarray, " b"]]]:
  """Yields the length and the rows of batches, shortest first.

  Rows that do not fill a batch join the next longer ones; only the last batch
  is padded, with `NULL_ROW`.

  The `rows` have `lengths` tokens, and `batch_lengths` rise. A batch has about
  `tokens_per_batch` rows times length, and a multiple of `multiple` rows.
  """
  rounded = round_up(lengths, batch_lengths)
  waiting = np.zeros(0, np.int64)
  size, length = multiple, batch_lengths[-1]
  for length in np.unique(rounded).tolist():
    size = max(1, tokens_per_batch // length // multiple) * multiple
    waiting = np.concatenate([waiting, rows[rounded == length]])
    while len(waiting) >= size:
      yield length, waiting[:size]
      waiting = waiting[size:]
  if len(waiting):
    padding = size - len(waiting)
    yield length, np.pad(waiting, (0, padding), constant_values=NULL_ROW)
