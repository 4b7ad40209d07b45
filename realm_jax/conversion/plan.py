"""What an import will do, worked out before anything is written."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from realm_jax.conversion.errors import ConversionError
from realm_jax.conversion.mapping import Feed
from realm_jax.indexes.protocol import Rows
from realm_jax.models.bert import BertConfig
from realm_jax.models.reader import Reader
from realm_jax.models.retriever import Retriever

RETRIEVER, READER = PARTS = ("retriever", "reader")
# The parameters of the towers, where both share them and where not.
SHARED_TOWER = ("tower",)
SEPARATE_TOWERS = ("query_tower", "block_tower")

_USUAL_JOINT_LENGTH = 384
# Of open QA as released: a block of 288, and 32 for the question.
OPEN_QA_JOINT_LENGTH = 288 + 32


@dataclasses.dataclass(frozen=True)
class ImportPlan:
  """Where every parameter comes from, and the model that they make.

  Attributes:
    source: what is imported, in a few words, for people.
    retriever: the towers, without a vocabulary.
    reader: the reader, without a vocabulary.
    parts: of `PARTS`, those that the checkpoint will hold.
    pieces: the vocabulary.
    feeds: the sources, with rules for all parameters that they hold, by the
      part's name and the path in it.
    expected_fresh: why some parameters start from random values: see
      `mapping.read_parameters`.
    notes: what was chosen, and why, in lines.
    block_vectors: of the blocks that were released with the retriever.
    block_records: the file of their texts, where it is of the input.
  """

  source: str
  retriever: Retriever
  reader: Reader
  parts: tuple[str, ...]
  pieces: tuple[str, ...]
  feeds: tuple[Feed, ...]
  expected_fresh: Mapping[str, str] = dataclasses.field(default_factory=dict)
  notes: tuple[str, ...] = ()
  block_vectors: Rows | None = None
  block_records: Path | None = None


def require_parts(parts: tuple[str, ...], present: tuple[str, ...]) -> None:
  """Raises `ConversionError` for parts that the input does not have."""
  wrong = [part for part in parts if part not in present]
  if wrong or not parts:
    raise ConversionError(
      f"--parts={','.join(parts)}: this input gives {', '.join(present)}"
    )


def require_retriever(block_input: Path | None, parts: tuple[str, ...]) -> None:
  """Raises `ConversionError` for a block tower that nothing would use."""
  if block_input is not None and RETRIEVER not in parts:
    raise ConversionError(
      f"--block_input={block_input} is for a retriever, and the parts to "
      f"import are {', '.join(parts)}; leave it out, or import the retriever "
      "too"
    )


def usual_reader(config: BertConfig) -> Reader:
  """A reader over an encoder, with REALM's lengths as far as it reaches."""
  return Reader(
    bert=config, joint_length=min(_USUAL_JOINT_LENGTH, config.max_positions)
  )
