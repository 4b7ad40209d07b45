"""BERT's Adam and its learning-rate schedule."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import optax

from realm_jax.models import AnyArray
from realm_jax.models.parameters import Params, is_within, subtree
from realm_jax.settings import (
  NonNegativeFloat,
  NonNegativeInt,
  PositiveFloat,
  Range,
  require_valid,
)

# Label of the parameters that do not change.
_FROZEN = "frozen"
_DecayRate = Annotated[float, Range(least=0, below=1)]


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
  """BERT's optimizer, as in Google's TF1 code.

  Attributes:
    learning_rate: Peak of the learning rate.
    warmup_steps: Steps of linear warm-up; None gives
      min(10,000, max(100, num_steps / 10)).
    weight_decay: Decoupled weight decay, except on LayerNorm parameters and
      biases.
    clip_norm: Greatest global norm of the gradient.
    adam_b1, adam_b2: Decay rates of the first and the second moment.
    mean_dtype: Type in which the first moment is kept, such as bfloat16. The
      second one is always in float32: a change of a thousandth, which is what a
      step makes, is lost in bfloat16.
    epsilon: Term that is added to the root of the second moment.
    retriever_rate_scale: Factor of the retriever's learning rate.
    freeze_retriever_steps: Number of first steps that do not train the
      retriever, so that a reader that cannot read yet does not destroy it.
    frozen: Components that are not trained, or towers of one, such as
      `retriever/block_tower`, by which open QA trains the query side alone.
  """

  learning_rate: PositiveFloat
  warmup_steps: NonNegativeInt | None = None
  weight_decay: NonNegativeFloat = 0.01
  clip_norm: PositiveFloat = 1.0
  adam_b1: _DecayRate = 0.9
  adam_b2: _DecayRate = 0.999
  mean_dtype: jax.typing.DTypeLike = jnp.float32
  epsilon: PositiveFloat = 1e-6
  retriever_rate_scale: NonNegativeFloat = 1.0
  freeze_retriever_steps: NonNegativeInt = 0
  frozen: Sequence[str] = ()

  def __post_init__(self) -> None:
    require_valid(self)
    # A list from a file cannot be hashed.
    object.__setattr__(self, "frozen", tuple(self.frozen))


def scale_by_bert_adam(config: OptimizerConfig) -> optax.GradientTransformation:
  """Returns Adam without bias correction: m / (√v + ε)."""
  adam = optax.scale_by_adam(
    config.adam_b1, config.adam_b2, config.epsilon, mu_dtype=config.mean_dtype
  )

  def update(
    updates: optax.Updates,
    state: optax.OptState,
    params: optax.Params | None = None,
  ) -> tuple[optax.Updates, optax.OptState]:
    assert isinstance(state, optax.ScaleByAdamState)
    # The divisors, 1 - b^count, are 1 where the count is as great as can be.
    count = jnp.full_like(state.count, jnp.iinfo(jnp.int32).max)
    return adam.update(updates, state._replace(count=count), params)

  return optax.GradientTransformation(adam.init, update)


def learning_rate_schedule(
  config: OptimizerConfig, *, num_steps: int, of_retriever: bool = False
) -> optax.Schedule:
  """Returns linear decay to zero from step 0, after a linear warm-up.

  That of the retriever has its own factor. If it was frozen, it has a warm-up
  of its own, too: its moments are zero when its training begins, and without
  bias correction the first updates would be several times too large.
  """
  given, usual = config.warmup_steps, min(10_000, max(100, num_steps // 10))
  warmup = usual if given is None else given
  frozen_steps = config.freeze_retriever_steps

  def schedule(step: jax.typing.ArrayLike) -> jax.Array:
    step = jnp.asarray(step)
    decayed = config.learning_rate * jnp.maximum(0.0, 1.0 - step / num_steps)
    warming = config.learning_rate * step / max(warmup, 1)
    rate = jnp.where(step < warmup, warming, decayed)
    if not of_retriever:
      return rate
    since = step - frozen_steps
    warms = (frozen_steps > 0) & (since < warmup)
    scale = jnp.where(warms, since / max(warmup, 1), 1.0) * (since >= 0)
    return rate * config.retriever_rate_scale * scale

  return schedule


def _decay_mask(params: Params) -> Params:
  """Returns whether each parameter has weight decay."""

  def is_decayed(path: tuple[Any, ...], leaf: AnyArray) -> bool:
    del leaf
    name = jax.tree_util.keystr(path, simple=True, separator="/")
    return "norm" not in name and not name.endswith(("/bias", "/scale"))

  return jax.tree_util.tree_map_with_path(is_decayed, params)


@functools.lru_cache(maxsize=32)
def make_optimizer(
  config: OptimizerConfig,
  *,
  num_steps: int,
  components: tuple[str, ...] = ("retriever", "reader"),
  frozen: tuple[str, ...] = (),
) -> optax.GradientTransformation:
  """Returns BERT's optimizer: clip, Adam, weight decay, learning rate.

  Its parameters are a dictionary by component. What is `frozen`, or is by the
  configuration, neither changes nor decays. Equal settings give the same
  optimizer, for which `jax.jit` knows what it has compiled.

  Raises:
    RealmError: When it is initialized: no parameters are of a frozen name.
  """
  frozen = (*frozen, *config.frozen)
  rates = {
    name: learning_rate_schedule(
      config, num_steps=num_steps, of_retriever=name == "retriever"
    )
    for name in components
  }
  # The state is of the same form whether or not a component is frozen.
  rates[_FROZEN] = optax.constant_schedule(0.0)

  def groups(params: Params) -> Params:
    for name in frozen:
      subtree(params, name)
    return jax.tree_util.tree_map_with_path(
      lambda path, _: _FROZEN if is_within(path, frozen) else path[0].key,
      params,
    )

  return optax.chain(
    optax.clip_by_global_norm(config.clip_norm),
    scale_by_bert_adam(config),
    optax.add_decayed_weights(config.weight_decay, mask=_decay_mask),
    optax.partition(
      {
        name: optax.scale_by_learning_rate(rate) for name, rate in rates.items()
      },
      groups,
    ),
  )
