"""Sentences whose named entities and dates were marked by hand.

`tagged_sentences.jsonl` refers to 50 sentences of QED's paragraphs and 50 of
WikiText-2's by row, paragraph and characters, and holds no text. They were
drawn at random from the sentences of at least 40 characters that have no
`<unk>`, at most one of a paragraph. One annotator marked them before any tagger
had seen them, by these rules:

- Persons, organizations, locations and miscellaneous names are those of
  CoNLL-2003: nationalities, languages, religions, events, works, competitions
  and ships are miscellaneous; articles and titles of persons are no part of a
  name unless they are in the name of a work.
- A date names a day, a month, a year, a decade or a century: no duration, and
  nothing relative. `mid-July 2016` is one date, of `late 13th century` only the
  last two words are one, and a range of years is two.
"""

import hashlib
import json
from pathlib import Path
from typing import NamedTuple

from benchmarks.data.real_texts import paragraph_of

_FILE = Path(__file__).with_name("tagged_sentences.jsonl")


class TaggedSentence(NamedTuple):
  """A sentence `start:limit` of a text, and its spans by their characters."""

  title: str
  text: str
  start: int
  limit: int
  spans: list[tuple[int, int, str]]


class OtherTextsError(ValueError):
  """The texts are not those in which spans were marked."""


def tagged_sentences(texts_dir: Path) -> list[TaggedSentence]:
  """Reads all sentences with their paragraphs.

  Raises:
    NoTextsError: There is no folder of texts.
    OtherTextsError: A sentence is not the one that was marked.
  """
  sentences = []
  for line in _FILE.read_text(encoding="utf-8").splitlines():
    row = json.loads(line)
    place = row["data"], row["row"], row["paragraph"]
    title, text = paragraph_of(texts_dir, *place)
    start, limit = row["sentence"]
    digest = hashlib.sha1(text[start:limit].encode()).hexdigest()
    if not digest.startswith(row["sha1"]):
      raise OtherTextsError(
        f"{texts_dir}: characters {start} to {limit} of {place} are not the "
        f"sentence that was marked; want the files that {_FILE.name} refers to"
      )
    spans = [(s, t, kind) for s, t, kind in row["entities"]]
    sentences.append(TaggedSentence(title, text, start, limit, spans))
  return sentences
