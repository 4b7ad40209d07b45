"""A stage as t5x's model: the same modules, loss and optimizer."""

from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeVar

import flax
import jax
import jax.numpy as jnp
from clu import metrics
from flax.core import meta
from jaxtyping import PyTree
from t5x import models, optimizers, partitioning

from realm_jax.models.arrays import AnyArray
from realm_jax.models.parameters import Params, axis_metadata
from realm_jax.objectives.weighted import Average, WeightedLoss
from realm_jax.partitioning import sharding
from realm_jax.partitioning.mesh import FSDP_AXIS
from realm_jax.t5x_engine.run import EngineRun
from realm_jax.training.encoder_rows import EncoderRows

T = TypeVar("T")


def logical_axis_rules(run: EngineRun) -> tuple[tuple[str, str | None], ...]:
  """Returns a run's rules for `t5x.partitioning.PjitPartitioner`.

  Axes of the mesh that t5x does not have are left out. By the rule of `batch`
  it divides the data.
  """
  rules: list[tuple[str, str | None]] = [("batch", "data")]
  for logical, part in run.config.mesh.all_axis_rules:
    axes = (axis for axis in sharding.mesh_axes_of(part) if axis != FSDP_AXIS)
    rules.append((logical, next(axes, None)))
  return tuple(rules)


class StageOptimizer(optimizers.OptaxWrapper):
  """The optimizer of a run, in t5x's wrapper.

  t5x keeps parameters in flax's frozen dictionaries, ours are plain ones.
  """

  def __init__(self, run: EngineRun):
    super().__init__(run.setup.optimizer)
    self._freeze_steps = run.config.optimizer.freeze_retriever_steps

  def create(self, target: PyTree) -> optimizers.Optimizer:
    """Returns parameters and state before the first step."""
    return super().create(flax.core.unfreeze(target))

  def apply_gradient(
    self,
    hyper_params: Any,
    params: Params,
    state: optimizers.OptimizerState,
    grads: Params,
  ) -> tuple[Params, optimizers.OptimizerState]:
    """Returns the parameters and the state after a step.

    While the retriever is frozen, its gradient counts as zero, as in
    `batch_gradient`.
    """
    if self._freeze_steps:
      trains = state.step >= self._freeze_steps
      frozen = jax.tree.map(
        lambda g: jnp.where(trains, g, jnp.zeros_like(g)), grads["retriever"]
      )
      grads = {**grads, "retriever": frozen}
    return super().apply_gradient(hyper_params, params, state, grads)

  def derive_logical_axes(
    self, optimizer: optimizers.Optimizer, param_logical_axes: PyTree
  ) -> optimizers.Optimizer:
    """Returns the logical axes of parameters and state, in their places."""
    axes = flax.core.unfreeze(param_logical_axes)
    return super().derive_logical_axes(optimizer, axes)


@flax.struct.dataclass
class WeightedMean(metrics.Average):
  """The mean of an `Average` over the steps of a summary."""

  def compute(self) -> Any:
    """Returns the mean, as our own loop reports it."""
    return Average(self.total, self.count).mean


class StageModel(models.BaseModel):
  """The stage of a run, which t5x can train and evaluate by its loss.

  Our own commands evaluate what was trained: `realm_jax.evaluate` reads the
  run's checkpoints.
  """

  # t5x hands it to the infeed, which makes its batches without seqio's.
  FEATURE_CONVERTER_CLS = None

  def __init__(self, run: EngineRun):
    super().__init__(StageOptimizer(run))
    setup, parts = run.setup, run.config.mesh.model_parallelism
    self._run = run
    self._layout = setup.layout(setup.corpus, partitioning.default_mesh(parts))

  def get_initial_variables(
    self,
    rng: jax.Array,
    input_shapes: Mapping[str, Any],
    input_types: Mapping[str, Any] | None = None,
  ) -> PyTree:
    """Returns random parameters, and the logical names of their axes.

    The shapes follow from the run, not from the input.
    """
    del input_shapes, input_types
    boxed = self._run.setup.init(rng)
    return {"params": meta.unbox(boxed), "params_axes": axis_metadata(boxed)}

  def loss_fn(
    self,
    params: Params,
    batch: Mapping[str, AnyArray],
    dropout_rng: jax.Array | None,
  ) -> tuple[jax.Array, dict[str, metrics.Metric]]:
    """Returns the stage's loss, and its metrics, of a global batch.

    t5x differentiates it, and a derivative of `RowLayout.with_rows` would keep
    what all of its branches need. So the gradient is made with the loss.

    Args:
      params: Parameters by component.
      batch: Arrays of the infeed.
      dropout_rng: Key of the dropout masks; None is without dropout.

    Raises:
      ValueError: The batch is a micro-batch. The mean of its loss has other
        weights, and inverse cloze has no such part.
    """
    setup, size = self._run.setup, self._run.config.data.batch_size
    found = {len(array) for array in batch.values()}
    if found != {size}:
      raise ValueError(
        f"the loss is of batches of {size}, not of {found}; bind "
        "trainer.Trainer.num_microbatches = None"
      )
    numbered = self._run.unflatten(batch), jnp.arange(size, dtype=jnp.uint32)

    def on_rows(compute: Callable[[EncoderRows], T]) -> T:
      return self._layout.with_rows(
        lambda numbered: setup.rows_of(*numbered), numbered, compute
      )

    def mean(
      params: Params, rows: EncoderRows
    ) -> tuple[jax.Array, WeightedLoss]:
      weighted = setup.loss(params, numbered[0], rows, dropout_rng)
      return weighted.loss.mean, weighted

    def forward(params: Params) -> tuple[Any, Params]:
      graded = jax.value_and_grad(mean, has_aux=True)
      return on_rows(lambda rows: graded(params, rows))

    def backward(gradient: Params, cotangents: Any) -> tuple[Params]:
      return (jax.tree.map(lambda leaf: cotangents[0] * leaf, gradient),)

    loss = jax.custom_vjp(
      lambda params: on_rows(lambda rows: mean(params, rows))
    )
    loss.defvjp(forward, backward)
    value, weighted = loss(params)
    averages = {"loss": weighted.loss, **weighted.metrics}
    # The type checker does not see the fields of flax's dataclasses.
    make: Any = WeightedMean
    return value, {
      name: make(total=average.total, count=average.weight)
      for name, average in averages.items()
    }

  def predict_batch_with_aux(self, *given: Any, **settings: Any) -> NoReturn:
    """Raises an error: t5x's inference is not supported."""
    raise ValueError(
      "t5x can neither predict nor score with this model; evaluate MODEL_DIR "
      "with `python -m realm_jax.evaluate`, or ask it with `python -m "
      "realm_jax.ask`"
    )

  score_batch = predict_batch_with_aux
