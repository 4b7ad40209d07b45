"""The exact search of a step's queries."""

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from realm_jax.indexes import exact_search
from realm_jax.indexes.exact import ExactConfig, capacity_for
from realm_jax.partitioning import rules
from realm_jax.partitioning.mesh import MESH_AXES
from realm_jax.precompilation.programs.program import SEARCH, Program
from realm_jax.training.useful_flops import Work


def search_program(
  config: ExactConfig,
  mesh: Mesh,
  *,
  num_blocks: int,
  num_queries: int,
  num_searched: int,
  dim: int,
) -> Program:
  """Returns the exact search of a step's queries in all blocks."""
  capacity = capacity_for(num_blocks, devices=mesh.size)
  device = mesh.devices.flat[0]
  plan = config.plan(
    num_searched,
    num_queries=num_queries,
    capacity=capacity,
    devices=mesh.size,
    platform=device.platform,
  )
  replicated = rules.replicated(mesh)
  by_device = NamedSharding(mesh, PartitionSpec(MESH_AXES))
  queries = jax.ShapeDtypeStruct(
    (num_queries, dim), jnp.float32, sharding=rules.batch_sharding(mesh)
  )
  vectors = jax.ShapeDtypeStruct(
    (capacity, dim), jnp.dtype(config.dtype), sharding=by_device
  )
  count = jax.ShapeDtypeStruct((), jnp.int32, sharding=replicated)
  share = -(-num_blocks // mesh.size)
  return Program(
    kind=SEARCH,
    name=f"{num_queries:,} queries, {num_blocks:,} blocks",
    function=exact_search.search,
    arguments=(queries, vectors, count),
    settings={"plan": plan, "mesh": mesh},
    mesh=mesh,
    work=Work(2.0 * num_queries * num_blocks * dim, 0.0),
    unknown_trips=-(-share // plan.rows_per_step),
  )
