"""The step that all stages share: rows, gradient and update.

A stage's loss returns weighted sums over the batch, which micro-batches can
add (`realm_jax/objectives/weighted.py`). The step differentiates their mean.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, UInt32

from realm_jax.models.parameters import Params
from realm_jax.objectives.weighted import WeightedLoss
from realm_jax.training.encoder_rows import EncoderRows
from realm_jax.training.row_layout import RowLayout
from realm_jax.training.state import TrainState

# A stage's batch: a tree of arrays with a row for each example.
B = TypeVar("B")
T = TypeVar("T")
Metrics = dict[str, jax.Array]
# From examples and their numbers in the global batch to what encoders read.
RowsOf = Callable[[B, UInt32[Array, " b"]], EncoderRows]
# A stage's loss, of the parameters by component, the batch, what the encoders
# read of it, and the key of the dropout masks, which is None without dropout.
Loss = Callable[[Params, B, EncoderRows, jax.Array | None], WeightedLoss]


class ComparingLoss(NamedTuple):
  """A `Loss` that compares all examples of a batch by their vectors.

  Attributes:
    embed: Function from the parameters, what the encoders read and the key of
      the dropout masks to a tree of vectors, with a row for each example.
    compare: Function from these and the batch to the loss.
  """

  embed: Callable[[Params, EncoderRows, jax.Array | None], Any]
  compare: Callable[[Any, Any], WeightedLoss]

  def __call__(
    self,
    params: Params,
    batch: Any,
    rows: EncoderRows,
    dropout_key: jax.Array | None,
  ) -> WeightedLoss:
    return self.compare(self.embed(params, rows, dropout_key), batch)


def _split(batch: B, *, parts: int, devices: int) -> B:
  """Returns the parts of each array along a new first dimension.

  Each device has all parts of its own rows.
  """

  def of_parts(x: jax.Array) -> jax.Array:
    x = x.reshape(devices, parts, -1, *x.shape[1:])
    x = jnp.swapaxes(x, 0, 1)
    return x.reshape(parts, -1, *x.shape[3:])

  return jax.tree.map(of_parts, batch)


def _join(parts: B, *, devices: int) -> B:
  """Returns the arrays of the batch that `_split` has split."""

  def of_batch(x: jax.Array) -> jax.Array:
    x = x.reshape(len(x), devices, -1, *x.shape[2:])
    return jnp.swapaxes(x, 0, 1).reshape(-1, *x.shape[3:])

  return jax.tree.map(of_batch, parts)


def _sum_over(function: Callable[[Any], T], parts: Any) -> T:
  """Returns the sum of a function of parts, one after the other."""
  first = jax.tree.map(lambda x: x[0], parts)
  zeros = jax.tree.map(
    lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(function, first)
  )
  total, _ = jax.lax.scan(
    lambda sums, part: (jax.tree.map(jnp.add, sums, function(part)), None),
    zeros,
    parts,
  )
  return total


def batch_gradient(
  state: TrainState,
  batch: B,
  *,
  rows_of: RowsOf[B],
  loss: Loss[B],
  layout: RowLayout,
  seed: int,
  freeze_retriever: bool = False,
  num_microbatches: int = 1,
) -> tuple[Params, Metrics]:
  """Computes the gradient of one batch, and the loss's metrics.

  `seed`, folded with the step, is that of the dropout masks. The gradient of a
  retriever that is frozen in this step is not computed. With micro-batches,
  whose gradients are computed one after the other and added, the masks are the
  same, and the gradient is that of the whole batch.
  """
  dropout_key = jax.random.fold_in(jax.random.key(seed), state.step)

  def trained(params: Params) -> Params:
    if not freeze_retriever:
      return params
    towers = {n: params[n] for n in ("retriever", "posterior") if n in params}
    return {**params, **jax.lax.stop_gradient(towers)}

  def on_rows(
    numbered: tuple[B, UInt32[Array, " b"]], compute: Callable[[EncoderRows], T]
  ) -> T:
    return layout.with_rows(
      lambda numbered: rows_of(*numbered), numbered, compute
    )

  def objective(
    params: Params, part: B, rows: EncoderRows
  ) -> tuple[jax.Array, WeightedLoss]:
    weighted = loss(trained(params), part, rows, dropout_key)
    # Gradients of sums can be added; that of the mean need not be divided.
    is_whole = num_microbatches == 1
    return weighted.loss.mean if is_whole else weighted.loss.total, weighted

  def gradient_of(
    numbered: tuple[B, UInt32[Array, " b"]],
  ) -> tuple[Params, WeightedLoss]:
    gradient = jax.grad(objective, has_aux=True)
    return on_rows(
      numbered, lambda rows: gradient(state.params, numbered[0], rows)
    )

  size = len(jax.tree.leaves(batch)[0])
  numbered = batch, jnp.arange(size, dtype=jnp.uint32)
  if num_microbatches == 1:
    gradient, weighted = gradient_of(numbered)
    return gradient, weighted.means()
  devices = layout.num_devices
  parts = _split(numbered, parts=num_microbatches, devices=devices)
  if not isinstance(loss, ComparingLoss):
    gradient, weighted = _sum_over(gradient_of, parts)
    weight = jnp.maximum(weighted.loss.weight, 1.0)
    return jax.tree.map(lambda g: g / weight, gradient), weighted.means()
  return _gradient_by_vectors(
    state.params,
    batch,
    parts,
    embed=lambda params, rows: loss.embed(trained(params), rows, dropout_key),
    compare=loss.compare,
    on_rows=on_rows,
    devices=devices,
  )


def _gradient_by_vectors(
  params: Params,
  batch: Any,
  parts: Any,
  *,
  embed: Callable[[Params, EncoderRows], Any],
  compare: Callable[[Any, Any], WeightedLoss],
  on_rows: Callable[[Any, Callable[[EncoderRows], Any]], Any],
  devices: int,
) -> tuple[Params, Metrics]:
  """Computes the gradient of a `ComparingLoss` over the parts of a batch.

  This is GradCache (Gao et al. 2021, arXiv 2101.06983): all parts are embedded,
  the loss of all vectors is differentiated by these, and then each part is
  embedded again, with the same dropout masks, to differentiate its vectors by
  the parameters. It takes one more forward pass than the batch as a whole.
  """
  vectors = jax.lax.map(
    lambda part: on_rows(part, lambda rows: embed(params, rows)), parts
  )

  def loss_of(vectors: Any) -> tuple[jax.Array, WeightedLoss]:
    weighted = compare(_join(vectors, devices=devices), batch)
    return weighted.loss.mean, weighted

  slopes, weighted = jax.grad(loss_of, has_aux=True)(vectors)

  def gradient_of(given: Any) -> Params:
    part, slopes = given

    def product(params: Params, rows: EncoderRows) -> jax.Array:
      products = jax.tree.map(jnp.multiply, embed(params, rows), slopes)
      return jnp.asarray(optax.tree.sum(products))

    return on_rows(part, lambda rows: jax.grad(product)(params, rows))

  return _sum_over(gradient_of, (parts, slopes)), weighted.means()


def update(
  state: TrainState,
  gradient: Params,
  metrics: Metrics,
  *,
  optimizer: optax.GradientTransformation,
) -> tuple[TrainState, Metrics]:
  """Updates the parameters by a gradient.

  Returns:
    The next state and the metrics, with `gradient_norm` and `parameter_norm`
    (of the next state) added.
  """
  updates, optimizer_state = optimizer.update(
    gradient, state.optimizer, state.params
  )
  params = cast(Params, optax.apply_updates(state.params, updates))
  norms = {
    "gradient_norm": optax.tree.norm(gradient),
    "parameter_norm": optax.tree.norm(params),
  }
  state = state._replace(
    step=state.step + jnp.ones_like(state.step),
    params=params,
    optimizer=optimizer_state,
  )
  return state, {**metrics, **norms}


def train_step(
  state: TrainState,
  batch: B,
  searched: Any = None,
  *,
  optimizer: optax.GradientTransformation,
  search: Callable[..., tuple[TrainState, B, Metrics]] | None = None,
  freeze_retriever: bool = False,
  **settings: Any,
) -> tuple[TrainState, Metrics]:
  """Computes the gradient of one batch and updates the parameters.

  Args:
    state: State before the step.
    batch: Batch of the stage.
    searched: What `search` searches.
    optimizer: Optimizer.
    search: Function that finds or draws the batch's candidates in this step,
      given the state, the batch, `searched` and whether the retriever is
      frozen. It returns the first two, and metrics.
    freeze_retriever: Whether the retriever is frozen in this step.
    settings: Further settings of `batch_gradient`.
  """
  found: Metrics = {}
  if search is not None:
    state, batch, found = search(state, batch, searched, freeze_retriever)
  gradient, metrics = batch_gradient(
    state, batch, freeze_retriever=freeze_retriever, **settings
  )
  return update(state, gradient, {**metrics, **found}, optimizer=optimizer)
