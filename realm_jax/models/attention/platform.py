"""Platform that a program is compiled for."""

import jax


def platform() -> str:
  """Returns `tpu`, `gpu` or `cpu`: where the program being traced will run.

  Under a mesh it is that of the mesh's devices, which need not be of this
  machine.
  """
  device = jax.sharding.get_abstract_mesh().abstract_device
  name = jax.default_backend() if device is None else device.platform
  return "gpu" if name in ("cuda", "rocm") else name
