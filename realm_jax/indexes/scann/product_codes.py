"""Product quantization: residuals of vectors in their leaves, in 4-bit codes.

A residual is split into pieces of a few dimensions. Each piece is replaced by
the nearest of 16 centroids (Jégou et al. 2011), or by one that preserves large
inner products better (Guo et al. 2020, arXiv 1908.10396).
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, UInt8

NUM_CODES = 16
_ITERATIONS = 10
_SWEEPS = 2


def anisotropic_weight(threshold: float, dim: int) -> float:
  """Returns η − 1, the extra weight of an error along the vector.

  η = (d − 1) T² / (1 − T²) for queries whose inner product exceeds T times the
  vector's length (Guo et al. 2020, theorem 3.3). T < 1; 0 gives no weight.
  """
  return max(0.0, (dim - 1) * threshold**2 / (1 - threshold**2) - 1)


@functools.partial(jax.jit, static_argnames="dims_per_code")
def train_codebooks(
  residuals: Float[Array, "n d"], *, dims_per_code: int
) -> Float[Array, "s 16 w"]:
  """Returns the centroids of each piece, by Lloyd's k-means on a sample.

  The sample is 16 or more vectors minus the centroids of their leaves, in
  random order. A piece has w = `dims_per_code` dimensions, which divides d.
  """

  def one(pieces: Float[Array, "n w"]) -> Float[Array, "16 w"]:
    # The start is spread by the first dimension, so that it is distinct.
    order = jnp.argsort(pieces[:, 0])
    places = (jnp.arange(NUM_CODES) * 2 + 1) * len(pieces) // (2 * NUM_CODES)

    def step(
      _: Int[Array, ""], centroids: Float[Array, "16 w"]
    ) -> Float[Array, "16 w"]:
      chosen = jax.nn.one_hot(
        jnp.argmax(_closeness(pieces, centroids), axis=1), NUM_CODES
      )
      counts = chosen.sum(axis=0)[:, None]
      means = jnp.matmul(
        chosen.T, pieces, precision=lax.Precision.HIGHEST
      ) / jnp.maximum(counts, 1)
      return jnp.where(counts > 0, means, centroids)

    return lax.fori_loop(0, _ITERATIONS, step, pieces[order[places]])

  return lax.map(one, _pieces(residuals, dims_per_code).transpose(1, 0, 2))


def encode(
  residuals: Float[Array, "n d"],
  codebooks: Float[Array, "s 16 w"],
  directions: Float[Array, "n d"] | None = None,
  weight: float = 0.0,
) -> UInt8[Array, "n s"]:
  """Returns the code of each piece of vectors minus their leaves' centroids.

  Without a weight η − 1 of `anisotropic_weight`, it is the nearest centroid's.
  With one, the directions are needed: the vectors, scaled to length 1.
  """
  pieces = _pieces(residuals, codebooks.shape[2])
  codes = _nearest(pieces, codebooks)
  if directions is None or not weight:
    return codes
  along = _pieces(directions, codebooks.shape[2])
  return _improved(pieces, codebooks, along, codes, weight)


def decode(
  codes: UInt8[Array, "n s"], codebooks: Float[Array, "s 16 w"]
) -> Float[Array, "n d"]:
  """Returns the residuals that codes represent."""
  pieces = codebooks[jnp.arange(codes.shape[1])[None], codes.astype(jnp.int32)]
  return pieces.reshape(len(codes), -1)


def _pieces(
  x: Float[Array, "n d"], dims_per_code: int
) -> Float[Array, "n s w"]:
  return x.reshape(len(x), -1, dims_per_code)


def _closeness(
  pieces: Float[Array, "n w"], centroids: Float[Array, "16 w"]
) -> Float[Array, "n 16"]:
  """Returns scores that fall with distance, up to a constant per piece."""
  products = jnp.matmul(pieces, centroids.T, precision=lax.Precision.HIGHEST)
  return products - jnp.square(centroids).sum(axis=1)[None] / 2


def _nearest(
  pieces: Float[Array, "n s w"], codebooks: Float[Array, "s 16 w"]
) -> UInt8[Array, "n s"]:
  # A loop over centroids, each over whole arrays: an axis of 16 does not
  # vectorize on CPUs.
  half = jnp.square(codebooks).sum(axis=2) / 2
  best = jnp.full(pieces.shape[:2], -jnp.inf)
  codes = jnp.zeros(pieces.shape[:2], jnp.uint8)
  for code in range(NUM_CODES):
    scores = -half[None, :, code]
    for j in range(pieces.shape[2]):
      scores = scores + pieces[:, :, j] * codebooks[None, :, code, j]
    codes = jnp.where(scores > best, jnp.uint8(code), codes)
    best = jnp.maximum(scores, best)
  return codes


def _improved(
  pieces: Float[Array, "n s w"],
  codebooks: Float[Array, "s 16 w"],
  along: Float[Array, "n s w"],
  codes: UInt8[Array, "n s"],
  weight: float,
) -> UInt8[Array, "n s"]:
  """Improves codes by coordinate descent on |r − r̃|² + (η − 1) ((r − r̃)·x̂)²."""
  start = decode(codes, codebooks).reshape(pieces.shape)
  parallel = ((pieces - start) * along).sum(axis=(1, 2))

  def one_piece(
    parallel: Float[Array, " n"],
    piece: tuple[
      Float[Array, "w n"],
      Float[Array, "16 w"],
      Float[Array, "w n"],
      UInt8[Array, " n"],
    ],
  ) -> tuple[Float[Array, " n"], UInt8[Array, " n"]]:
    # Whole columns of vectors, for the same reason as in `_nearest`.
    residual, centroids, direction, code = piece
    w = len(residual)
    current = centroids[code.astype(jnp.int32)].T
    others = parallel - sum(
      (residual[j] - current[j]) * direction[j] for j in range(w)
    )
    best = jnp.full(len(parallel), jnp.inf)
    chosen, kept = code, parallel
    for k in range(NUM_CODES):
      away = [residual[j] - centroids[k, j] for j in range(w)]
      total = others + sum(away[j] * direction[j] for j in range(w))
      loss = sum(jnp.square(a) for a in away) + weight * jnp.square(total)
      chosen = jnp.where(loss < best, jnp.uint8(k), chosen)
      kept = jnp.where(loss < best, total, kept)
      best = jnp.minimum(loss, best)
    return kept, chosen

  by_piece = (pieces.transpose(1, 2, 0), codebooks, along.transpose(1, 2, 0))
  columns = codes.T
  for _ in range(_SWEEPS):
    parallel, columns = lax.scan(one_piece, parallel, (*by_piece, columns))
  return columns.T
