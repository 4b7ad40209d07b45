"""Partitions of the vectors: the leaves of an index's tree.

Lloyd's k-means alone stays where it starts: of as many natural groups as
centres, a third of random starts share a group, and as many centres lie
between groups. Here centres that are hardly needed are moved, in the first
rounds, to leaves that are worth splitting.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Float32, Int

# A maximum over groups of columns vectorises where an argmax does not.
_GROUP = 64
# Scores that are held at once: few enough for a CPU's cache.
_SCORES_ON_CPU = 1 << 20
_SCORES_ELSEWHERE = 1 << 26
# A split must promise this many times what the move costs: both are guesses.
_WORTH = 1.5
_POWER_ITERATIONS = 3
# The share of vectors that change their leaf when nothing is left to gain.
_SETTLED = 1e-3


def train_leaves(
  sample: Float32[np.ndarray, "n d"],
  num_leaves: int,
  *,
  spherical: bool = False,
  iterations: int = 10,
  seed: int = 0,
) -> Float32[np.ndarray, "l d"]:
  """Centres of k-means with moves of centres, the same for the same input.

  Args:
    sample: vectors in any order, at least as many as leaves.
    num_leaves: how many centres.
    spherical: whether centres have length 1, so that directions alone count.
    iterations: of Lloyd's algorithm, at most; centres are moved in all but the
      last two.
    seed: draws the first centres.

  Raises:
    ValueError: there are fewer vectors than leaves.
  """
  if len(sample) < num_leaves:
    raise ValueError(
      f"{len(sample)} vectors cannot train {num_leaves} leaves; want at least "
      "as many: lower num_leaves"
    )
  rng = np.random.default_rng(seed)
  centres = sample[np.sort(rng.choice(len(sample), num_leaves, False))]
  centres = _unit(centres) if spherical else centres
  vectors = jnp.asarray(sample)
  before = np.full(len(sample), -1)
  for i in range(iterations):
    leaves = assign(vectors, jnp.asarray(centres), spherical=spherical)
    if np.mean(np.asarray(leaves) != before) < _SETTLED:
      break
    before = np.asarray(leaves)
    stats = _statistics(vectors, leaves, centres, jax.random.key(seed + i))
    counts, means, spreads, axes = map(np.asarray, stats)
    may_move = i < iterations - 2
    centres = _moved(counts, means, spreads, axes) if may_move else means
    centres = _unit(centres) if spherical else centres
  return np.asarray(centres, np.float32)


@functools.partial(jax.jit, static_argnames="spherical")
def assign(
  vectors: Float[Array, "n d"],
  centres: Float[Array, "l d"],
  *,
  spherical: bool = False,
) -> Int[Array, " n"]:
  """The nearest centre of each vector; with `spherical`, by inner product."""
  return _best_columns(
    vectors, centres, jnp.zeros(len(centres)) if spherical else _half(centres)
  )


@jax.jit
def assign_spilled(
  vectors: Float[Array, "n d"],
  centres: Float[Array, "l d"],
  leaves: Int[Array, " n"],
  soar_lambda: float,
) -> Int[Array, " n"]:
  """A second leaf for each vector, by SOAR (Sun et al. 2023, arXiv 2404.00774).

  Among the other centres c it minimises |x − c|² + λ ((x − c)·r̂)², r̂ the
  direction of the residual of the first: residuals that are orthogonal to it
  are wrong for other queries.

  Args:
    vectors: x.
    centres: of all leaves.
    leaves: the first leaf of each vector.
    soar_lambda: λ.
  """
  half = _half(centres)

  def one(part):
    x, first = part
    residual = x - centres[first]
    residual /= jnp.linalg.norm(residual, axis=1, keepdims=True) + 1e-12
    along = (x * residual).sum(1, keepdims=True) - _products(residual, centres)
    scores = _products(x, centres) - half[None] - soar_lambda / 2 * along**2
    own = jnp.arange(len(centres))[None] == first[:, None]
    return _first_largest(jnp.where(own, -jnp.inf, scores))

  return _by_parts(one, (vectors, leaves), len(centres))


@jax.jit
def _statistics(
  vectors: Float[Array, "n d"],
  leaves: Int[Array, " n"],
  centres: Float[Array, "l d"],
  key: Array,
) -> tuple[Float[Array, " l"], Float[Array, "l d"], Float[Array, " l"], Array]:
  """Of each leaf: how many, their mean, and the variance along its main axis.

  A leaf without members keeps its centre. The main axis is found by power
  iterations, which need no matrix of covariances.
  """
  num_leaves = len(centres)
  total = functools.partial(jax.ops.segment_sum, num_segments=num_leaves)
  counts = total(jnp.ones(len(vectors)), leaves)
  divisor = jnp.maximum(counts, 1)[:, None]
  means = jnp.where(
    counts[:, None] > 0, total(vectors, leaves) / divisor, centres
  )
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
  """Means, of which some are given up to split other leaves in two.

  Giving up a leaf costs what merging it with another does (Ward 1963); a split
  along the main axis gains 2/π of the variance along it, were it normal. Each
  leaf takes part in one move at most.
  """
  centres = means.copy()
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
      centres[partner] = weights @ means[[leaf, partner]]
    step = np.sqrt(2 / np.pi * spreads[split]) * axes[split]
    centres[leaf], centres[split] = means[split] + step, means[split] - step
  return centres


@jax.jit
def _cheapest_merges(
  means: Float[Array, "l d"], counts: Float[Array, " l"]
) -> tuple[Int[Array, " l"], Float[Array, " l"]]:
  """The other leaf that each is merged with at least cost, and that cost.

  Nobody's partner is empty; an empty leaf costs nothing.
  """

  def one(row):
    mean, count, own = row
    distances = jnp.square(means - mean[None]).sum(axis=1)
    costs = count * counts / jnp.maximum(count + counts, 1) * distances
    is_other = (jnp.arange(len(means)) != own) & (counts > 0)
    costs = jnp.where(is_other, costs, jnp.inf)
    return jnp.argmin(costs), jnp.where(count > 0, costs.min(), 0.0)

  rows = (means, counts, jnp.arange(len(means)))
  return lax.map(one, rows, batch_size=16)


def anisotropic_centres(
  sample: Float32[np.ndarray, "n d"],
  leaves: Int[np.ndarray, " n"],
  centres: Float32[np.ndarray, "l d"],
  weight: float,
) -> Float32[np.ndarray, "l d"]:
  """Centres that keep inner products, instead of means.

  That of a leaf minimises Σ |x − c|² + (η − 1) (x̂·(x − c))² over its members
  (Guo et al. 2020, section 3.3); an empty leaf keeps its own.

  Args:
    sample: x.
    leaves: of each.
    centres: what the leaves have now.
    weight: η − 1.
  """
  order = np.argsort(leaves, kind="stable")
  bounds = np.searchsorted(leaves[order], np.arange(len(centres) + 1))
  found = centres.copy()
  for leaf in np.flatnonzero(np.diff(bounds)):
    members = sample[order[bounds[leaf] : bounds[leaf + 1]]]
    directions = _unit(members)
    matrix = weight * directions.T @ directions
    matrix[np.diag_indices_from(matrix)] += len(members)
    found[leaf] = np.linalg.solve(matrix, (1 + weight) * members.sum(axis=0))
  return found


def _best_columns(
  vectors: Float[Array, "n d"],
  centres: Float[Array, "l d"],
  offsets: Float[Array, " l"],
) -> Int[Array, " n"]:
  def one(x):
    return _first_largest(_products(x, centres) - offsets[None])

  return _by_parts(one, vectors, len(centres))


def _by_parts(function, arrays: Any, num_centres: int) -> Int[Array, " n"]:
  """Maps over parts of rows whose scores against all centres are held."""
  on_cpu = jax.default_backend() == "cpu"
  room = _SCORES_ON_CPU if on_cpu else _SCORES_ELSEWHERE
  count = len(jax.tree.leaves(arrays)[0])
  rows = min(count, max(8, room // num_centres))

  def parts(x):
    x = jnp.pad(x, [(0, -count % rows)] + [(0, 0)] * (x.ndim - 1))
    return x.reshape(-1, rows, *x.shape[1:])

  return lax.map(function, jax.tree.map(parts, arrays)).reshape(-1)[:count]


def _products(
  x: Float[Array, "b d"], centres: Float[Array, "l d"]
) -> Float[Array, "b l"]:
  """Inner products, twice as fast in bfloat16.

  Centres that are as near as its 8 bits can tell serve equally well.
  """
  return lax.dot_general(
    x.astype(jnp.bfloat16),
    centres.astype(jnp.bfloat16),
    (((1,), (1,)), ((), ())),
    preferred_element_type=jnp.float32,
  )


def _first_largest(scores: Float[Array, "b l"]) -> Int[Array, " b"]:
  """The lowest column with the largest score."""
  columns = scores.shape[1]
  scores = jnp.pad(
    scores, ((0, 0), (0, -columns % _GROUP)), constant_values=-jnp.inf
  )
  groups = scores.reshape(len(scores), -1, _GROUP)
  group = jnp.argmax(groups.max(axis=2), axis=1)
  inside = jnp.take_along_axis(groups, group[:, None, None], axis=1)[:, 0]
  return (group * _GROUP + jnp.argmax(inside, axis=1)).astype(jnp.int32)


def _half(centres: Float[Array, "l d"]) -> Float[Array, " l"]:
  return (centres * centres).sum(axis=1) / 2


def _unit(centres: Float32[np.ndarray, "l d"]) -> Float32[np.ndarray, "l d"]:
  norms = np.linalg.norm(centres, axis=1, keepdims=True)
  return (centres / np.maximum(norms, 1e-12)).astype(np.float32)
