"""Contrastive losses of a retriever: a query's block among those of a batch."""

import functools
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, UInt32

from realm_jax.models import AnyArray
from realm_jax.models.retriever import PRECISION
from realm_jax.objectives.weighted import Average, WeightedLoss

# The scores of retrieval are not rounded to bfloat16 on TPUs.
_product = functools.partial(
  jnp.einsum, preferred_element_type=jnp.float32, precision=PRECISION
)


class BlockHashes(NamedTuple):
  """By which blocks are told apart that are no negatives of a query.

  Attributes:
    blocks: Content hash of each query's k blocks, in two words.
    positives: Those of all blocks that are known to be relevant to it.
    is_block: Whether there is such a block, or padding.
  """

  blocks: UInt32[AnyArray, "n k 2"]
  positives: UInt32[AnyArray, "n p 2"]
  is_block: Bool[AnyArray, "n k"]

  def negatives(self, *, shared: bool) -> Bool[Array, "n m"]:
    """Returns which of the m blocks in `contrastive_loss` are negatives.

    Example, where the first and the third query have the same block:
      >>> own = jnp.array([[[0, 7]], [[0, 8]], [[0, 7]]], "uint32")
      >>> hashes = BlockHashes(own, own, is_block=jnp.ones((3, 1), bool))
      >>> print(hashes.negatives(shared=True).astype(int))
      [[0 1 0]
       [1 0 1]
       [0 1 0]]
    """
    hashes, is_block = jnp.asarray(self.blocks), jnp.asarray(self.is_block)
    positives = jnp.asarray(self.positives)[:, :, None]

    def differ(others: UInt32[Array, "..."]) -> Bool[Array, "n m"]:
      return ~(positives == others).all(axis=-1).any(axis=1)

    first = differ(hashes[None, None, :, 0]) & is_block[None, :, 0]
    if shared:
      others = hashes[:, 1:].reshape(1, 1, -1, 2)
      rest = differ(others) & is_block[:, 1:].reshape(1, -1)
    else:
      rest = differ(hashes[:, None, 1:]) & is_block[:, 1:]
    return jnp.concatenate([first, rest], axis=1)


def contrastive_loss(
  queries: Float[Array, "n d"],
  blocks: Float[Array, "n k d"],
  is_negative: Bool[AnyArray, "n m"] | None = None,
  *,
  shared: bool = True,
  score_scale: float = 1.0,
  margin: float | None = None,
  symmetric: bool = False,
  groups: Mapping[str, Bool[AnyArray, " n"]] = MappingProxyType({}),
) -> WeightedLoss:
  """Returns the cross-entropy of each query's block among all blocks.

  −(1/n) Σ_i log softmax_j(f(x_i, z_j))_i over the **global** batch: under
  `jax.jit` with the batch sharded, the product below gathers all blocks. So
  this loss is not the sum of its parts', each of which would have fewer
  negatives. Micro-batches only embed: see `compared_gradient`.

  It is InfoNCE (van den Oord et al. 2018, arXiv 1807.03748) with in-batch
  negatives (Karpukhin et al. 2020, arXiv 2004.04906), and with k = 1 the loss
  of inverse cloze (Lee et al. 2019, section 4).

  Args:
    queries: Vectors of the queries.
    blocks: Vectors of each query's own block and, after it, of its k − 1
      negatives.
    is_negative: Which of the m blocks are negatives of a query: of all n
      queries the first blocks and then, in their order, the others, m = n · k,
      or if those are not `shared` its own others, m = n + k − 1. None takes all
      of them. The query's own block counts anyway.
    shared: Whether the negatives of a query are those of all queries.
    score_scale: Factor of every inner product, over the temperature.
    margin: Negatives whose score exceeds that of the query's own block less
      this number are left out, as they may be relevant (Moreira et al. 2024,
      arXiv 2407.15831). None keeps them.
    symmetric: Whether the mean is taken with the loss of finding a block's
      query among all queries.
    groups: Queries, by name, whose accuracy is reported apart.

  Example:
    >>> queries, blocks = jnp.eye(4), jnp.eye(4)[:, None]
    >>> loss = contrastive_loss(queries, blocks, score_scale=5.0)
    >>> {name: f"{mean:.3f}" for name, mean in loss.means().items()}
    {'loss': '0.020', 'accuracy': '1.000'}
  """
  first, rest = blocks[:, 0], blocks[:, 1:]
  others = "nd,nhd->nh"
  if shared:
    rest, others = rest.reshape(-1, rest.shape[-1]), "nd,hd->nh"
  parts = _product("nd,md->nm", queries, first), _product(others, queries, rest)
  scores = score_scale * jnp.concatenate(parts, axis=1)
  count = len(queries)
  is_own = jnp.eye(count, scores.shape[1], dtype=bool)
  own = jnp.diagonal(scores)
  counts = jnp.ones_like(is_own) if is_negative is None else is_negative
  if margin is not None:
    counts = counts & (scores <= own[:, None] - margin)
  scores = jnp.where(counts | is_own, scores, -jnp.inf)
  losses = jax.nn.logsumexp(scores, axis=1) - own
  if symmetric:
    backward = jax.nn.logsumexp(scores[:, :count], axis=0) - own
    losses = (losses + backward) / 2
  correct = jnp.argmax(scores, axis=-1) == jnp.arange(count)
  metrics = {"accuracy": Average.of(correct)}
  for name, members in groups.items():
    metrics[f"accuracy_{name}"] = Average.of(correct, members)
  return WeightedLoss(Average.of(losses), metrics)
