"""Embedding of blocks, in batches of similar length.

Batches have one of a few lengths, chosen for little padding; the embedding
function is compiled once for each length. The host reads a few batches ahead of
the devices.
"""

import collections
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Float, Int

from realm_jax.console import Progress
from realm_jax.corpus.store import NULL_ROW, Corpus
from realm_jax.models.components import Components, Retriever
from realm_jax.models.parameters import Params
from realm_jax.partitioning import sharding

# Number of batches that the devices may have in addition to the host's.
_BATCHES_AHEAD = 3
# Approximate minimum number of batches in a call. With fewer, the last one,
# which is padded to its full size, would be a large part of the work.
_MIN_BATCHES = 64
# Maximum ratio of computed tokens to tokens of the rows.
_MAX_PADDING = 1.05


@functools.lru_cache(maxsize=8)
def abstract_retriever(retriever: Retriever, mesh: Mesh) -> Params:
  """Returns the shapes of a retriever's parameters, with shardings."""
  components = Components({"retriever": retriever})
  parameters = components.abstract_parameters(query_length=1, block_length=1)
  return sharding.abstract_replicated(parameters["retriever"], mesh)


class CorpusEmbedder:
  """Embeds rows of one corpus, and compiles once for any number of calls.

  The result depends only on the rows of a call: all processes that embed the
  same rows on the same number and kind of devices get the same bytes.

  The function `embed_blocks` maps parameters and token ids [b, l] to vectors
  [b, dim]. Batches are sharded over the data axis of the mesh. On each device,
  rows × length is at most `tokens_per_batch`, for one of at most `num_lengths`
  lengths. Batches are smaller in calls with few rows.
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
    self._groups = sharding.row_groups(mesh).count
    rows = min(rows_per_call or corpus.num_blocks, corpus.num_blocks)
    tokens = int(corpus.lengths.mean() * rows) // _MIN_BATCHES
    self._tokens_per_batch = min(tokens_per_batch * self._groups, tokens)
    self._embed = sharding.jit_on_mesh(
      embed_blocks, mesh=mesh, out_shardings=sharding.batch_sharding(mesh)
    )
    # On TPUs the attention kernel needs multiples of a bfloat16 tile's height;
    # elsewhere 8 is the width of vector units.
    platform = mesh.devices.flat[0].platform
    self.lengths = choose_lengths(
      corpus.lengths,
      longest=corpus.block_length,
      multiple=16 if platform == "tpu" else 8,
      max_lengths=num_lengths,
    )

  def embed(
    self,
    params: Params,
    rows: Int[np.ndarray, " n"],
    *,
    check: Callable[[], None] = lambda: None,
  ) -> Float[np.ndarray, "n d"]:
    """Returns the vectors of rows, given in rising order, in float32.

    The function `check` is called at every batch; an exception stops the work.
    """
    vectors = np.empty((len(rows), self._dim), np.float32)
    computed: collections.deque[tuple[np.ndarray, jax.Array]] = (
      collections.deque()
    )

    def store() -> None:
      batch, embedded = computed.popleft()
      is_row = batch != NULL_ROW
      places = np.searchsorted(rows, batch[is_row])
      vectors[places] = np.asarray(embedded)[is_row]
      progress.advance(int(is_row.sum()))

    with Progress("blocks embedded", total=len(rows)) as progress:
      for length, batch in self._batches(rows):
        check()
        tokens: Any = self._corpus.gather(batch, length)
        on_devices = sharding.to_devices(tokens, self._mesh)
        computed.append((batch, self._embed(params, on_devices)))
        if len(computed) > _BATCHES_AHEAD:
          store()
      while computed:
        store()
    return vectors

  def _batches(
    self, rows: Int[np.ndarray, " n"]
  ) -> Iterator[tuple[int, Int[np.ndarray, " b"]]]:
    """Yields the length and the rows of batches, longest first.

    Shorter rows fill up the last batch of a length; only the very last batch is
    padded, with `NULL_ROW`.
    """
    rounded = round_up(self._corpus.lengths[rows], self.lengths)
    waiting = np.argsort(-rounded, kind="stable")
    while len(waiting):
      length = int(rounded[waiting[0]])
      size = rows_per_batch(
        length, self._tokens_per_batch, multiple=self._groups
      )
      batch, waiting = rows[waiting[:size]], waiting[size:]
      padding = size - len(batch)
      yield length, np.pad(batch, (0, padding), constant_values=NULL_ROW)


def choose_lengths(
  lengths: Int[np.ndarray, " n"],
  *,
  longest: int,
  multiple: int,
  max_lengths: int,
) -> tuple[int, ...]:
  """Chooses the batch lengths, in rising order, that leave little padding.

  Each length is compiled, so lengths are only added until the padding ratio is
  at most `_MAX_PADDING`; each added length is the one that saves most. Lengths
  are multiples of `multiple`, or `longest`. Longer rows are truncated.
  """
  useful = int(np.minimum(lengths, longest).sum())
  rounded = np.minimum(-(-lengths // multiple) * multiple, longest)
  values, counts = np.unique(rounded, return_counts=True)

  def tokens(chosen: Sequence[int]) -> int:
    return int((round_up(values, sorted(chosen)) * counts).sum())

  chosen = [int(values[-1])]
  while len(chosen) < max_lengths and tokens(chosen) > _MAX_PADDING * useful:
    rest = set(values.tolist()).difference(chosen)
    if not rest:
      break
    chosen.append(min(sorted(rest), key=lambda n: tokens([*chosen, n])))
  return tuple(sorted(chosen))


def round_up(
  lengths: Int[np.ndarray, " n"], batch_lengths: Sequence[int]
) -> Int[np.ndarray, " n"]:
  """Rounds up to the next batch length, at most the last one."""
  place = np.searchsorted(batch_lengths, lengths)
  return np.asarray(batch_lengths)[np.minimum(place, len(batch_lengths) - 1)]


def rows_per_batch(
  length: int, tokens_per_batch: int, *, multiple: int = 1
) -> int:
  """Returns the rows of a batch: a multiple of `multiple`, and not 0."""
  return max(1, tokens_per_batch // length // multiple) * multiple
