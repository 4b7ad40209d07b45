"""Partitions of the vectors: the leaves of an index's tree.

Lloyd's k-means stays near its start: with as many natural groups as centroids,
a third of random starts share a group, and as many centroids lie between
groups. So in the first rounds, centroids that are hardly needed are moved to
leaves that are worth splitting.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Float32, Int

# A maximum over groups of columns vectorizes where an argmax does not.
_GROUP = 64
# Scores in memory at once; on CPUs few enough for the cache.
_SCORES_ON_CPU = 1 << 20
_SCORES_ELSEWHERE = 1 << 26
# A split must gain this many times the estimated cost of the move, because
# both are estimates.
_WORTH = 1.5
_POWER_ITERATIONS = 3
# Most rounds of Lloyd's algorithm.
_ITERATIONS = 10
# Training ends when a smaller share of the vectors changes its leaf.
_SETTLED = 1e-3


def train_leaves(
  sample: Float32[np.ndarray, "n d"],
  num_leaves: int,
  *,
  seed: int = 0,
) -> Float32[np.ndarray, "l d"]:
  """Returns centroids of k-means with moves; the same input gives the same.

  Raises:
    ValueError: There are fewer vectors than leaves.
  """
  if len(sample) < num_leaves:
    raise ValueError(
      f"{len(sample)} vectors cannot train {num_leaves} leaves; want at least "
      "as many: lower num_leaves"
    )
  rng = np.random.default_rng(seed)
  centroids = sample[np.sort(rng.choice(len(sample), num_leaves, False))]
  vectors = jnp.asarray(sample)
  before = np.full(len(sample), -1)
  for i in range(_ITERATIONS):
    leaves = assign(vectors, jnp.asarray(centroids))
    if np.mean(np.asarray(leaves) != before) < _SETTLED:
      break
    before = np.asarray(leaves)
    stats = _statistics(vectors, leaves, centroids, jax.random.key(seed + i))
    counts, means, spreads, axes = map(np.asarray, stats)
    # The last two rounds settle what the moves have changed.
    may_move = i < _ITERATIONS - 2
    centroids = _moved(counts, means, spreads, axes) if may_move else means
  return np.asarray(centroids, np.float32)


@jax.jit
def assign(
  vectors: Float[Array, "n d"], centroids: Float[Array, "l d"]
) -> Int[Array, " n"]:
  """Returns each vector's nearest centroid."""
  half = (centroids * centroids).sum(axis=1) / 2

  def one(x: Float[Array, "b d"]) -> Int[Array, " b"]:
    return _first_largest(_products(x, centroids) - half[None])

  return _by_parts(one, vectors, len(centroids))


@jax.jit
def _statistics(
  vectors: Float[Array, "n d"],
  leaves: Int[Array, " n"],
  centroids: Float[Array, "l d"],
  key: Array,
) -> tuple[Float[Array, " l"], Float[Array, "l d"], Float[Array, " l"], Array]:
  """Returns each leaf's size, mean, variance along its main axis, and axis."""
  num_leaves = len(centroids)
  total = functools.partial(jax.ops.segment_sum, num_segments=num_leaves)
  counts = total(jnp.ones(len(vectors)), leaves)
  divisor = jnp.maximum(counts, 1)[:, None]
  # A leaf without members keeps its centroid.
  means = jnp.where(
    counts[:, None] > 0, total(vectors, leaves) / divisor, centroids
  )
  # Power iterations find the main axis without a covariance matrix.
  away = vectors - means[leaves]
  axes = jax.random.normal(key, means.shape)
  axes /= jnp.linalg.norm(axes, axis=1, keepdims=True)
  spreads = jnp.zeros(num_leaves)
  for _ in range(_POWER_ITERATIONS):
    along = (away * axes[leaves]).sum(axis=1, keepdims=True)
    axes = total(away * along, leaves) / divisor
    spreads = jnp.linalg.norm(axes, axis=1)
    axes /= jnp.maximum(spreads, 1e-12)[:, None]
  return counts, means, spreads, axes


