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
  said: dict[str, Any] = {
    name: getattr(retriever, name) for name in _fields_of(retriever)
  }
  return InputForm(**said)


def with_form(retriever: Retriever, form: InputForm) -> Retriever:
  """The retriever, over towers that read `form`."""
  return retriever.clone(
    **{name: getattr(form, name) for name in _fields_of(retriever)}
  )


def _fields_of(retriever: Retriever) -> list[str]:
  names = [field.name for field in dataclasses.fields(InputForm)]
  return [name for name in names if hasattr(retriever, name)]
