"""Paths: blocks that are read one after the other, as one block.

Where no passage answers a question, two together may. A path is the row of each
of its blocks, in order, and `NULL_ROW` after the last one.
"""

from collections.abc import Sequence

import numpy as np

from realm_jax.corpus.store import NULL_BLOCK, Block
from realm_jax.text.vocabulary import BertVocabulary


def joined_block(blocks: Sequence[Block], words: BertVocabulary) -> Block:
  """Returns the blocks of a path as one, in memory, with these `parts`.

  Its text has each further title and text in a line. The null block adds
  nothing.
  """
  first, *others = [one for one in blocks if one is not NULL_BLOCK] or blocks
  if not others:
    return first
  text, token_ids = first.text, [first.token_ids]
  ranges, size = [first.byte_ranges], len(text.encode())
  for block in others:
    titles = words.tokenize_with_offsets([block.title])
    # The corpus cuts a long title.
    titles_read = titles.byte_ranges[: block.title_length]
    start = size + 1
    body = start + len(block.title.encode()) + 1
    ranges += [start + titles_read, body + block.byte_ranges]
    token_ids.append(block.token_ids)
    text += f"\n{block.title}\n{block.text}"
    size = len(text.encode())
  return first.replace(
    id=" → ".join(block.id for block in (first, *others)),
    title=" → ".join(block.title for block in (first, *others)),
    text=text,
    token_ids=np.concatenate(token_ids),
    byte_ranges=np.concatenate(ranges),
    parts=(first, *others),
  )
