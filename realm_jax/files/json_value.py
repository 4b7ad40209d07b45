"""The type of JSON values, without imports outside the standard library."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

# A value that `json.dumps` writes and `json.loads` returns.
if TYPE_CHECKING:
  JsonValue: TypeAlias = (
    Mapping[str, "JsonValue"]
    | Sequence["JsonValue"]
    | str
    | float
    | bool
    | None
  )
else:
  # The check of annotations at run time does not know recursive types.
  JsonValue = Mapping | Sequence | str | int | float | bool | None
