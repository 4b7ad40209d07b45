"""Which of the retrieved blocks become candidates; part of the numeric core.

The functions take numpy's arrays and jax's alike: on the host, and inside a
compiled program.
"""

from jaxtyping import Bool, Int

from realm_jax.models.arrays import AnyArray

NULL_ROW = -1


def without_source(
  rows: Int[AnyArray, "b n"],
  is_source: Bool[AnyArray, "b n"],
  *,
  num_kept: int,
) -> Int[AnyArray, "b {num_kept}"]:
  """Returns each query's first blocks that are not the one it came from.

  Retrieval of the source would be trivial, since it contains the masked words
  (section 3.4). `is_source` marks it and its verbatim copies. Where these leave
  fewer than `num_kept` blocks, the null block takes the last places.
  """
  xp = rows.__array_namespace__()
  order = xp.argsort(is_source, axis=1, stable=True)[:, :num_kept]
  kept = xp.take_along_axis(rows, order, axis=1)
  dropped = xp.take_along_axis(is_source, order, axis=1)
  return xp.where(dropped, xp.asarray(NULL_ROW, dtype=rows.dtype), kept)


def with_null(rows: Int[AnyArray, "b n"]) -> Int[AnyArray, "b n+1"]:
  """Adds the null block in front, where it is always candidate 0."""
  xp = rows.__array_namespace__()
  return xp.pad(rows, ((0, 0), (1, 0)), constant_values=NULL_ROW)
