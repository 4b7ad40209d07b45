"""ScaNN's trees: leaves and 4-bit codes that we train, in ScaNN's formats.

Lloyd's k-means stays near its start: with as many natural groups as centroids,
a third of random starts share a group, and as many centroids lie between
groups. So in the first rounds, centroids that are hardly needed are moved to
leaves that are worth splitting.

A residual, which is a vector minus the centroid of its leaf, is split into
pieces of a few dimensions. Each piece is replaced by the nearest of 16
centroids (product quantization, Jégou et al. 2011).

Leaves and codes are computed on jax's default device: the index builder's
accelerator, or its CPU cores. The formats are private; they were read from
ScaNN 1.4.2.
"""

import functools
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Float32, Int, UInt8
from numpy.typing import DTypeLike

from realm_jax.indexes.protocol import Rows, library_of
from realm_jax.storage.local_disk import create_mapped_array, drop_pages

# The version whose formats are written.
FORMATS_VERSION = "1.4.2"

_ROWS_PER_PART = 1 << 14
_PARTITIONER = "serialized_partitioner.pb"
_CODEBOOKS = "ah_codebook.pb"
_LEAVES = "datapoint_to_token.npy"
_CODES = "hashed_dataset.npy"
# File, type of its elements, and asset type, by type of reordering.
_VECTORS = {
  "float32": ("dataset.npy", np.float32, "DATASET_NPY"),
  "bfloat16": ("bfloat16_dataset.npy", np.int16, "BF16_DATASET_NPY"),
}
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
_NUM_CODES = 16
_CODEBOOK_SAMPLE = 1 << 15


class Trained(NamedTuple):
  """Centroids of leaves and of residuals' pieces, learnt from a sample."""

  centroids: Float32[np.ndarray, "l d"]
  codebooks: Float32[np.ndarray, "s 16 w"]


def train(
  sample: Float32[np.ndarray, "n d"], num_leaves: int, dims_per_code: int
) -> Trained:
  """Trains leaves and codebooks on a sample in random order.

  Raises:
    ValueError: The sample has fewer vectors than there are leaves or codes, or
      `dims_per_code` does not divide the dimensions.
  """
  dim, wanted = sample.shape[1], max(num_leaves, _NUM_CODES)
  if dim % dims_per_code or len(sample) < wanted:
    raise ValueError(
      f"dims_per_code={dims_per_code} and num_leaves={num_leaves} for "
      f"{len(sample)} vectors of {dim} dimensions; want a divisor of the "
      f"dimensions, and at least {wanted} vectors"
    )
  centroids = train_leaves(sample, num_leaves)
  some = sample[:_CODEBOOK_SAMPLE]
  residuals = some - centroids[np.asarray(assign(some, centroids))]
  codebooks = train_codebooks(residuals, dims_per_code=dims_per_code)
  return Trained(centroids, np.asarray(codebooks))


# --- Leaves --------------------------------------------------------------


