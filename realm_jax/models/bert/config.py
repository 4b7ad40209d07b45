"""The sizes and numerical choices of BERT."""

import dataclasses

import jax
import jax.numpy as jnp

from realm_jax.models.attention.choice import IMPLEMENTATIONS
from realm_jax.models.bert.activations import ACTIVATIONS
from realm_jax.settings import (
  DropoutRate,
  NonNegativeFloat,
  PositiveFloat,
  PositiveInt,
  require_valid,
)

INITIALIZATIONS = ("bert", "mimetic")
REMAT_POLICIES = (
  "nothing_saveable",
  "dots_saveable",
  "dots_with_no_batch_dims_saveable",
)


@dataclasses.dataclass(frozen=True)
class BertConfig:
  """Sizes and numerical choices of one BERT encoder.

  `vocab_size` and `separator_id` come from the corpus's vocabulary when they
  are None: see `for_vocabulary`.
  """

  vocab_size: PositiveInt | None = None
  separator_id: int | None = None
  hidden_size: PositiveInt = 768
  num_layers: PositiveInt = 12
  num_heads: PositiveInt = 12
  intermediate_size: PositiveInt = 3072
  max_positions: PositiveInt = 512
  layer_norm_eps: PositiveFloat = 1e-12
  dropout_rate: DropoutRate = 0.1
  activation: str = "gelu_tanh"
  # Score added at padding. Google's TF1 code uses -10000, and Hugging Face the
  # lowest float.
  attention_mask_value: float = -10000.0
  init_stddev: NonNegativeFloat = 0.02
  # Initial values: "bert", normal ones, or "mimetic" (Trockman and Kolter 2023,
  # arXiv 2305.09828), for small models that no BERT weights exist for. Position
  # embeddings are sinusoids, and attention's projections and the masked-LM
  # head's first layer are near the identity, so that tokens attend to equal
  # words and to neighbours, and take over what they attend to, from the first
  # step on.
  initialization: str = "bert"
  # The type of activations and matrix products; parameters stay float32.
  dtype: jax.typing.DTypeLike = jnp.float32
  # Attention's implementation: "plain", "fused" (the kernel for TPUs, which is
  # interpreted on other platforms), or "auto", which is fused on TPUs alone.
  # Where the kernel does not handle the sizes, and where only the first tokens
  # of rows attend, "fused" and "auto" compute plainly, without an error.
  attention: str = "auto"
  # What the backward pass does not compute again: the name of one of
  # `jax.checkpoint_policies`, such as "nothing_saveable". None keeps all.
  remat_policy: str | None = None

  def __post_init__(self) -> None:
    require_valid(self)
    if self.hidden_size % self.num_heads:
      raise ValueError(
        f"hidden_size={self.hidden_size} is not a multiple of "
        f"num_heads={self.num_heads}"
      )
    if self.activation not in ACTIVATIONS:
      raise ValueError(
        f"activation={self.activation!r}; want one of {sorted(ACTIVATIONS)}"
      )
    if self.initialization not in INITIALIZATIONS:
      raise ValueError(
        f"initialization={self.initialization!r}; want one of "
        f"{', '.join(INITIALIZATIONS)}"
      )
    if self.attention not in IMPLEMENTATIONS:
      raise ValueError(
        f"attention={self.attention!r}; want one of "
        f"{', '.join(IMPLEMENTATIONS)}"
      )
    if self.remat_policy not in (None, *REMAT_POLICIES):
      raise ValueError(
        f"remat_policy={self.remat_policy!r}; want None or one of "
        f"{', '.join(REMAT_POLICIES)}"
      )

  @property
  def separator(self) -> int:
    """Id of [SEP]; raises ValueError where no vocabulary is bound."""
    if self.separator_id is None:
      raise ValueError(
        "the encoder has no vocabulary yet; call BertConfig.for_vocabulary"
      )
    return self.separator_id

  def for_vocabulary(
    self, *, vocab_size: int, separator_id: int
  ) -> "BertConfig":
    """Returns this configuration for the vocabulary of a corpus.

    Raises:
      ValueError: The configuration names another vocabulary size or [SEP].
    """
    wanted = {"vocab_size": vocab_size, "separator_id": separator_id}
    for name, value in wanted.items():
      configured = getattr(self, name)
      if configured is not None and configured != value:
        raise ValueError(
          f"BertConfig.{name}={configured}, but the corpus's vocabulary has "
          f"{value}; leave it unset, or use the vocabulary that the model was "
          "trained with"
        )
    return dataclasses.replace(self, **wanted)
