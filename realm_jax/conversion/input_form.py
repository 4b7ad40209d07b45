"""How a tower's input is put together from wordpieces."""

import dataclasses
from typing import Any

from realm_jax.models.retriever import Retriever


@dataclasses.dataclass(frozen=True)
class InputForm:
  """The fields of `Retriever` that say what its towers read.

  Attributes:
    query_prefix: ids after [CLS] of a query.
    block_prefix: ids after [CLS] of a block.
    title_separator: whether a [SEP] stands between title and body.
    token_types: whether tokens after the first [SEP] are of type 1.
  """

  query_prefix: tuple[int, ...] = ()
  block_prefix: tuple[int, ...] = ()
  title_separator: bool = True
  token_types: bool = True

  def unusual(self) -> dict[str, object]:
    """The fields that are not REALM's, by name."""
    return {
      field.name: getattr(self, field.name)
      for field in dataclasses.fields(self)
      if getattr(self, field.name) != field.default
    }


def form_of(retriever: Retriever) -> InputForm:
  """What a retriever says of its towers' inputs."""
  names = [field.name for field in dataclasses.fields(InputForm)]
  said: dict[str, Any] = {
    name: getattr(retriever, name) for name in names if hasattr(retriever, name)
  }
  return InputForm(**said)
