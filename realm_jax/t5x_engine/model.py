"""A stage as t5x's model: the same modules, and the same loss."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

import flax
import jax
import jax.numpy as jnp
from clu import metrics
from flax.core import meta
from jaxtyping import PyTree
from t5x import models, partitioning

from realm_jax.models.arrays import AnyArray
from realm_jax.models.parameters import Params, axis_metadata
from realm_jax.objectives.weighted import Average, WeightedLoss
from realm_jax.partitioning import sharding
from realm_jax.t5x_engine.optimizer import StageOptimizer
from realm_jax.t5x_engine.run import EngineRun
from realm_jax.training.encoder_rows import EncoderRows
from realm_jax.training.row_layout import RowLayout
from realm_jax.training.stages.stage import StepBatch

T = TypeVar("T")

# The axes of t5x's meshes.
_MESH_AXES = ("data", "model")


def logical_axis_rules(run: EngineRun) -> tuple[tuple[str, str | None], ...]:
  """Returns a run's rules for `t5x.partitioning.PjitPartitioner`.

  Axes of the mesh that t5x does not have are left out. By the rule of `batch`
  it divides the data.
  """

  def in_t5x(part: str | Sequence[str] | None) -> str | None:
    found = (axis for axis in sharding.mesh_axes_of(part) if axis in _MESH_AXES)
    return next(found, None)

  own = run.config.mesh.all_axis_rules
  return (
    ("batch", "data"),
    *((logical, in_t5x(part)) for logical, part in own),
  )


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
    self._run = run
    frozen = run.config.optimizer.freeze_retriever_steps
    super().__init__(
      StageOptimizer(run.setup.optimizer, freeze_retriever_steps=frozen)
    )

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
    run = self._run
    boxed = run.config.stage.init(run.setup.models, run.lengths, rng)
    return flax.core.freeze(
      {"params": meta.unbox(boxed), "params_axes": axis_metadata(boxed)}
    )

  def loss_fn(
    self,
    params: PyTree,
    batch: Mapping[str, AnyArray],
    dropout_rng: jax.Array | None,
  ) -> tuple[jax.Array, dict[str, metrics.Metric]]:
    """Returns the stage's loss, and its metrics, of a global batch.

    Args:
      params: Parameters by component.
      batch: Arrays of the infeed.
      dropout_rng: Key of the dropout masks; None is without dropout.

    Raises:
      ValueError: The batch is a micro-batch. The mean of its loss has other
        weights, and inverse cloze has no such part.
    """
    wanted = self._run.config.data.batch_size
    found = {len(array) for array in batch.values()}
    if found != {wanted}:
      raise ValueError(
        f"the loss is of batches of {wanted}, not of {found}; bind "
        "trainer.Trainer.num_microbatches = None"
      )
    loss_of = self._loss_of(self._run.unflatten(batch), dropout_rng)
    mean, weighted = loss_of(flax.core.unfreeze(params))
    # The type checker does not see the fields of flax's dataclasses.
    make: Any = WeightedMean
    averages = {"loss": weighted.loss, **weighted.metrics}
    return mean, {
      name: make(total=average.total, count=average.weight)
      for name, average in averages.items()
    }

  @functools.cached_property
  def _layout(self) -> RowLayout:
    """How rows are laid out on t5x's mesh, by the lengths of the corpus."""
    setup = self._run.setup
    parts = setup.config.mesh.model_parallelism
    return setup.layout(setup.corpus, partitioning.default_mesh(parts))

  def _loss_of(
    self, batch: StepBatch, dropout_key: jax.Array | None
  ) -> Callable[[Params], tuple[jax.Array, WeightedLoss]]:
    """Returns the loss of a batch, of the parameters.

    t5x differentiates it, and a derivative of `RowLayout.with_rows` would keep
    what all of its branches need. So the gradient is made with the loss.
    """
    setup = self._run.setup

    def mean(
      params: Params, rows: EncoderRows
    ) -> tuple[jax.Array, WeightedLoss]:
      weighted = setup.loss(params, batch, rows, dropout_key)
      return weighted.loss.mean, weighted

    def on_rows(compute: Callable[[EncoderRows], T]) -> T:
      size = setup.config.data.batch_size
      return self._layout.with_rows(
        lambda numbered: setup.rows_of(*numbered),
        (batch, jnp.arange(size, dtype=jnp.uint32)),
        compute,
      )

    @jax.custom_vjp
    def loss_of(params: Params) -> tuple[jax.Array, WeightedLoss]:
      return on_rows(lambda rows: mean(params, rows))

    def forward(params: Params) -> tuple[Any, Params]:
      graded = jax.value_and_grad(mean, has_aux=True)
      return on_rows(lambda rows: graded(params, rows))

    def backward(gradient: Params, cotangents: Any) -> tuple[Params]:
      of_mean, _ = cotangents
      return (jax.tree.map(lambda leaf: of_mean * leaf, gradient),)

    loss_of.defvjp(forward, backward)
    return loss_of

  def predict_batch_with_aux(
    self, params: PyTree, batch: Mapping[str, AnyArray], rng: Any = None
  ) -> NoReturn:
    """Raises an error: t5x's inference is not supported."""
    _refuse("predict")

  def score_batch(
    self,
    params: PyTree,
    batch: Mapping[str, AnyArray],
    return_intermediates: bool = False,
  ) -> NoReturn:
    """Raises an error: t5x's inference is not supported."""
    _refuse("score")


def _refuse(what: str) -> NoReturn:
  raise ValueError(
    f"t5x cannot {what} with this model; evaluate MODEL_DIR with "
    "`python -m realm_jax.evaluate`, or ask it with `python -m realm_jax.ask`"
  )
