"""Losses and metrics as weighted sums, which micro-batches can add.

Each `WeightedLoss` of a batch's parts is a summand of the whole batch's, as its
gradient is of the whole gradient: `jax.tree.map(jnp.add, one, other)`.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from realm_jax.models import AnyArray


class Average(NamedTuple):
  """A weighted mean, kept as a weighted sum and the sum of the weights."""

  total: Float[Array, ""]
  weight: Float[Array, ""]

  @classmethod
  def of(
    cls,
    values: Float[AnyArray, "*s"] | Bool[AnyArray, "*s"],
    weights: Float[AnyArray, "*s"] | Bool[AnyArray, "*s"] | None = None,
  ) -> "Average":
    """Returns the mean of values, each of weight 1 unless weights are given.

    Example:
      >>> found = Average.of(jnp.array([1.0, 3.0]), jnp.array([3.0, 1.0]))
      >>> print(found.mean, found.weight)
      1.5 4.0
    """
    if weights is None:
      weights = jnp.ones(values.shape)
    weights = weights.astype(jnp.float32)
    return cls(jnp.sum(values * weights), jnp.sum(weights))

  @property
  def divisor(self) -> Float[Array, ""]:
    """The sum of the weights; 1 where nothing has weight."""
    return jnp.where(self.weight > 0, self.weight, 1.0)

  @property
  def mean(self) -> Float[Array, ""]:
    """The mean; 0 where nothing has weight."""
    return self.total / self.divisor


class WeightedLoss(NamedTuple):
  """A loss and its metrics.

  Attributes:
    loss: Loss to minimize, whose mean is differentiated.
    metrics: Other metrics by name, each with its own weights.
  """

  loss: Average
  metrics: dict[str, Average]

  @classmethod
  def of_both(cls, retriever: Average, reader: Average) -> "WeightedLoss":
    """Returns the sum of two losses of equal weight, and each as a metric.

    Example:
      >>> one, two = (Average.of(jnp.array([x])) for x in (1.0, 2.0))
      >>> print(WeightedLoss.of_both(one, two).loss.mean)
      3.0
    """
    return cls(
      retriever._replace(total=retriever.total + reader.total),
      {"retriever_loss": retriever, "reader_loss": reader},
    )

  def means(self) -> dict[str, Float[Array, ""]]:
    """Returns the mean of each metric, and of the loss as `loss`.

    Example:
      >>> one = WeightedLoss(Average.of(jnp.array([1.0])), {})
      >>> other = WeightedLoss(Average.of(jnp.array([2.0])), {})
      >>> jax.tree.map(jnp.add, one, other).means()
      {'loss': Array(1.5, dtype=float32)}
    """
    averages = {"loss": self.loss, **self.metrics}
    return {name: average.mean for name, average in averages.items()}
