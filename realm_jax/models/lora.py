"""LoRA (Hu et al. 2021, arXiv 2106.09685): low-rank adapters of linear layers.

A component whose BERT or T5 has a `LoraConfig` trains only its adapters and
`modules_to_save`. Other parameters have no gradient and no optimizer state.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np
from flax import linen as nn
from flax import traverse_util
from jaxtyping import Array, Float

from realm_jax.errors import RealmError
from realm_jax.models import AnyArray, matmul
from realm_jax.models.parameters import Params
from realm_jax.settings import Named, PositiveFloat, PositiveInt, require_valid

_ADAPTERS = ("lora_a", "lora_b")


@dataclasses.dataclass(frozen=True)
class LoraConfig:
  """Adapters of a component, with PEFT's names.

  Attributes:
    rank: Rank of the matrix that an adapter adds to a kernel.
    alpha: Scale of the added matrix, times the rank.
    target_modules: Names of the linear layers with adapters.
    modules_to_save: Names of modules that are trained as a whole, such as a
      `projection` or a `classifier` with random initial values.
  """

  rank: Annotated[PositiveInt, Named("LORA_RANK")] = 16
  alpha: Annotated[PositiveFloat, Named("LORA_ALPHA")] = 32.0
  target_modules: Annotated[Sequence[str], Named("LORA_TARGET_MODULES")] = (
    "query",
    "value",
  )
  modules_to_save: Annotated[Sequence[str], Named("LORA_MODULES_TO_SAVE")] = ()

  def __post_init__(self) -> None:
    require_valid(self)
    # Lists from a file cannot be hashed.
    for name in ("target_modules", "modules_to_save"):
      object.__setattr__(self, name, tuple(getattr(self, name)))


class LoraDense(nn.Dense):
  """A linear layer, with an adapter: W x + b + (alpha / rank) B A x.

  `lora_a` [in, rank] starts with PEFT's values, uniform within 1 / √in, and
  `lora_b` [rank, out] with 0, which leaves the layer unchanged.

  Attributes:
    axes: Logical axes of the kernel.
    lora: Adapters of the component, if any.
  """

  axes: tuple[str, str] = ("embed", "embed_out")
  lora: LoraConfig | None = None
  dot_general: Any = matmul.dot_general

  @nn.compact
  def __call__(self, inputs: Float[AnyArray, "*b d"]) -> Float[Array, "*b f"]:
    result, config = super().__call__(inputs), self.lora
    if config is None or self.name not in config.target_modules:
      return result
    uniform = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")
    zeros, (axis_in, axis_out) = nn.initializers.zeros_init(), self.axes
    adapter = (
      self.param(name, nn.with_logical_partitioning(init, axes), shape)
      for name, init, axes, shape in (
        ("lora_a", uniform, (axis_in, None), (inputs.shape[-1], config.rank)),
        ("lora_b", zeros, (None, axis_out), (config.rank, self.features)),
      )
    )
    x, *matrices = nn.dtypes.promote_dtype(inputs, *adapter, dtype=self.dtype)
    for matrix in matrices:
      dimensions = (((x.ndim - 1,), (0,)), ((), ()))
      x = self.dot_general(x, matrix, dimensions, precision=self.precision)
    return result + config.alpha / config.rank * x


def split(
  components: Mapping[str, Any], params: Params
) -> tuple[Params, Params]:
  """Returns the trained and the fixed parameters, by component.

  Without LoRA, all parameters of a component are trained.

  Raises:
    RealmError: LoRA is configured for a layer that a component does not have,
      or for a module that no component has.
  """
  trained: Params = {}
  fixed: Params = {}
  # Several components may share a configuration, and only one of them may have
  # the modules to save.
  everywhere = {
    name for path in traverse_util.flatten_dict(params) for name in path[1:]
  }
  for component, tree in params.items():
    module = components[component]
    encoder = getattr(module, "bert", getattr(module, "t5", None))
    lora = getattr(encoder, "lora", None)
    if lora is None:
      trained[component] = tree
      continue
    flat = traverse_util.flatten_dict(tree)
    adapted = {path[-2] for path in flat if path[-1] in _ADAPTERS}
    known = {name for path in flat for name in path} - {*_ADAPTERS}
    names = {*lora.target_modules} - adapted
    names |= {*lora.modules_to_save} - everywhere
    if names:
      raise RealmError(
        f"LoraConfig names {', '.join(sorted(names))}, and the {component} has "
        f"{', '.join(sorted(known))}; target_modules must be linear layers"
      )
    names = {*_ADAPTERS, *lora.modules_to_save}
    for part, is_trained in ((trained, True), (fixed, False)):
      selected = {
        p: x for p, x in flat.items() if bool(names & {*p}) is is_trained
      }
      part[component] = traverse_util.unflatten_dict(selected)
  return trained, fixed


def joined(params: Any, others: Any) -> Any:
  """Returns a tree, with missing leaves from another tree."""
  if not isinstance(params, dict):
    return params
  tree = {name: joined(x, others.get(name, {})) for name, x in params.items()}
  return {**others, **tree}


def to_restore(params: Params, stored: Params) -> Params:
  """Returns the parameters to restore from a stored component.

  These are all parameters, but adapters only if the stored component has any.
  """
  if any(path[-1] in _ADAPTERS for path in traverse_util.flatten_dict(stored)):
    return params
  flat = traverse_util.flatten_dict(params)
  base = {path: x for path, x in flat.items() if path[-1] not in _ADAPTERS}
  return traverse_util.unflatten_dict(base)


def merged(
  parameters: Mapping[str, np.ndarray], lora: LoraConfig | None
) -> dict[str, np.ndarray]:
  """Returns parameters by path, with W + (alpha / rank) B A for each kernel W.

  They are parameters for a model without adapters (the paper's section 4.1).
  """
  base = {p: x for p, x in parameters.items() if not p.endswith(_ADAPTERS)}
  if lora is None:
    return base
  for path, a in parameters.items():
    layer, _, name = path.rpartition("/")
    if name == "lora_a":
      change = a @ parameters[f"{layer}/lora_b"] * (lora.alpha / lora.rank)
      base[f"{layer}/kernel"] = base[f"{layer}/kernel"] + change
  return base
