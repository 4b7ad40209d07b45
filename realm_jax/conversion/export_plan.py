"""The plan of an export, complete before anything is written."""

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

from realm_jax.conversion.errors import ConversionError
from realm_jax.conversion.names import Rule
from realm_jax.conversion.plan import SEPARATE_TOWERS, SHARED_TOWER
from realm_jax.files.json_file import JsonValue
from realm_jax.models.bert import BertConfig
from realm_jax.models.reader import Reader
from realm_jax.models.retriever import Retriever
from realm_jax.text.wordpieces import WordpieceVocabulary

TOWERS = ("query", "block")


class Exported(NamedTuple):
  """The model to export: retriever and reader with their vocabulary."""

  retriever: Retriever
  reader: Reader
  vocabulary: WordpieceVocabulary


@dataclasses.dataclass(frozen=True)
class ExportPlan:
  """The files of a directory for another system.

  Attributes:
    parts: Parts whose parameters are written, completely or not.
    rules: Rules of the tensors to write.
    files: Contents of JSON files by path; None makes a directory.
    notes: Lines about what the directory cannot say.
  """

  parts: tuple[str, ...]
  rules: tuple[Rule, ...]
  files: Mapping[str, JsonValue]
  notes: tuple[str, ...]


def choose_tower(retriever: Retriever, tower: str | None) -> str:
  """Returns the name of the tower that the user means.

  Raises:
    ConversionError: If there are two and none was named, or there is one and
      one was named.
  """
  if retriever.shared_towers:
    if tower is not None:
      raise ConversionError(
        f"--tower={tower}: the towers of this model are one; leave it out"
      )
    return SHARED_TOWER[0]
  if tower is None:
    raise ConversionError(
      "this model has two towers; choose one with --tower=query or "
      "--tower=block"
    )
  return SEPARATE_TOWERS[TOWERS.index(tower)]


def mask_note(config: BertConfig, usual: float) -> list[str]:
  """Returns a note if padding is masked by another value than the usual one."""
  if config.attention_mask_value == usual:
    return []
  return [
    f"attention_mask_value={config.attention_mask_value} is not written; "
    "transformers adds the lowest float to the scores of padding"
  ]
