"""What a retriever's towers read, where it is not what REALM's read."""

from typing import Any

from realm_jax.models.retriever import Retriever

_FIELDS = ("query_prefix", "block_prefix", "title_separator", "token_types")


def unusual_inputs(retriever: Retriever) -> dict[str, Any]:
  """The fields of `Retriever` that say so, and that differ from REALM's."""
  fields = {name: getattr(retriever, name) for name in _FIELDS}
  return {
    name: value
    for name, value in fields.items()
    if value != getattr(Retriever, name)
  }
