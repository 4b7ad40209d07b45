"""Optimizers and learning-rate schedules: BERT's Adam, AdamW and Adafactor."""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import optax
from flax.core import meta

from realm_jax.models import AnyArray
from realm_jax.models.parameters import Params, is_within, subtree
from realm_jax.settings import (
  NonNegativeFloat,
  NonNegativeInt,
  PositiveFloat,
  Range,
  require_valid,
)

# Label of frozen parameters.
_FROZEN = "frozen"
# Name of the module whose layers' parameters `flax.linen.scan` stacks.
_STACK = "layers"
_DecayRate = Annotated[float, Range(least=0, below=1)]


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
  """The optimizer; by default BERT's, as in Google's TF1 code.

  Attributes:
    learning_rate: Peak learning rate. Adafactor multiplies it by the root mean
      square of each parameter.
    optimizer: "bert_adam" (Adam without bias correction), "adamw" (with bias
      correction, like torch's AdamW), or "adafactor" (as in T5, without
      momentum).
    schedule: Learning rate after the warm-up: "linear" falls to zero at
      `num_steps`, "constant" does not fall, and "cosine" falls as in Atlas, by
      a quarter of a cosine, to a tenth.
    warmup_steps: Steps of linear warm-up; None is
      min(10,000, max(100, num_steps / 10)).
    weight_decay: Decoupled weight decay, except for LayerNorm parameters and
      biases. None is 0.01, and 0 with Adafactor.
    clip_norm: Maximum global norm of the gradient. None is 1, and no limit with
      Adafactor, which limits the updates of each parameter.
    adam_b1, adam_b2: Decay rates of the first and the second moment.
    mean_dtype: Type in which the first moment is stored, such as bfloat16. The
      second moment is always float32, because it changes by about a thousandth
      in a step, which bfloat16 cannot represent.
    epsilon: Term that is added to the root of the second moment.
    retriever_rate_scale: Factor of the retriever's learning rate.
    freeze_retriever_steps: Number of steps at the start that do not train the
      retriever, so that an untrained reader does not destroy it.
    frozen: Components that are not trained, or towers of one. For example,
      open QA freezes `retriever/block_tower` to train only the query tower.
  """

  learning_rate: PositiveFloat
  optimizer: Literal["bert_adam", "adamw", "adafactor"] = "bert_adam"
  schedule: Literal["linear", "constant", "cosine"] = "linear"
  warmup_steps: NonNegativeInt | None = None
  weight_decay: NonNegativeFloat | None = None
  clip_norm: PositiveFloat | None = None
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


def scale_by_adam(config: OptimizerConfig) -> optax.GradientTransformation:
  """Returns Adam, m / (√v + ε); BERT's has no bias correction."""
  adam = optax.scale_by_adam(
    config.adam_b1, config.adam_b2, config.epsilon, mu_dtype=config.mean_dtype
  )
  if config.optimizer == "adamw":
    return adam

  def update(
    updates: optax.Updates,
    state: optax.OptState,
    params: optax.Params | None = None,
  ) -> tuple[optax.Updates, optax.OptState]:
    assert isinstance(state, optax.ScaleByAdamState)
    # With the greatest count, the divisors 1 - b^count are 1.
    count = jnp.full_like(state.count, jnp.iinfo(jnp.int32).max)
    return adam.update(updates, state._replace(count=count), params)

  return optax.GradientTransformation(adam.init, update)


def scale_by_adafactor() -> optax.GradientTransformation:
  """Returns Adafactor (Shazeer and Stern 2018), as in T5 and t5x.

  Second moments of a matrix are factored from 128 rows and columns on. The root
  mean square of an update is at most 1 times the parameter's. Layers of a stack
  are treated separately; optax would treat the stack as one array.
  """
  adafactor = optax.chain(
    optax.scale_by_factored_rms(),
    optax.clip_by_block_rms(1.0),
    optax.scale_by_param_block_rms(),
  )

  def each(function: Callable[..., Any], *trees: Any) -> Any:
    def apply(path: tuple[Any, ...], *leaves: Any) -> Any:
      is_stacked = any(getattr(key, "key", None) == _STACK for key in path)
      return (jax.vmap(function) if is_stacked else function)(*leaves)

    return jax.tree_util.tree_map_with_path(apply, *trees)

  def update(
    updates: optax.Updates,
    state: optax.OptState,
    params: optax.Params | None = None,
  ) -> tuple[optax.Updates, optax.OptState]:
    pairs = each(adafactor.update, updates, state, params)
    return (
      jax.tree.map(lambda _, pair: pair[0], updates, pairs),
      jax.tree.map(lambda _, pair: pair[1], updates, pairs),
    )

  # Factored moments lack axes of the parameter's box. They are small, so they
  # are replicated.
  return optax.GradientTransformation(
    lambda params: each(adafactor.init, meta.unbox(params)), update
  )


def learning_rate_schedule(
  config: OptimizerConfig, *, num_steps: int, of_retriever: bool = False
) -> optax.Schedule:
  """Returns the learning rate by step, which begins with a linear warm-up.

  Linear decay is counted from step 0. The retriever has its own factor. If it
  was frozen, it also has its own warm-up: its moments are zero when its
  training begins, and the first updates would be several times too large.
  """
  warmup = config.warmup_steps
  if warmup is None:
    warmup = min(10_000, max(100, num_steps // 10))
  frozen_steps = config.freeze_retriever_steps

  def schedule(step: jax.typing.ArrayLike) -> jax.Array:
    step = jnp.asarray(step)
    after = (step - warmup) / max(num_steps - warmup, 1)
    share = {
      "linear": jnp.maximum(0.0, 1.0 - step / num_steps),
      "constant": 1.0,
      "cosine": 0.1 + 0.9 * jnp.cos(0.5 * jnp.pi * after),
    }[config.schedule]
    decayed = config.learning_rate * share
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
  """Returns an optimizer: clip, Adam or Adafactor, weight decay, learning rate.

  Parameters are a dictionary by component. Those that are `frozen`, here or in
  the configuration, neither change nor decay. Equal settings return the same
  optimizer, so that `jax.jit` does not compile again.

  Raises:
    RealmError: On initialization: a frozen name matches no parameters.
  """
  frozen = (*frozen, *config.frozen)
  scale, weight_decay, clip_norm = scale_by_adam(config), 0.01, 1.0
  if config.optimizer == "adafactor":
    scale, weight_decay, clip_norm = scale_by_adafactor(), 0.0, math.inf
  if config.weight_decay is not None:
    weight_decay = config.weight_decay
  rates = {
    name: learning_rate_schedule(
      config, num_steps=num_steps, of_retriever=name == "retriever"
    )
    for name in components
  }
  # The state has the same structure whether or not a component is frozen.
  rates[_FROZEN] = optax.constant_schedule(0.0)

  def groups(params: Params) -> Params:
    for name in frozen:
      subtree(params, name)
    return jax.tree_util.tree_map_with_path(
      lambda path, _: _FROZEN if is_within(path, frozen) else path[0].key,
      params,
    )

  return optax.chain(
    optax.clip_by_global_norm(config.clip_norm or clip_norm),
    scale,
    optax.add_decayed_weights(weight_decay, mask=_decay_mask),
    optax.partition(
      {
        name: optax.scale_by_learning_rate(rate) for name, rate in rates.items()
      },
      groups,
    ),
  )
