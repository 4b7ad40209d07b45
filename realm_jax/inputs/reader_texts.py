"""Inputs and targets of a reader that writes, as token ids."""

import itertools
import zlib
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Int, Int32

from realm_jax.corpus.store import NULL_ROW, Corpus
from realm_jax.corpus.views import View
from realm_jax.errors import RealmError
from realm_jax.inputs.batch import Batch, TaskError, texts_with_sentinels
from realm_jax.models import AnyArray
from realm_jax.models.components import TextReader
from realm_jax.models.sequences import PAD_ID
from realm_jax.text.vocabulary import SENTINEL, encode_texts


def input_ids(
  reader: TextReader,
  view: View,
  queries: Sequence[str],
  rows: Int[np.ndarray, "b k"],
  texts: Mapping[int, str] | None = None,
) -> Int32[np.ndarray, "b k l"]:
  """Returns prompt, passage and end token of each query with each block.

  See `prompt_ids`, `passage_ids` and `joined`.
  """
  passages = passage_ids(reader, view, rows, texts)
  prompts = prompt_ids(reader, view, queries)
  end_id = view.vocabulary.eos_id
  return np.asarray(joined(prompts, passages, end_id=end_id))


def prompt_ids(
  reader: TextReader, view: View, queries: Sequence[str]
) -> Int32[np.ndarray, "b l"]:
  """Returns the prompt of each query, padded to the reader's `input_length`.

  Raises:
    RealmError: The template lacks `{query}`.
  """
  length = reader.input_length
  prompts = np.full((len(queries), length), PAD_ID, np.int32)
  for row, query in zip(prompts, queries, strict=True):
    text = _filled(reader.prompt, "{query}", query)
    ids = view.vocabulary.encode(text)[:length]
    row[: len(ids)] = ids
  return prompts


def passage_ids(
  reader: TextReader,
  view: View,
  rows: Int[np.ndarray, "*s"],
  texts: Mapping[int, str] | None = None,
) -> Int32[np.ndarray, "*s l"]:
  """Returns the passage of each block, padded to the reader's `input_length`.

  A long passage is truncated; the null block has an empty one.

  Args:
    reader: Reader, with its template and length.
    view: View of the corpus that the reader reads.
    rows: Rows of the blocks.
    texts: Other texts, of edited blocks and of paths, by their index in the
      flattened `rows`.

  Raises:
    RealmError: The template lacks `{title}` or `{text}`.
  """
  encode, length = view.vocabulary.encode, reader.input_length
  before_title, before_text, after = map(encode, _parts(reader.passage))
  flat = rows.reshape(-1)
  blocks = view.gather(flat, length)
  title = blocks.title_lengths[:, None]
  body = blocks.lengths[:, None] - title
  # Each part of the passage begins where the previous one ends.
  sizes = len(before_title), title, len(before_text), body, len(after)
  *begins, end = itertools.accumulate(sizes, initial=0)
  # All parts of a passage, after a column of padding, and their starts.
  fixed = np.array([PAD_ID, *before_title, *before_text, *after], np.int32)
  table = np.hstack(
    [np.broadcast_to(fixed, (len(flat), len(fixed))), blocks.token_ids]
  )
  of_text = 1 + len(before_title)
  of_after = of_text + len(before_text)
  starts = 1, len(fixed), of_text, len(fixed) + title, of_after
  column = np.arange(length)
  places = np.zeros((len(flat), length), np.int64)
  for start, begin in zip(starts, begins, strict=True):
    places = np.where(column >= begin, column - begin + start, places)
  is_token = (column < end) & (flat != NULL_ROW)[:, None]
  passages = np.take_along_axis(table, np.where(is_token, places, 0), axis=1)
  for number, text in (texts or {}).items():
    title_ids = blocks.token_ids[number, : blocks.title_lengths[number]]
    ids = [*before_title, *title_ids, *before_text, *encode(text), *after]
    passages[number] = PAD_ID
    passages[number, : len(ids)] = ids[:length]
  return passages.reshape(*rows.shape, length)


