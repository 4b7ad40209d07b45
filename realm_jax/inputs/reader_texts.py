"""What a reader that writes reads and writes, as token ids made on the host."""

import itertools
import zlib
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Int, Int32

from realm_jax.corpus.store import NULL_ROW, Corpus
from realm_jax.corpus.views import View
from realm_jax.errors import RealmError
from realm_jax.inputs.batch import Batch, TaskError, texts_with_sentinels
from realm_jax.models.components import TextReader
from realm_jax.text.vocabulary import SENTINEL, encode_texts


def input_ids(
  reader: TextReader,
  view: View,
  queries: Sequence[str],
  rows: Int[np.ndarray, "b k"],
  edits: Mapping[int, str] | None = None,
) -> Int32[np.ndarray, "b k l"]:
  """Returns prompt, passage and end of each query with each of its blocks.

  Parts are encoded by themselves, and give the ids of the whole text, since
  pieces do not reach over spaces. A long input loses the end of its body; the
  null block is the prompt alone.

  Args:
    reader: Reader, with its templates and lengths.
    view: View of the corpus that it reads.
    queries: Texts of the queries.
    rows: Rows of the blocks.
    edits: Other texts of blocks, by row.

  Raises:
    RealmError: A template lacks what it must have.
  """
  encode, length = view.vocabulary.encode, reader.input_length
  before_title, before_text, after = map(encode, _parts(reader.passage))
  prompts = [
    encode(_filled(reader.prompt, "{query}", query)) for query in queries
  ]
  blocks = view.gather(rows.reshape(-1), length)
  found = np.zeros((rows.size, length), np.int32)
  for number, row in enumerate(rows.reshape(-1).tolist()):
    ids = prompts[number // rows.shape[1]]
    if row != NULL_ROW:
      title_length = blocks.title_lengths[number]
      own = blocks.token_ids[number, : blocks.lengths[number]]
      title, body = own[:title_length], own[title_length:]
      if edits and row in edits:
        body = encode(edits[row])
      ids = [*ids, *before_title, *title, *before_text, *body, *after]
    ids = [*ids[: length - 1], view.vocabulary.eos_id]
    found[number, : len(ids)] = ids
  return found.reshape(*rows.shape, length)


def target_ids(
  reader: TextReader, view: View, targets: Sequence[str]
) -> Int32[np.ndarray, "b t"]:
  """Returns what the reader is to write, with its end, padded.

  Raises:
    RealmError: The template lacks `{answer}`, or the vocabulary the sentinels
      of a text.
  """
  filled = [_filled(reader.target, "{answer}", text) for text in targets]
  mark = SENTINEL.format(0)
  if not view.vocabulary.sentinels and any(mark in text for text in filled):
    raise RealmError(
      f"texts have {mark}, and the vocabulary has no sentinels; add {mark} and "
      "its successors to the vocab.txt of the corpus, or read a view of "
      "sentencepieces (build_corpus --view)"
    )
  return encode_texts(view.vocabulary, filled, reader.target_length)


def written_text(
  reader: TextReader, view: View, token_ids: Sequence[int]
) -> str:
  """Returns the answer in what the reader has written."""
  end = view.vocabulary.eos_id
  ids = itertools.takewhile(lambda token: token != end, token_ids)
  text = view.vocabulary.decode(ids).strip()
  before, _, after = reader.target.partition("{answer}")
  text = text.removeprefix(before.strip()).strip()
  return text.removesuffix(after.strip()).strip()


def texts_of(batch: Batch, examples: Corpus) -> tuple[list[str], list[str]]:
  """Returns the text of each query, and the text that is to be written.

  These are a question and one of its answers, another in each epoch; a masked
  sentence with sentinels, and what they stand for; or the `inputs` and
  `targets` of a text-to-text task.

  Args:
    batch: Examples.
    examples: Corpus that they come from.

  Raises:
    TaskError: The task gives none of these.
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
  """Returns what is before a title, before the text, and after it."""
  before, text, after = passage.partition("{text}")
  before_title, title, before_text = before.partition("{title}")
  if not (text and title):
    raise RealmError(
      f"passage={passage!r}; want {{title}}, and then {{text}}, such as "
      "'title: {title} context: {text}'"
    )
  return before_title, before_text, after
