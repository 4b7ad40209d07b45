"""Choice between the two implementations of attention."""

from jaxtyping import Array, Float

from realm_jax.models.attention import fused, plain
from realm_jax.models.attention.inputs import AttentionInputs, Settings
from realm_jax.models.attention.platform import platform

IMPLEMENTATIONS = ("auto", "plain", "fused")


def attend(
  inputs: AttentionInputs, settings: Settings, *, implementation: str
) -> Float[Array, "_ _"]:
  """Returns the context of each query, in the shape of the queries.

  Args:
    inputs: Arrays of the layer.
    settings: What the program is compiled for.
    implementation: One of `IMPLEMENTATIONS`.
  """
  if is_fused(inputs, settings, implementation=implementation):
    return fused.attend(inputs, settings)
  return plain.attend(inputs, settings)


def is_fused(
  inputs: AttentionInputs, settings: Settings, *, implementation: str
) -> bool:
  """Returns whether the kernel computes the attention.

  "auto" takes it on TPUs, and "fused" everywhere, both only where all tokens
  attend and the kernel handles the sizes.
  """
  if implementation == "plain" or len(inputs.query) < len(inputs.key):
    return False
  if implementation == "auto" and platform() != "tpu":
    return False
  rows, length = inputs.sequence.shape
  return fused.fits(
    rows=rows,
    length=length,
    width=inputs.query.shape[1],
    head_size=settings.head_size,
  )
