"""Which settings would make a program fit a chip's memory."""

import jax.numpy as jnp

from realm_jax.precompilation.chips import Chip
from realm_jax.precompilation.compiler import Compiled
from realm_jax.training.config import TrainConfig


def advice(
  config: TrainConfig, compiled: Compiled, chip: Chip, *, chips: int
) -> list[str]:
  """Returns settings that may make a step fit, each with what it may bring.

  A step's temporaries are taken to grow with the batch, and the state to be
  divided by FSDP; only another compilation says what remains.
  """
  fixed = compiled.total_bytes - compiled.temporary_bytes
  temporary, memory = compiled.temporary_bytes, chip.memory_bytes
  found = []
  if jnp.dtype(config.retriever.bert.dtype) == jnp.float32:
    found.append(
      'BertConfig.dtype = "bfloat16" (DTYPE in gin/models/bert_base.gin) '
      f"halves most temporaries: about {_gib(fixed + temporary / 2)} in all"
    )
  fsdp = config.mesh.fsdp
  while fsdp * 2 * config.mesh.model_parallelism <= chips:
    fsdp *= 2
    total = fixed * config.mesh.fsdp / fsdp + temporary
    if total <= memory:
      found.append(f"FSDP = {fsdp} divides the state: about {_gib(total)}")
      break
  groups = chips // config.mesh.model_parallelism
  batch = config.data.batch_size
  if config.retriever.bert.remat_policy is None:
    found.append(
      'REMAT_POLICY = "nothing_saveable" keeps the layers\' inputs alone, and '
      "computes a forward pass more"
    )
  parts = 2 * config.num_microbatches
  while config.stage.is_divisible and batch % (groups * parts) == 0:
    total = fixed + temporary * config.num_microbatches / parts
    if total <= memory:
      found.append(
        f"NUM_MICROBATCHES = {parts} computes parts of the batch one after the "
        f"other: about {_gib(total)}"
      )
      break
    parts *= 2
  smaller = int(batch * (memory - fixed) / temporary) // groups * groups
  if 0 < smaller < batch:
    found.append(
      f"BATCH_SIZE = {smaller}, {smaller // groups} for each of {groups} "
      f"groups of chips: about {_gib(fixed + temporary * smaller / batch)}"
    )
  return found or ["a slice with more chips, or chips with more memory"]


def _gib(size: float) -> str:
  return f"{size / 2**30:.1f} GiB"
