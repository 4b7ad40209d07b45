"""Losses of scores of a query's own blocks, the first of which is relevant."""

from collections.abc import Callable, Mapping
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

Ranking = Literal["listwise", "binary", "pairwise"]
Distillation = Literal["kl", "margin_mse"]


def listwise(
  scores: Float[Array, "b k"], is_block: Bool[Array, "b k"]
) -> Float[Array, " b"]:
  """Returns −log softmax(scores) of the first block.

  Example:
    >>> scores = jnp.log(jnp.array([[2.0, 1.0, 5.0]]))
    >>> is_block = jnp.array([[True, True, False]])  # The third is padding.
    >>> jnp.exp(-listwise(scores, is_block))
    Array([0.667], dtype=float32)
  """
  return -jax.nn.log_softmax(_masked(scores, is_block), axis=1)[:, 0]


def binary(
  scores: Float[Array, "b k"], is_block: Bool[Array, "b k"]
) -> Float[Array, " b"]:
  """Returns the mean binary cross-entropy: is a block the first?

  Example:
    >>> scores = jnp.log(jnp.array([[2.0, 1.0, 5.0]]))
    >>> is_block = jnp.array([[True, True, False]])  # The third is padding.
    >>> binary(scores, is_block)
    Array([0.549], dtype=float32)
  """
  is_first = jnp.arange(scores.shape[1])[None] == 0
  losses = jax.nn.softplus(jnp.where(is_first, -scores, scores))
  return losses.mean(axis=1, where=is_block)


def pairwise(
  scores: Float[Array, "b k"], is_block: Bool[Array, "b k"]
) -> Float[Array, " b"]:
  """Returns the mean of log(1 + e^(s − s₁)) over the others (RankNet).

  Burges et al. 2005, "Learning to Rank using Gradient Descent". It is 0 where
  there are no others.

  Example:
    >>> scores = jnp.log(jnp.array([[2.0, 1.0, 5.0]]))
    >>> is_block = jnp.array([[True, True, False]])  # The third is padding.
    >>> pairwise(scores, is_block)
    Array([0.405], dtype=float32)
  """
  losses = jax.nn.softplus(scores[:, 1:] - scores[:, :1])
  return _mean_of(losses, is_block[:, 1:])


RANKINGS: Mapping[Ranking, Callable[..., Array]] = {
  "listwise": listwise,
  "binary": binary,
  "pairwise": pairwise,
}


def kl_divergence(
  teacher: Float[Array, "b k"],
  student: Float[Array, "b k"],
  is_block: Bool[Array, "b k"],
) -> Float[Array, " b"]:
  """Returns KL(softmax(teacher) ‖ softmax(student)) over the blocks.

  Example:
    >>> scores = jnp.log(jnp.array([[2.0, 1.0, 5.0]]))
    >>> is_block = jnp.array([[True, True, False]])  # The third is padding.
    >>> kl_divergence(scores, 0.0 * scores, is_block)
    Array([0.057], dtype=float32)
  """
  log_p, log_q = (
    jax.nn.log_softmax(_masked(scores, is_block), axis=1)
    for scores in (teacher, student)
  )
  terms = jnp.where(is_block, jnp.exp(log_p) * (log_p - log_q), 0.0)
  return terms.sum(axis=1)


def margin_mse(
  teacher: Float[Array, "b k"],
  student: Float[Array, "b k"],
  is_block: Bool[Array, "b k"],
) -> Float[Array, " b"]:
  """Returns the mean squared error of the margins of the first block.

  Hofstätter et al. 2020, arXiv 2010.02666. It is 0 where there are no others.

  Example:
    >>> scores = jnp.log(jnp.array([[2.0, 1.0, 5.0]]))
    >>> is_block = jnp.array([[True, True, False]])  # The third is padding.
    >>> margin_mse(scores, 0.0 * scores, is_block)
    Array([0.48], dtype=float32)
  """
  target, margins = (x[:, :1] - x[:, 1:] for x in (teacher, student))
  return _mean_of(jnp.square(margins - target), is_block[:, 1:])


DISTILLATIONS: Mapping[Distillation, Callable[..., Array]] = {
  "kl": kl_divergence,
  "margin_mse": margin_mse,
}


def _masked(
  scores: Float[Array, "b k"], is_block: Bool[Array, "b k"]
) -> Float[Array, "b k"]:
  # Not infinite, as a divergence subtracts them.
  return jnp.where(is_block, scores, -1e9)


def _mean_of(
  values: Float[Array, "b n"], is_block: Bool[Array, "b n"]
) -> Float[Array, " b"]:
  total = jnp.sum(values, axis=1, where=is_block)
  return total / jnp.maximum(is_block.sum(axis=1), 1)