def _moved(
  counts: Float32[np.ndarray, " l"],
  means: Float32[np.ndarray, "l d"],
  spreads: Float32[np.ndarray, " l"],
  axes: Float32[np.ndarray, "l d"],
) -> Float32[np.ndarray, "l d"]:
  """Returns the means, with some moved to split other leaves in two.

  The cost of moving a leaf's centroid away is that of merging the leaf with
  another (Ward 1963). A split along the main axis gains 2/π of the variance
  along it, if it is normal. Each leaf takes part in at most one move.
  """
  centroids = means.copy()
  gains = counts * spreads * (2 / np.pi)
  partners, costs = map(np.asarray, _cheapest_merges(means, counts))
  wanted = iter(np.argsort(-gains, kind="stable").tolist())
  taken: set[int] = set()
  for leaf in np.argsort(costs, kind="stable").tolist():
    partner = int(partners[leaf])
    is_empty = counts[leaf] == 0
    if leaf in taken or (not is_empty and partner in taken):
      continue
    own = {leaf} if is_empty else {leaf, partner}
    split = next((w for w in wanted if w not in taken | own), None)
    if split is None or gains[split] <= _WORTH * costs[leaf]:
      break
    taken |= own | {split}
    if not is_empty:
      weights = counts[[leaf, partner]] / counts[[leaf, partner]].sum()
      centroids[partner] = weights @ means[[leaf, partner]]
    step = np.sqrt(2 / np.pi * spreads[split]) * axes[split]
    centroids[leaf], centroids[split] = means[split] + step, means[split] - step
  return centroids


@jax.jit
def _cheapest_merges(
  means: Float[Array, "l d"], counts: Float[Array, " l"]
) -> tuple[Int[Array, " l"], Float[Array, " l"]]:
  """Returns each leaf's cheapest partner that is not empty, and the cost."""

  def one(
    row: tuple[Float[Array, " d"], Float[Array, ""], Int[Array, ""]],
  ) -> tuple[Int[Array, ""], Float[Array, ""]]:
    mean, count, own = row
    distances = jnp.square(means - mean[None]).sum(axis=1)
    costs = count * counts / jnp.maximum(count + counts, 1) * distances
    is_other = (jnp.arange(len(means)) != own) & (counts > 0)
    costs = jnp.where(is_other, costs, jnp.inf)
    return jnp.argmin(costs), jnp.where(count > 0, costs.min(), 0.0)

  rows = (means, counts, jnp.arange(len(means)))
  return lax.map(one, rows, batch_size=16)


def _by_parts(
  function: Callable[[Float[Array, "b d"]], Int[Array, " b"]],
  vectors: Float[Array, "n d"],
  num_centroids: int,
) -> Int[Array, " n"]:
  """Maps a function over parts of rows, to bound the scores in memory."""
  on_cpu = jax.default_backend() == "cpu"
  scores = _SCORES_ON_CPU if on_cpu else _SCORES_ELSEWHERE
  count = len(vectors)
  rows = min(count, max(8, scores // num_centroids))
  parts = jnp.pad(vectors, ((0, -count % rows), (0, 0)))
  parts = parts.reshape(-1, rows, vectors.shape[1])
  return lax.map(function, parts).reshape(-1)[:count]


def _products(
  x: Float[Array, "b d"], centroids: Float[Array, "l d"]
) -> Float[Array, "b l"]:
  """Returns inner products in bfloat16, which is twice as fast.

  Centroids that its 8 bits cannot tell apart serve equally well.
  """
  return lax.dot_general(
    x.astype(jnp.bfloat16),
    centroids.astype(jnp.bfloat16),
    (((1,), (1,)), ((), ())),
    preferred_element_type=jnp.float32,
  )


def _first_largest(scores: Float[Array, "b l"]) -> Int[Array, " b"]:
  """Returns the lowest column with the largest score."""
  columns = scores.shape[1]
  scores = jnp.pad(
    scores, ((0, 0), (0, -columns % _GROUP)), constant_values=-jnp.inf
  )
  groups = scores.reshape(len(scores), -1, _GROUP)
  group = jnp.argmax(groups.max(axis=2), axis=1)
  inside = jnp.take_along_axis(groups, group[:, None, None], axis=1)[:, 0]
  return (group * _GROUP + jnp.argmax(inside, axis=1)).astype(jnp.int32)