def joined(
  prompts: Int[AnyArray, "b l"],
  passages: Int[AnyArray, "b k l"],
  *,
  end_id: int,
) -> Int[AnyArray, "b k l"]:
  """Returns each query's prompt with each of its passages, and the end token.

  Joining ids equals tokenizing the joined text, because pieces do not span
  spaces. The passage of a long input is truncated. Arrays are NumPy's or jax's.
  """
  xp = passages.__array_namespace__()
  length = passages.shape[-1]
  column = xp.arange(length)[None, None]
  of_prompt = (prompts != PAD_ID).sum(axis=-1)[:, None, None]
  of_passage = (passages != PAD_ID).sum(axis=-1)[..., None]
  end = xp.minimum(of_prompt + of_passage, length - 1)
  places = xp.broadcast_to(xp.maximum(column - of_prompt, 0), passages.shape)
  after = xp.take_along_axis(passages, places, axis=-1)
  ids = xp.where(column < of_prompt, prompts[:, None], after)
  ids = xp.where(column == end, end_id, ids)
  return xp.where(column > end, PAD_ID, ids)


def target_ids(
  reader: TextReader, view: View, targets: Sequence[str]
) -> Int32[np.ndarray, "b t"]:
  """Returns the target texts, with the end token, padded.

  Raises:
    RealmError: The template lacks `{answer}`; the vocabulary lacks the
      sentinels of a text, or has another end token than the model.
  """
  if view.vocabulary.eos_id != reader.end_id:
    raise RealmError(
      f"the vocabulary of the view {view.name!r} ends a text by token "
      f"{view.vocabulary.eos_id}, and the model by {reader.end_id}; make the "
      "view with the model's own spiece.model"
    )
  filled = [_filled(reader.target, "{answer}", text) for text in targets]
  mark = SENTINEL.format(0)
  if not view.vocabulary.sentinels and any(mark in text for text in filled):
    raise RealmError(
      f"texts have {mark}, and the vocabulary has no sentinels; add {mark} and "
      "its successors to the vocabulary of the corpus, or read a view of "
      "sentencepieces (build_corpus --view)"
    )
  return encode_texts(view.vocabulary, filled, reader.target_length)


def written_text(
  reader: TextReader, view: View, token_ids: Sequence[int]
) -> str:
  """Extracts the answer from a text that the reader wrote."""
  end = view.vocabulary.eos_id
  ids = itertools.takewhile(lambda token: token != end, token_ids)
  text = view.vocabulary.decode(ids).strip()
  before, _, after = reader.target.partition("{answer}")
  text = text.removeprefix(before.strip()).strip()
  return text.removesuffix(after.strip()).strip()


def texts_of(batch: Batch, examples: Corpus) -> tuple[list[str], list[str]]:
  """Returns the text of each query, and the target text.

  For a question, the target is one of its answers, a different one in each
  epoch. For a masked sentence, in which sentinels replace the masks, it is the
  masked words. In a text-to-text task, these are the `inputs` and `targets`.

  Args:
    batch: Examples.
    examples: Corpus of the examples.

  Raises:
    TaskError: The task has none of these features.
  """
  if "mask_targets" in batch.arrays:
    pairs = texts_with_sentinels(batch, examples)
    return [one for one, _ in pairs], [other for _, other in pairs]
  if "answers" in batch.host:
    chosen = []
    positions = batch.next_positions.tolist()
    for position, answers in zip(positions, batch.answers, strict=True):
      if answers.kind == "regex":
        raise TaskError(
          "the answers of this task are regular expressions, which no reader "
          "can learn to write; choose a task whose answers are texts"
        )
      number = zlib.crc32(position.to_bytes(8, "little", signed=True))
      texts = answers.texts or [""]
      chosen.append(texts[number % len(texts)])
    return batch.texts("question"), chosen
  return batch.texts("inputs"), batch.texts("targets")


def _filled(template: str, field: str, text: str) -> str:
  if field not in template:
    raise RealmError(f"the template {template!r} lacks {field}; write it")
  return template.replace(field, text)


def _parts(passage: str) -> tuple[str, str, str]:
  """Splits a template: before the title, before the text, and after it."""
  before, text, after = passage.partition("{text}")
  before_title, title, before_text = before.partition("{title}")
  if not (text and title):
    raise RealmError(
      f"passage={passage!r}; want {{title}}, and then {{text}}, such as "
      "'title: {title} context: {text}'"
    )
  return before_title, before_text, after
