"""The step that all stages share, and its state: inputs, gradient and update.

A stage (`realm_jax/training/stages/stage.py`) makes of a batch what the
encoders read, and of that weighted sums, which micro-batches can add
(`realm_jax/objectives/weighted.py`). The step differentiates their mean.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import jax
import jax.numpy as jnp
import optax
from flax.core import meta
from jax.sharding import Mesh
from jaxtyping import Array, Int, PyTree, UInt32

from realm_jax.models.parameters import Params, parameter_shardings
from realm_jax.objectives.weighted import WeightedLoss
from realm_jax.partitioning import sharding
from realm_jax.training.encoder_inputs import EncoderInputs, PackingLayout

# A stage's batch: a tree of arrays with a row for each example.
B = TypeVar("B")
T = TypeVar("T")
Metrics = dict[str, jax.Array]


class TrainState(NamedTuple):
  """Training state, which a checkpoint stores.

  Attributes:
    step: Number of steps that have been taken.
    params: Parameters by component.
    optimizer: State of the optimizer.
    index: `search_in_step.RollingIndexState`, if the run keeps a rolling index.
  """

  step: Int[Array, ""]
  params: Params
  optimizer: optax.OptState
  index: PyTree = None


def create_state(
  init: Callable[[jax.Array], Params],
  optimizer: optax.GradientTransformation,
  *,
  seed: int | None,
  mesh: Mesh,
  axis_rules: sharding.AxisRules = sharding.LOGICAL_AXIS_RULES,
) -> TrainState:
  """Initializes a state, every array on its own devices.

  `init` makes the parameters in flax's boxes. Without a `seed`, the arrays are
  abstract.

  Raises:
    ValueError: The mesh does not divide a parameter.
  """
  # Equal arguments make the same function, which is traced once.
  boxed = sharding.shared_partial(_boxed_state, init, optimizer)
  shapes = jax.eval_shape(boxed, jax.random.key(0))
  shardings = parameter_shardings(shapes, mesh, axis_rules)
  jax.tree_util.tree_map_with_path(
    lambda path, box, placed: sharding.require_divisible(
      f"the parameter {jax.tree_util.keystr(path)}",
      meta.unbox(box).shape,
      getattr(box, "names", ()),
      placed,
    ),
    shapes.params,
    shardings.params,
    is_leaf=meta.is_axis_metadata,
  )
  if seed is None:
    return jax.tree.map(
      lambda x, placed: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=placed),
      meta.unbox(shapes),
      shardings,
    )
  # A sharding is a pytree prefix of the box that stands in its place.
  make = jax.jit(boxed, out_shardings=shardings)
  return meta.unbox(make(jax.random.key(seed)))


def _boxed_state(
  init: Callable[[jax.Array], Params],
  optimizer: optax.GradientTransformation,
  key: jax.Array,
) -> TrainState:
  params = init(key)
  return TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params))


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
  stage: Any,
  models: Any,
  layout: PackingLayout,
  seed: int,
  freeze_retriever: bool = False,
  num_microbatches: int = 1,
) -> tuple[Params, Metrics]:
  """Computes the gradient of one batch, and the loss's metrics.

  `stage` and `models` are those of `realm_jax/training/stages/stage.py`. The
  `seed`, folded with the step, is that of the dropout masks. The gradient of a
  retriever that is frozen in this step is not computed. With micro-batches,
  whose gradients are computed one after the other and added, the masks are the
  same, and the gradient is that of the whole batch.
  """
  dropout_key = jax.random.fold_in(jax.random.key(seed), state.step)

  def encoders(params: Params, key: jax.Array) -> Any:
    if freeze_retriever:
      towers = {name: x for name, x in params.items() if name != "reader"}
      params = {**params, **jax.lax.stop_gradient(towers)}
    return stage.encoders(models, params, key)

  def on_inputs(
    part: tuple[B, UInt32[Array, " b"]], compute: Callable[[EncoderInputs], T]
  ) -> T:
    examples, ids = part
    return layout.with_inputs(
      functools.partial(stage.inputs, models),
      examples,
      compute,
      example_ids=ids,
    )

  def objective(
    params: Params, part: B, inputs: EncoderInputs
  ) -> tuple[jax.Array, WeightedLoss]:
    weighted = stage.loss(encoders(params, dropout_key), part, inputs)
    # Gradients of sums can be added; that of the mean need not be divided.
    is_whole = num_microbatches == 1
    return weighted.loss.mean if is_whole else weighted.loss.total, weighted

  def gradient_of(
    part: tuple[B, UInt32[Array, " b"]],
  ) -> tuple[Params, WeightedLoss]:
    gradient = jax.grad(objective, has_aux=True)
    return on_inputs(
      part, lambda inputs: gradient(state.params, part[0], inputs)
    )

  size = len(jax.tree.leaves(batch)[0])
  whole = batch, jnp.arange(size, dtype=jnp.uint32)
  if num_microbatches == 1:
    gradient, weighted = gradient_of(whole)
    return gradient, weighted.means()
  devices = layout.num_devices
  parts = _split(whole, parts=num_microbatches, devices=devices)
  if not stage.compares:
    gradient, weighted = _sum_over(gradient_of, parts)
    divisor = weighted.loss.divisor
    return jax.tree.map(lambda g: g / divisor, gradient), weighted.means()

  # GradCache (Gao et al. 2021, arXiv 2101.06983): the loss of all vectors is
  # differentiated by these, and then each part is embedded again, with the same
  # dropout masks, to differentiate its vectors by the parameters. It takes one
  # more forward pass than the batch as a whole.
  @jax.custom_vjp
  def vectors_of(params: Params, part: Any, key: jax.Array) -> Any:
    return on_inputs(
      part, lambda inputs: stage.embed(encoders(params, key), inputs)
    )

  def backward(given: Any, slopes: Any) -> Any:
    params, part, key = given

    def pulled_back(inputs: EncoderInputs) -> Params:
      _, pull = jax.vjp(
        lambda params: stage.embed(encoders(params, key), inputs), params
      )
      return pull(slopes)[0]

    return on_inputs(part, pulled_back), None, None

  vectors_of.defvjp(lambda *given: (vectors_of(*given), given), backward)

  def compared(params: Params) -> tuple[jax.Array, WeightedLoss]:
    vectors = jax.lax.map(
      lambda part: vectors_of(params, part, dropout_key), parts
    )
    vectors = _join(vectors, devices=devices)
    weighted = stage.compare(models, vectors, batch)
    return weighted.loss.mean, weighted

  gradient, weighted = jax.grad(compared, has_aux=True)(state.params)
  return gradient, weighted.means()


def train_step(
  state: TrainState,
  batch: B,
  searched: Any = None,
  *,
  stage: Any,
  models: Any,
  optimizer: optax.GradientTransformation,
  seed: int,
  search: Callable[..., tuple[TrainState, B, Metrics]] | None = None,
  freeze_retriever: bool = False,
  **settings: Any,
) -> tuple[TrainState, Metrics]:
  """Computes the gradient of one batch and updates the parameters.

  `search`, if any, finds the candidates of the batch in this step, given the
  state, the batch, what is `searched` and whether the retriever is frozen. It
  returns the first two, and metrics. The others are those of `batch_gradient`.
  The metrics `gradient_norm` and `parameter_norm` are added, of the next state.
  """
  found: Metrics = {}
  if search is not None:
    state, batch, found = search(state, batch, searched, freeze_retriever)
  gradient, metrics = batch_gradient(
    state,
    batch,
    stage=stage,
    models=models,
    seed=seed,
    freeze_retriever=freeze_retriever,
    **settings,
  )
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
  return state, {**metrics, **found, **norms}
