"""Product quantization: what is left of a vector in its leaf, in 4-bit codes.

A residual is cut into pieces of a few dimensions, and each piece is replaced
by the nearest of 16 centres (Jégou et al. 2011); or by those that keep the
inner products that matter (Guo et al. 2020, arXiv 1908.10396).
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, UInt8

NUM_CODES = 16
_SWEEPS = 2


def anisotropic_weight(threshold: float, dim: int) -> float:
  """η − 1: how much more an error along the vector weighs than one across.

  η = (d − 1) T² / (1 − T²) for queries of an inner product above T times the
  vector's length (Guo et al. 2020, theorem 3.3); 0 where T = 0 asks for none.

  Raises:
    ValueError: the threshold is not in 0 ≤ T < 1.
  """
  if not 0 <= threshold < 1:
    raise ValueError(
      f"anisotropic_threshold={threshold}; want 0 (none) or more, below 1"
    )
  if threshold == 0:
    return 0.0
  return max(0.0, (dim - 1) * threshold**2 / (1 - threshold**2) - 1)


@functools.partial(jax.jit, static_argnames=("dims_per_code", "iterations"))
def train_codebooks(
  residuals: Float[Array, "n d"], *, dims_per_code: int, iterations: int = 10
) -> Float[Array, "s 16 w"]:
  """The centres of each piece, by k-means on the pieces of a sample.

  Args:
    residuals: vectors less the centres of their leaves, in random order, 16 or
      more.
    dims_per_code: w, which divides d; there are s = d / w pieces.
    iterations: of Lloyd's algorithm.
  """

  def one(pieces: Float[Array, "n w"]) -> Float[Array, "16 w"]:
    # Spread over the pieces by their first dimension: no two start together.
    order = jnp.argsort(pieces[:, 0])
    places = (jnp.arange(NUM_CODES) * 2 + 1) * len(pieces) // (2 * NUM_CODES)

    def step(_, centres):
      chosen = jax.nn.one_hot(
        jnp.argmax(_closeness(pieces, centres), axis=1), NUM_CODES
      )
      counts = chosen.sum(axis=0)[:, None]
      means = jnp.matmul(
        chosen.T, pieces, precision=lax.Precision.HIGHEST
      ) / jnp.maximum(counts, 1)
      return jnp.where(counts > 0, means, centres)

    return lax.fori_loop(0, iterations, step, pieces[order[places]])

  return lax.map(one, _pieces(residuals, dims_per_code).transpose(1, 0, 2))


def encode(
  residuals: Float[Array, "n d"],
  codebooks: Float[Array, "s 16 w"],
  directions: Float[Array, "n d"] | None = None,
  weight: float = 0.0,
) -> UInt8[Array, "n s"]:
  """The code of each piece.

  Args:
    residuals: vectors less the centres of their leaves.
    codebooks: the centres of each piece.
    directions: the vectors themselves, of length 1; needed with a weight.
    weight: η − 1, of `anisotropic_weight`; 0 takes the nearest centre.
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
  """The residuals that codes stand for."""
  pieces = codebooks[jnp.arange(codes.shape[1])[None], codes.astype(jnp.int32)]
  return pieces.reshape(len(codes), -1)


def _pieces(x: Float[Array, "n d"], dims_per_code: int) -> Array:
  return x.reshape(len(x), -1, dims_per_code)


def _closeness(
  pieces: Float[Array, "n w"], centres: Float[Array, "16 w"]
) -> Float[Array, "n 16"]:
  """Falls with the distance; alike but for what all centres share."""
  products = jnp.matmul(pieces, centres.T, precision=lax.Precision.HIGHEST)
  return products - jnp.square(centres).sum(axis=1)[None] / 2


def _nearest(
  pieces: Float[Array, "n s w"], codebooks: Float[Array, "s 16 w"]
) -> UInt8[Array, "n s"]:
  # One centre after the other over whole arrays: a CPU's vector units see no
  # axis of 16.
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
  """Coordinate descent on |r − r̃|² + (η − 1) ((r − r̃)·x̂)²."""
  start = decode(codes, codebooks).reshape(pieces.shape)
  parallel = ((pieces - start) * along).sum(axis=(1, 2))

  def one_piece(parallel, piece):
    # Whole columns of vectors, for the same reason as in `_nearest`.
    residual, centres, direction, code = piece
    w = len(residual)
    current = centres[code.astype(jnp.int32)].T
    others = parallel - sum(
      (residual[j] - current[j]) * direction[j] for j in range(w)
    )
    best = jnp.full(len(parallel), jnp.inf)
    chosen, kept = code, parallel
    for k in range(NUM_CODES):
      away = [residual[j] - centres[k, j] for j in range(w)]
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
