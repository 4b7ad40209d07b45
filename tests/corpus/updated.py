"""Documents to update a corpus of, and all that a corpus says of itself."""

import numpy as np
import pytest

from realm_jax.corpus.documents import block_id
from realm_jax.corpus.store import NULL_ROW, Block, Corpus

WORDS = "the cafe of velt was built in 1987 by ada stone river".split()


def article(name: str, *, seed: int, sentences: int = 6) -> dict[str, str]:
  """A document of several blocks of 16 wordpieces."""
  rng = np.random.default_rng(seed)
  text = [
    " ".join(rng.choice(WORDS, rng.integers(3, 9))) + "."
    for _ in range(sentences)
  ]
  text = [sentence[0].upper() + sentence[1:] for sentence in text]
  return {"id": name, "title": f"Velt {name}", "text": " ".join(text)}


def text_of(block: Block, start: int, limit: int) -> str:
  """Body tokens `[start, limit)` of a block as they were written."""
  ranges = block.byte_ranges
  return block.body.encode()[ranges[start, 0] : ranges[limit - 1, 1]].decode()


ROWS = [article(f"d{i}", seed=i, sentences=1 + i % 5) for i in range(12)]


def contents(corpus: Corpus) -> dict[int, tuple]:
  """All that is known of each block, by its id."""
  found = {}
  for row, name in enumerate(corpus.block_ids.tolist()):
    block = corpus.block(row)
    found[name] = (
      *(block.name, block.title, block.url, block.body),
      *(block.token_ids.tolist(), block.title_length),
      *(block.byte_ranges.tolist(), block.sentences.tolist()),
      block.salient_spans.tolist(),
      [corpus.span_kinds[kind] for kind in block.salient_span_kinds],
      int(corpus.content_hashes[row]),
      int(corpus.lengths[row]),
    )
  return found


def require_consistent(corpus: Corpus) -> None:
  """One block at a time, and many at once, are the same."""
  corpus.verify()
  rows = np.arange(corpus.num_blocks)
  ids = corpus.block_ids
  assert len(np.unique(ids)) == len(ids) == corpus.num_blocks
  assert corpus.rows_of(ids).tolist() == rows.tolist()
  rng = np.random.default_rng(0)
  rng.shuffle(rows)
  gathered = corpus.gather(np.append(rows, NULL_ROW), corpus.block_length)
  flat, offsets = corpus.body_tokens_flat(rows)
  bodies = corpus.bodies_utf8(rows)
  for i, row in enumerate(rows.tolist()):
    block = corpus.block(row)
    tokens = block.token_ids
    assert np.count_nonzero(gathered[i]) == corpus.lengths[row]
    assert set(tokens.tolist()) <= set(gathered[i].tolist())
    body = flat[offsets[i] : offsets[i + 1]]
    assert body.tolist() == block.body_token_ids.tolist()
    assert bodies[i].decode() == block.body
    assert ids[row] == block.id
    assert block.id == block_id(corpus.name, block.document_id, block.ordinal)
  with pytest.raises(IndexError):
    corpus.block(corpus.num_blocks)