def train_leaves(
  sample: Float32[np.ndarray, "n d"], num_leaves: int
) -> Float32[np.ndarray, "l d"]:
  """Returns centroids of k-means with moves; the same input gives the same."""
  rng = np.random.default_rng(0)
  centroids = sample[np.sort(rng.choice(len(sample), num_leaves, False))]
  vectors = jnp.asarray(sample)
  before = np.full(len(sample), -1)
  for i in range(_ITERATIONS):
    leaves = assign(vectors, jnp.asarray(centroids))
    if np.mean(np.asarray(leaves) != before) < _SETTLED:
      break
    before = np.asarray(leaves)
    stats = _statistics(vectors, leaves, centroids, jax.random.key(i))
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
  num_leaves = len(centroids)
  half = (centroids * centroids).sum(axis=1) / 2
  # Products in bfloat16 are twice as fast. Centroids that its 8 bits cannot
  # tell apart serve equally well.
  rounded = centroids.astype(jnp.bfloat16)

  def nearest(x: Float[Array, " d"]) -> Int[Array, ""]:
    scores = lax.dot_general(
      x.astype(jnp.bfloat16),
      rounded,
      (((0,), (1,)), ((), ())),
      preferred_element_type=jnp.float32,
    )
    groups = jnp.pad(
      scores - half, (0, -num_leaves % _GROUP), constant_values=-jnp.inf
    ).reshape(-1, _GROUP)
    group = jnp.argmax(groups.max(axis=1))
    return (group * _GROUP + jnp.argmax(groups[group])).astype(jnp.int32)

  on_cpu = jax.default_backend() == "cpu"
  scores = _SCORES_ON_CPU if on_cpu else _SCORES_ELSEWHERE
  rows = min(len(vectors), max(8, scores // num_leaves))
  return lax.map(nearest, vectors, batch_size=rows)


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


# --- Codes ---------------------------------------------------------------


@functools.partial(jax.jit, static_argnames="dims_per_code")
def train_codebooks(
  residuals: Float[Array, "n d"], *, dims_per_code: int
) -> Float[Array, "s 16 w"]:
  """Returns the centroids of each piece, by Lloyd's k-means on a sample.

  The sample has 16 or more residuals, in random order. A piece has w =
  `dims_per_code` dimensions, which divides d.
  """
  pieces = residuals.reshape(len(residuals), -1, dims_per_code)
  num_pieces = pieces.shape[1]
  # The start is spread by the first dimension, so that it is distinct.
  order = jnp.argsort(pieces[:, :, 0], axis=0)
  places = (jnp.arange(_NUM_CODES) * 2 + 1) * len(pieces) // (2 * _NUM_CODES)
  start = jnp.take_along_axis(pieces, order[places][:, :, None], axis=0)
  first = _NUM_CODES * jnp.arange(num_pieces)[None]
  total = functools.partial(
    jax.ops.segment_sum, num_segments=num_pieces * _NUM_CODES
  )

  def step(
    _: Int[Array, ""], codebooks: Float[Array, "s 16 w"]
  ) -> Float[Array, "s 16 w"]:
    chosen = (first + encode(residuals, codebooks)).reshape(-1)
    counts = total(jnp.ones(len(chosen)), chosen)[:, None]
    means = total(pieces.reshape(-1, dims_per_code), chosen)
    means = (means / jnp.maximum(counts, 1)).reshape(codebooks.shape)
    is_used = counts.reshape(num_pieces, _NUM_CODES, 1) > 0
    return jnp.where(is_used, means, codebooks)

  return lax.fori_loop(0, _ITERATIONS, step, start.transpose(1, 0, 2))


def encode(
  residuals: Float[Array, "n d"], codebooks: Float[Array, "s 16 w"]
) -> UInt8[Array, "n s"]:
  """Returns the nearest centroid of each piece of the residuals."""
  num_pieces, _, width = codebooks.shape
  pieces = residuals.reshape(-1, num_pieces, width)
  # A loop over centroids, each over whole arrays: an axis of 16 does not
  # vectorize on CPUs.
  half = jnp.square(codebooks).sum(axis=2) / 2
  best = jnp.full(pieces.shape[:2], -jnp.inf)
  codes = jnp.zeros(pieces.shape[:2], jnp.uint8)
  for code in range(_NUM_CODES):
    scores = -half[None, :, code]
    for j in range(width):
      scores = scores + pieces[:, :, j] * codebooks[None, :, code, j]
    codes = jnp.where(scores > best, jnp.uint8(code), codes)
    best = jnp.maximum(scores, best)
  return codes


# --- Files ---------------------------------------------------------------

# Each vector's leaf, and its codes in it.
_Assigned = tuple[Array, Array]


def write(
  directory: Path,
  vectors: Rows,
  trained: Trained,
  searcher_config: str,
  *,
  reordering: str,
  check: Callable[[], None] = lambda: None,
) -> None:
  """Assigns leaves and codes to every vector, and writes ScaNN's files.

  The directory is empty or new. The vectors, [N, d], are read in parts, and
  those that are scored again stored in the type `reordering`. The
  `searcher_config` is that of ScaNN's builder, as text.

  Raises:
    OSError: The disk is full.
  """
  from google.protobuf import text_format

  directory.mkdir(parents=True, exist_ok=True)

  def create(name: str, dtype: DTypeLike, *shape: int) -> np.memmap:
    return create_mapped_array(directory / name, dtype, shape)

  num_blocks, dim = vectors.shape
  leaves = create(_LEAVES, np.int32, num_blocks)
  codes = create(_CODES, np.uint8, num_blocks, len(trained.codebooks))
  name, dtype, asset_type = _VECTORS[reordering]
  stored = create(name, dtype, num_blocks, dim)

  def store(start: int, part: np.ndarray, placed: _Assigned) -> None:
    rows = slice(start, start + len(part))
    leaves[rows], codes[rows] = (x[: len(part)] for x in jax.device_get(placed))
    if reordering == "bfloat16":
      stored[rows] = part.astype(ml_dtypes.bfloat16).view(np.int16)
    else:
      stored[rows] = part
    drop_pages(part)

  centroids, codebooks = map(jnp.asarray, trained)
  # Every part is padded to one size, for which alone the program is compiled.
  size = min(_ROWS_PER_PART, num_blocks)
  waiting: list[tuple[int, np.ndarray, _Assigned]] = []
  for start in range(0, num_blocks, size):
    check()
    part = vectors[start : start + size]
    padded = np.pad(part, ((0, size - len(part)), (0, 0))).astype(np.float32)
    waiting.append((start, part, _place(padded, centroids, codebooks)))
    # The devices compute a part while the host writes the one before.
    if len(waiting) > 1:
      store(*waiting.pop(0))
  store(*waiting.pop())
  for array in (leaves, codes, stored):
    array.flush()
  config = _proto("proto.scann_pb2").ScannConfig()
  text_format.Parse(searcher_config, config)
  (directory / "scann_config.pb").write_bytes(config.SerializeToString())
  (directory / _PARTITIONER).write_bytes(_partitioner(trained.centroids))
  (directory / _CODEBOOKS).write_bytes(_codebooks(trained.codebooks))
  assets = {
    "PARTITIONER": _PARTITIONER,
    "AH_CENTERS": _CODEBOOKS,
    "TOKENIZATION_NPY": _LEAVES,
    "AH_DATASET_NPY": _CODES,
    asset_type: name,
  }
  text = "".join(
    f'assets {{\n  asset_type: {kind}\n  asset_path: "{name}"\n}}\n'
    for kind, name in assets.items()
  )
  (directory / "scann_assets.pbtxt").write_text(text)


@jax.jit
def _place(
  vectors: Float[Array, "n d"],
  centroids: Float[Array, "l d"],
  codebooks: Float[Array, "s 16 w"],
) -> _Assigned:
  leaves = assign(vectors, centroids)
  return leaves, encode(vectors - centroids[leaves], codebooks)


def _partitioner(centroids: Float32[np.ndarray, "l d"]) -> bytes:
  message = _proto("partitioning.partitioner_pb2").SerializedPartitioner(
    n_tokens=len(centroids), uses_projection=False
  )
  root = message.kmeans.kmeans_tree.root
  root.learned_spilling_threshold = float("nan")
  root.leaf_id = -1
  for leaf, centroid in enumerate(centroids.astype(np.float64)):
    root.centers.add().dimension.extend(centroid.tolist())
    root.children.add(leaf_id=leaf, learned_spilling_threshold=float("nan"))
  return message.SerializeToString()


def _codebooks(codebooks: Float32[np.ndarray, "s 16 w"]) -> bytes:
  message = _proto("proto.centers_pb2").CentersForAllSubspaces()
  for piece in codebooks:
    subspace = message.subspace_centers.add()
    for centroid in piece:
      vector = subspace.center.add()
      vector.feature_type = vector.FLOAT
      vector.feature_value_float.extend(centroid.tolist())
  return message.SerializeToString()


def _proto(name: str) -> Any:
  """Returns a module of ScaNN's protocol buffers, as `proto.scann_pb2`."""
  library()
  return importlib.import_module(f"scann.{name}")


def library() -> Any:
  """Returns ScaNN's Python module.

  Its operations for TensorFlow are not used. Without TensorFlow, which is
  hidden here unless it was imported earlier, the import takes a twentieth of
  the time.
  """
  module, advice = "scann.scann_ops.py.scann_ops_pybind", "`pip install scann`"
  modules: dict[str, Any] = sys.modules
  is_new = module not in modules
  hides = is_new and modules.setdefault("tensorflow", None) is None
  try:
    return library_of("scann", module, f"{advice}, or choose the index `exact`")
  finally:
    if hides:
      del modules["tensorflow"]
