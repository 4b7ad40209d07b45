"""Encodes queries and edited blocks as tokens for a run."""

import itertools
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int32

from realm_jax.corpus.shard import NUM_SPECIAL_TOKENS
from realm_jax.corpus.store import Block
from realm_jax.errors import RealmError
from realm_jax.storage.json_files import require_unicode
from realm_jax.text.vocabulary import BertVocabulary


class EditError(RealmError):
  """A block cannot be edited, or not with this text."""


def encode_queries(
  words: BertVocabulary, texts: Sequence[str], length: int
) -> tuple[Int32[np.ndarray, "n {length}"], dict[int, RealmError]]:
  """Returns `[CLS] x [SEP]` of each text, padded; long texts are truncated.

  Also returns errors by the index of their text, for texts that have no words,
  or none that the vocabulary can spell.
  """
  queries = np.zeros((len(texts), length), np.int32)
  refused: dict[int, RealmError] = {}
  tokens = words.tokenize_with_offsets(
    [text.encode(errors="ignore").decode() for text in texts]
  )
  bounds = itertools.pairwise(tokens.row_offsets)
  for number, (text, bound) in enumerate(zip(texts, bounds, strict=True)):
    token_ids = tokens.token_ids[slice(*bound)][: length - 2]
    try:
      require_unicode(text, f"the question {text!r}")
      if not len(token_ids):
        raise RealmError(f"the question {text!r} has no words")
      if words.unk_id in token_ids:
        words.require_known(text)
    except RealmError as error:
      refused[number] = error
      continue
    filled = [words.cls_id, *token_ids, words.sep_id]
    queries[number, : len(filled)] = filled
  return queries, refused


def edited_block(
  words: BertVocabulary, block: Block, text: str, length: int
) -> Block:
  """Returns a block of the corpus with another text, under the same title.

  Args:
    words: Vocabulary of the corpus.
    block: Block of the corpus.
    text: Text without the title.
    length: Block length of the corpus, in tokens.

  Raises:
    EditError: The text has no words, or is too long.
  """
  text = text.strip()
  tokens = words.tokenize_with_offsets([text])
  title = block.token_ids[: block.title_length]
  room = length - NUM_SPECIAL_TOKENS - len(title)
  if not len(tokens.token_ids):
    raise EditError("the text has no words; write some, or restore the block")
  if len(tokens.token_ids) > room:
    raise EditError(
      f"the text has {len(tokens.token_ids)} wordpieces, and the block "
      f"{block.id} has room for {room}; shorten it"
    )
  token_ids = np.concatenate([title, tokens.token_ids])
  return block.replace(
    text=text, token_ids=token_ids, byte_ranges=tokens.byte_ranges
  )


def block_tokens(
  words: BertVocabulary,
  title: Sequence[int],
  body: Sequence[int],
  length: int,
) -> Int32[np.ndarray, "{length}"]:
  """Returns `[CLS] title [SEP] body [SEP]`, padded with 0."""
  filled = [words.cls_id, *title, words.sep_id, *body, words.sep_id]
  tokens = np.zeros(length, np.int32)
  tokens[: len(filled)] = filled
  return tokens
