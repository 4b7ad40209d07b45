"""Paths: sequences of blocks that are read together, as one block.

Two passages together may answer a question that neither answers alone. A path
is an array of its blocks' rows, in order, padded with `NULL_ROW`.
"""

from collections.abc import Sequence

import numpy as np

from realm_jax.corpus.store import NULL_BLOCK, Block
from realm_jax.text.vocabulary import BertVocabulary


def joined_block(blocks: Sequence[Block], words: BertVocabulary) -> Block:
  """Joins the blocks of a path to one block, in memory, with these `parts`.

  In its text, each further title and text has its own line. The null block adds
  nothing.
  """
  first, *others = [one for one in blocks if one is not NULL_BLOCK] or blocks
  if not others:
    return first
  parts = (first, *others)
  token_ids, ranges = [first.token_ids], [first.byte_ranges]
  for block, (title, body) in zip(others, text_places(parts)[1:], strict=True):
    titles = words.tokenize_with_offsets([block.title])
    # The corpus truncates long titles.
    titles_read = titles.byte_ranges[: block.title_length]
    ranges += [title.start + titles_read, body.start + block.byte_ranges]
    token_ids.append(block.token_ids)
  texts = [f"{block.title}\n{block.text}" for block in others]
  return first.replace(
    id=" → ".join(block.id for block in parts),
    title=" → ".join(block.title for block in parts),
    text="\n".join([first.text, *texts]),
    token_ids=np.concatenate(token_ids),
    byte_ranges=np.concatenate(ranges),
    parts=parts,
  )


def text_places(parts: Sequence[Block]) -> list[tuple[slice, slice]]:
  """Returns the byte ranges of each block's title and body in a path's text.

  The text, in UTF-8, does not include the title of the first block.
  """
  places, start = list[tuple[slice, slice]](), 0
  for block in parts:
    title = slice(start, start + len(block.title.encode()) if start else 0)
    first = title.stop + 1 if start else 0
    body = slice(first, first + len(block.text.encode()))
    places.append((title, body))
    start = body.stop + 1
  return places
