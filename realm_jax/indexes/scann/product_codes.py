"""Product quantization: residuals of vectors in their leaves, in 4-bit codes.

A residual is split into pieces of a few dimensions. Each piece is replaced by
the nearest of 16 centroids (Jégou et al. 2011).
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, UInt8

NUM_CODES = 16
_ITERATIONS = 10


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
  residuals: Float[Array, "n d"], codebooks: Float[Array, "s 16 w"]
) -> UInt8[Array, "n s"]:
  """Returns the nearest centroid of each piece of the residuals."""
  return _nearest(_pieces(residuals, codebooks.shape[2]), codebooks)


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
