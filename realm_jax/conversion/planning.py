"""What the user asks to import, and the plan that a reader makes of it.

A plan is complete before anything is written.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from etils import epath

from realm_jax.conversion.errors import ConversionError
from realm_jax.conversion.mapping import Feed
from realm_jax.files.object_store.remote import is_remote
from realm_jax.indexes.protocol import Rows
from realm_jax.models.bert import BertConfig
from realm_jax.models.reader import Reader
from realm_jax.models.retriever import Retriever

# What is imported, and to what it is exported.
KINDS = ("hf_bert", "hf_realm", "tf_bert", "tf_realm")
SYSTEMS = ("hf_bert", "sentence_transformers")
RETRIEVER, READER = PARTS = ("retriever", "reader")
TOWERS = ("query", "block")
# The parameters of the towers, shared or separate.
SHARED_TOWER = ("tower",)
SEPARATE_TOWERS = ("query_tower", "block_tower")

_USUAL_JOINT_LENGTH = 384
# Released open QA reads blocks of 288 tokens after 32 of the question.
OPEN_QA_JOINT_LENGTH = 288 + 32


@dataclasses.dataclass(frozen=True)
class ImportSource:
  """The weights to import, of one of `KINDS`.

  Attributes:
    input: Local directory, or the prefix of a TensorFlow checkpoint.
    block_input: Second input, for a separate block tower.
    parts: Parts to import, retriever and reader; None takes what the input has.
    tensor_prefix: Prefix of `embeddings.word_embeddings.weight`, if an hf_bert
      input holds several encoders; None finds it.
    vocab: Vocabulary file, if a tf_realm input has none.
  """

  kind: str
  input: epath.PathLike
  block_input: epath.PathLike | None = None
  parts: Sequence[str] | None = None
  tensor_prefix: str | None = None
  vocab: epath.PathLike | None = None

  @property
  def path(self) -> Path:
    """Path of the input."""
    return Path(self.input)

  @property
  def block_path(self) -> Path | None:
    """Path of the block tower's own input."""
    return None if self.block_input is None else Path(self.block_input)

  def require_local(self) -> None:
    """Checks that the weights are on a local disk, from which they are mapped.

    Raises:
      ConversionError: They are in a bucket, or not there.
    """
    given = {"input": self.input, "block_input": self.block_input}
    for name, path in given.items():
      if path is None:
        continue
      if is_remote(path):
        raise ConversionError(
          f"--{name}={path} is in a bucket, and weights are read from a local "
          "disk; copy them to one first (gcloud storage cp --recursive "
          f"{path} .)"
        )
      local = Path(path)
      # The prefix of a TensorFlow checkpoint is no file.
      if not local.exists() and not [*local.parent.glob(f"{local.name}.*")]:
        raise ConversionError(f"--{name}={path} is not there")

  def choose_parts(self, present: tuple[str, ...] = PARTS) -> tuple[str, ...]:
    """Returns the parts to import from an input that has those `present`."""
    parts = tuple(self.parts or present)
    if not set(parts) <= set(present):
      raise ConversionError(
        f"--parts={','.join(parts)}: this input gives {', '.join(present)}"
      )
    if self.block_input is not None and RETRIEVER not in parts:
      raise ConversionError(
        f"--block_input={self.block_input} is for a retriever, and the parts "
        f"to import are {', '.join(parts)}; leave it out, or import the "
        "retriever too"
      )
    return parts


@dataclasses.dataclass(frozen=True)
class ImportPlan:
  """The model to write, and where each of its parameters comes from.

  Attributes:
    source: Name of what is imported, for people.
    retriever: Towers, without a vocabulary.
    reader: Reader, without a vocabulary.
    parts: Parts that the checkpoint will hold.
    pieces: Vocabulary.
    feeds: Foreign checkpoints, with the rules of the parameters they hold.
    expected_fresh: Reasons for random initial values: see
      `mapping.read_parameters`.
    notes: Lines for the report that say what was chosen and why.
    block_vectors: Vectors of the blocks that were released with the retriever.
    block_records: File of their texts, if it is part of the input.
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


def usual_reader(config: BertConfig) -> Reader:
  """Returns a reader with REALM's joint length, or the encoder's if shorter."""
  return Reader(
    bert=config, joint_length=min(_USUAL_JOINT_LENGTH, config.max_positions)
  )
