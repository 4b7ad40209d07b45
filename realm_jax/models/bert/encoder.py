"""BERT's encoder: embeddings and layers."""

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Int

from realm_jax.models.bert import initializers
from realm_jax.models.bert.config import BertConfig
from realm_jax.models.bert.layers import HIDDEN, BertLayer, layer_norm
from realm_jax.models.dropout import Dropout
from realm_jax.models.sequences import Sequences


def token_types(sequences: Sequences, separator_id: int) -> Int[Array, "r l"]:
  """Returns 0 up to and with a sequence's first [SEP], 1 after it."""
  is_separator = (sequences.token_ids == separator_id).astype(jnp.int32)
  before = jnp.cumsum(is_separator, axis=-1) - is_separator
  index = jnp.arange(before.shape[-1])[None, :]
  first = jnp.maximum(index - sequences.position, 0)
  return jnp.minimum(before - jnp.take_along_axis(before, first, axis=-1), 1)


class BertEncoder(nn.Module):
  """Embeddings and transformer layers; no pooler.

  As in all modules here, dropout is on where `apply` is given a `dropout` key.
  """

  config: BertConfig

  def setup(self) -> None:
    config = self.config
    if config.vocab_size is None or config.separator_id is None:
      raise ValueError(
        "the encoder has no vocabulary yet; call BertConfig.for_vocabulary"
      )
    self.word_embeddings, self.position_embeddings, self.type_embeddings = (
      # Gathered here: divided by columns, the lookup's result would be, too.
      nn.with_logical_constraint(
        self.param(
          f"{name}_embeddings",
          initializers.sinusoids(config.init_stddev)
          if (name, config.initialization) == ("position", "mimetic")
          else initializers.normal(config.init_stddev, axis, "embed"),
          (rows, config.hidden_size),
        ),
        (axis, "activation_embed"),
      )
      for name, axis, rows in (
        ("word", "vocab", config.vocab_size),
        ("position", "position", config.max_positions),
        ("type", "type", 2),
      )
    )
    self.embedding_norm = layer_norm(config, "embedding_norm")
    self.embedding_dropout = Dropout(config.dropout_rate)
    layer = BertLayer
    if config.remat_policy is not None:
      policy = getattr(jax.checkpoint_policies, config.remat_policy)
      layer = nn.remat(BertLayer, policy=policy)
    self.layers = [
      layer(config, name=f"layer_{i}") for i in range(config.num_layers)
    ]

  def __call__(
    self,
    sequences: Sequences,
    *,
    typed: bool = True,
    first_only: bool = False,
  ) -> Float[Array, "r t d"]:
    """Returns the hidden states of the last layer.

    Args:
      sequences: Sequences in rows, one or several in each.
      typed: Whether tokens after a sequence's first [SEP] are of type 1;
        otherwise all are of type 0.
      first_only: Whether the last layer computes each row's first token
        alone; the result is r × 1 × d then.

    Raises:
      ValueError: The rows are longer than `max_positions`.
    """
    config = self.config
    rows, length = sequences.token_ids.shape
    if length > config.max_positions:
      raise ValueError(
        f"sequences of {length} tokens, but the model has "
        f"max_positions={config.max_positions}; shorten the lengths"
      )
    hidden = jnp.take(self.word_embeddings, sequences.token_ids, axis=0)
    hidden += jnp.take(self.position_embeddings, sequences.position, axis=0)
    # Two types: an interpolation needs no gather, and no scatter backward.
    first, second = self.type_embeddings
    hidden += first[None, None]
    if typed:
      types = token_types(sequences, config.separator)
      weight = types[..., None].astype(jnp.float32)
      hidden += weight * (second - first)[None, None]
    hidden = self.embedding_norm(hidden).astype(config.dtype)
    hidden = hidden.reshape(-1, config.hidden_size)
    hidden = self.embedding_dropout(hidden, sequences.dropout_keys.reshape(-1))
    hidden = nn.with_logical_constraint(hidden, HIDDEN)
    for i, layer in enumerate(self.layers, start=1):
      if first_only and i == config.num_layers:
        hidden = layer(hidden, sequences, first_only=True)
      else:
        hidden = layer(hidden, sequences)
    return hidden.reshape(rows, -1, config.hidden_size)
