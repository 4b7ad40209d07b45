"""Input conventions of a retriever's towers that differ from REALM's."""

from realm_jax.models.retriever import Retriever

_FIELDS = ("query_prefix", "block_prefix", "title_separator", "token_types")


def unusual_inputs(
  retriever: Retriever,
) -> dict[str, bool | tuple[int, ...]]:
  """Returns the fields of `Retriever` whose values are not REALM's."""
  fields = {name: getattr(retriever, name) for name in _FIELDS}
  return {
    name: value
    for name, value in fields.items()
    if value != getattr(Retriever, name)
  }
