"""What an export will write."""

import dataclasses
from typing import Any, NamedTuple

from realm_jax.conversion.errors import ConversionError
from realm_jax.conversion.names import Rule
from realm_jax.conversion.plan import SEPARATE_TOWERS, SHARED_TOWER
from realm_jax.models.bert import BertConfig
from realm_jax.models.reader import Reader
from realm_jax.models.retriever import Retriever
from realm_jax.text.wordpieces import WordpieceVocabulary

TOWERS = ("query", "block")


class Exported(NamedTuple):
  """The model to export.

  Attributes:
    retriever, reader: over the vocabulary.
    vocabulary: of both.
  """

  retriever: Retriever
  reader: Reader
  vocabulary: WordpieceVocabulary


@dataclasses.dataclass(frozen=True)
class ExportPlan:
  """The files of a directory for another system.

  Attributes:
    parts: those whose parameters are written, wholly or not.
    rules: of the tensors to write.
    files: the contents of JSON files by their path; None makes a folder.
    notes: what the directory does not say, in lines.
  """

  parts: tuple[str, ...]
  rules: tuple[Rule, ...]
  files: dict[str, Any]
  notes: tuple[str, ...]


def choose_tower(retriever: Retriever, tower: str | None) -> str:
  """The path of the tower that is meant.

  Raises:
    ConversionError: there are two, and none was named; or the other way.
  """
  if retriever.shared_towers:
    if tower is not None:
      raise ConversionError(
        f"--tower={tower}: the towers of this model are one; leave it out"
      )
    return f"retriever/{SHARED_TOWER[0]}"
  if tower is None:
    raise ConversionError(
      "this model has two towers; choose one with --tower=query or "
      "--tower=block"
    )
  return f"retriever/{SEPARATE_TOWERS[TOWERS.index(tower)]}"


def mask_note(config: BertConfig, usual: float) -> list[str]:
  """A line where padding is masked by another value than over there."""
  if config.attention_mask_value == usual:
    return []
  return [
    f"attention_mask_value={config.attention_mask_value} is not written; "
    "transformers adds the lowest float to the scores of padding"
  ]
