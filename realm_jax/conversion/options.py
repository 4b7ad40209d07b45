"""What an import makes of the weights and blocks that it reads."""

import dataclasses
from typing import Literal

from etils import epath

from realm_jax.conversion.errors import ConversionError
from realm_jax.corpus.shard import MIN_BLOCK_LENGTH
from realm_jax.models.retriever import POOLINGS
from realm_jax.settings import PositiveFloat, PositiveInt, require_valid


def require_block_length(block_length: int | None) -> None:
  """Raises `ConversionError` for a length that fits no block."""
  if block_length is not None and block_length < MIN_BLOCK_LENGTH:
    raise ConversionError(
      f"--block_length={block_length} is too short for a title and a body; "
      f"give {MIN_BLOCK_LENGTH} or more (released REALM has 288)"
    )


@dataclasses.dataclass(frozen=True)
class TowerOptions:
  """How a retriever is made of BERT; None takes what the input says.

  Attributes:
    pooling: How hidden states become a vector, `pooler`, `cls` or `mean`;
      without modules.json, the pooler if the weights have one, or else cls.
    projection_size: Size of REALM's projection, which is added with random
      values; None adds none.
    normalize: Whether vectors have length 1.
    score_scale: Factor of inner products, by default 1; training normalized
      vectors needs more.
    query_prefix: Text that the model expects before a query.
    block_prefix: Text that the model expects before a block.
    title_separator: Whether [SEP] separates title and body; by default yes, as
      in REALM, except for sentence-transformers.
    token_types: Whether tokens after the first [SEP] are of type 1; by default
      yes, as in REALM, except for sentence-transformers.
    separate_towers: Whether queries and blocks have separate towers, which
      start from the same weights where the input has one.
  """

  pooling: str | None = None
  projection_size: PositiveInt | None = None
  normalize: bool | None = None
  score_scale: PositiveFloat | None = None
  query_prefix: str | None = None
  block_prefix: str | None = None
  title_separator: bool | None = None
  token_types: bool | None = None
  separate_towers: bool = False

  def __post_init__(self) -> None:
    if self.pooling is not None and self.pooling not in POOLINGS:
      raise ConversionError(
        f"--pooling={self.pooling}; want one of {', '.join(POOLINGS)}"
      )
    require_valid(self)

  @property
  def chosen_scale(self) -> float:
    """Factor of the inner products: 1 where nothing says another."""
    return 1.0 if self.score_scale is None else self.score_scale


@dataclasses.dataclass(frozen=True)
class BlockOptions:
  """Which released blocks to import, and how; without a corpus, none.

  Attributes:
    corpus_dir: Corpus to make of the blocks; None imports no blocks.
    block_records: File of the blocks' texts, block_records.npy or TFRecords
      (blocks.tfr); None takes the input's own.
    block_titles: TFRecords of the blocks' titles (titles.tfr); None leaves them
      empty.
    block_length: Maximum wordpieces of a block; None fits all.
    index: Kind of index for the vectors, exact or scann; None takes `scann`.
  """

  corpus_dir: epath.PathLike | None = None
  block_records: epath.PathLike | None = None
  block_titles: epath.PathLike | None = None
  block_length: int | None = None
  index: Literal["exact", "scann"] | None = None

  def __post_init__(self) -> None:
    require_valid(self)
    require_block_length(self.block_length)
    given = [
      f"--{name}" for name, value in vars(self).items() if value is not None
    ]
    if given and self.corpus_dir is None:
      raise ConversionError(
        f"{', '.join(given)} without --corpus_dir, which names the corpus to "
        "make of the released blocks; give it, or leave these out"
      )
