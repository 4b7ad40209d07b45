"""The step that all stages share: search, gradient, update.

A stage (`realm_jax/training/stages/stage.py`) turns a batch into the inputs of
the encoders, and these into a loss. The loss is a weighted sum, so that
micro-batches can be added (`realm_jax/objectives/weighted.py`); the step
differentiates its mean.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, UInt32

from realm_jax.models.components import Components
from realm_jax.models.lora import joined, split
from realm_jax.models.parameters import Params, is_within
from realm_jax.objectives.weighted import WeightedLoss
from realm_jax.training import microbatches
from realm_jax.training.encoder_inputs import EncoderInputs, PackingLayout
from realm_jax.training.search_in_step import SearchInStep
from realm_jax.training.stages.stage import Encoders, Stage, StepBatch
from realm_jax.training.state import Metrics, TrainState

T = TypeVar("T")


class Part(NamedTuple):
  """A batch or a part of one, and the indices of its examples in the batch."""

  batch: StepBatch
  example_ids: UInt32[Array, " b"]


@dataclasses.dataclass(frozen=True)
class TrainStep:
  """One step of training, a function of the state and a batch.

  Attributes:
    seed: Seed of the dropout masks, folded with the step.
    search: Search for the batch's candidates, if the step does its own
      retrieval.
    num_microbatches: Number of parts into which a batch is split. Their
      gradients are computed one after the other and added; dropout masks and
      gradient are the same as for the whole batch.
    frozen: Components, or towers of one, that this step does not train but runs
      with dropout. Components that the stage freezes run without.
    untouched: Components that other stages train; this step changes neither
      their parameters nor their optimizer moments.
    prefix: Prefix of the names of the stage's metrics.
  """

  stage: Stage
  components: Components
  layout: PackingLayout
  optimizer: optax.GradientTransformation
  seed: int
  search: SearchInStep | None = None
  num_microbatches: int = 1
  frozen: tuple[str, ...] = ()
  untouched: tuple[str, ...] = ()
  prefix: str = ""
  # Name of the compiled program in jax's logs and profiles.
  __name__ = "train_step"

  def __call__(
    self, state: TrainState, batch: StepBatch, searched: Any = None
  ) -> tuple[TrainState, Metrics]:
    """Returns the state after the step, and its metrics.

    The metrics are the stage's, with the norms of the gradient and of the new
    parameters. `searched` is the argument of `search`.
    """
    search_metrics: Metrics = {}
    if self.search is not None:
      is_frozen = "retriever" in self.frozen
      state, batch, search_metrics = self.search(
        state, batch, searched, is_frozen
      )
    gradient, metrics = self.gradient(state, batch)
    trained, fixed = split(self.components, state.params)
    updates, optimizer = self.optimizer.update(
      gradient, state.optimizer, trained
    )
    params: Params = joined(optax.apply_updates(trained, updates), fixed)
    params = self._touched(state.params, params)
    optimizer = self._touched(state.optimizer, optimizer)
    metrics = {self.prefix + name: value for name, value in metrics.items()}
    norms = {
      "gradient_norm": optax.tree.norm(gradient),
      "parameter_norm": optax.tree.norm(params),
    }
    step = state.step + jnp.ones_like(state.step)
    state = state._replace(step=step, params=params, optimizer=optimizer)
    return state, {**metrics, **search_metrics, **norms}

  def _touched(self, old: T, new: T) -> T:
    """Returns the new tree, with the old values of untouched components.

    Step counts in the optimizer state advance for all components.
    """

    def choose(path: tuple[Any, ...], before: Array, after: Array) -> Array:
      names = {getattr(key, "key", None) for key in path}
      is_count = jnp.issubdtype(after.dtype, jnp.integer)
      return after if is_count or names.isdisjoint(self.untouched) else before

    return jax.tree_util.tree_map_with_path(choose, old, new)

  def gradient(
    self, state: TrainState, batch: StepBatch
  ) -> tuple[Params, Metrics]:
    """Returns the gradient by trained parameters, and the stage's metrics."""
    key = jax.random.fold_in(jax.random.key(self.seed), state.step)
    trained, fixed = split(self.components, state.params)
    batch = self.stage.rerank(self.encoders(trained, fixed, key), batch)
    size = len(jax.tree.leaves(batch)[0])
    whole = Part(batch, jnp.arange(size, dtype=jnp.uint32))
    if self.num_microbatches > 1:
      compute = microbatches.summed_gradient
      if self.stage.compares:
        compute = microbatches.compared_gradient
      return compute(self, trained, fixed, whole, key)

    def loss(
      params: Params, inputs: EncoderInputs
    ) -> tuple[jax.Array, WeightedLoss]:
      encoders = self.encoders(params, fixed, key)
      weighted = self.stage.loss(encoders, batch, inputs)
      return weighted.loss.mean, weighted

    gradient_of = functools.partial(jax.grad(loss, has_aux=True), trained)
    gradient, weighted = self.on_inputs(whole, gradient_of)
    return gradient, weighted.means()

  def encoders(self, params: Params, fixed: Params, key: jax.Array) -> Encoders:
    """Returns the components as the loss applies them in this step."""
    params = jax.tree_util.tree_map_with_path(
      lambda path, leaf: (
        jax.lax.stop_gradient(leaf) if is_within(path, self.frozen) else leaf
      ),
      joined(params, fixed),
    )
    return self.stage.encoders(self.components, params, key)

  def on_inputs(self, part: Part, compute: Callable[[EncoderInputs], T]) -> T:
    """Applies a function to the encoder inputs of a part, laid out in bins."""
    return self.layout.with_inputs(
      functools.partial(self.stage.inputs, self.components),
      part.batch,
      compute,
      example_ids=part.example_ids,
    )
