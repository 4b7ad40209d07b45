"""What a step reads of a padded batch, before it is packed into rows.

In place of padded queries and blocks there are texts by part: `queries` and
`blocks` for the towers, `joint` for the reader. Blocks that several queries
have as candidates, the null block above all, are there once.
"""

import dataclasses

import numpy as np
from jaxtyping import Int

from realm_jax.models.reader import Reader
from realm_jax.models.retriever import Retriever

Texts = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class StepTexts:
  """The texts of one stage's batches.

  Attributes:
    parts: which of `queries`, `blocks` and `joint` the step reads.
    retriever: whose towers read queries and blocks.
    reader: that reads the joint input, if one does.
    groups: devices of this process's part of the data axis.
  """

  parts: frozenset[str]
  retriever: Retriever
  reader: Reader | None
  groups: int

  def __call__(
    self, arrays: dict[str, np.ndarray]
  ) -> tuple[Texts, dict[str, np.ndarray]]:
    """Padded texts [n l] by part, and all other arrays of the batch."""
    rest = dict(arrays)
    query = rest.pop("query")
    texts = {}
    if "queries" in self.parts:
      texts["queries"] = self.retriever.query_input(query)
    if "block" in rest:
      texts["blocks"] = self.retriever.block_input(rest.pop("block"))
    if "candidates" in rest:
      candidates = rest.pop("candidates")
      if "blocks" in self.parts:
        blocks, rest["block_index"] = _distinct(candidates, self.groups)
        is_block = blocks.any(axis=1, keepdims=True)
        # Without a prefix where there is no block.
        texts["blocks"] = self.retriever.block_input(blocks) * is_block
      if "joint" in self.parts:
        assert self.reader is not None
        inputs = self.reader.join(query, candidates)
        texts["joint"] = inputs.token_ids.reshape(
          -1, inputs.token_ids.shape[-1]
        )
        rest["body_start"] = np.asarray(inputs.body_start, np.int32)
        rest["body_length"] = np.asarray(inputs.body_length, np.int32)
    return {name: np.asarray(array) for name, array in texts.items()}, rest


def _distinct(
  candidates: Int[np.ndarray, "b k l"], groups: int
) -> tuple[Int[np.ndarray, "n l"], Int[np.ndarray, "b k"]]:
  """Each group's distinct blocks, and which of them each candidate is.

  There are as many as candidates, so that shapes stay; the last are empty.
  """
  batch, num_candidates, length = candidates.shape
  blocks = np.zeros(
    (groups, batch // groups * num_candidates, length), np.int32
  )
  index = np.zeros((batch, num_candidates), np.int32)
  for group in range(groups):
    known: dict[bytes, int] = {}
    of_group = slice(group * batch // groups, (group + 1) * batch // groups)
    flat = candidates[of_group].reshape(-1, length)
    numbers = [known.setdefault(row.tobytes(), len(known)) for row in flat]
    index[of_group] = np.reshape(numbers, (-1, num_candidates))
    blocks[group, numbers] = flat
  return blocks.reshape(-1, length), index
