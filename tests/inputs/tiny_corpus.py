"""A corpus small enough to work out by hand, and questions about it."""

import dataclasses
import re
from pathlib import Path
from typing import Any

from realm_jax.corpus.build import build_corpus
from realm_jax.inputs.config import DataConfig, TaskContext
from realm_jax.text.salient_spans import Span
from realm_jax.text.vocabulary import SPECIAL_PIECES
from tests.json_lines import write_lines

# Two sentences, three, one, and four; names and years are salient.
DOCUMENTS = (
  ("alps", "the tall alps lie in Europe. snow falls there in winter."),
  ("rhine", "it passes Basel. ships use it. fish swim in it since 1900."),
  ("nile", "it flows in Africa."),
  ("oslo", "a city in Norway. it is cold. it has ships. see also Bergen."),
)
_WORDS = (
  "the tall alps lie in europe snow falls there winter it passes ##ses basel "
  "ships use fish swim since 1900 flows africa a city norway is cold has see "
  "also bergen who what when where nile rhine oslo . ? ,"
)
QUESTIONS = (
  {"question": "where is the nile ?", "answer": ["Africa"]},
  {"question": "when ?", "answers": ["1900", "since 1900"], "id": "w"},
  {"question": "what passes basel ?", "answer": "Rhine"},
)


def tag(text: str, title: str) -> list[Span]:
  """Words in capitals and years: the texts have no capitals elsewhere."""
  del title
  found = re.finditer(r"[A-Z]\w+|\d{4}", text)
  return [
    Span(m.start(), m.end(), "date" if m.group().isdecimal() else "name")
    for m in found
  ]


VOCABULARY = "\n".join([*SPECIAL_PIECES, *_WORDS.split()])


def build(directory: Path, *, vocabulary: str = VOCABULARY) -> TaskContext:
  """Writes the corpus and the questions; says where they are."""
  (directory / "vocab.txt").write_text(vocabulary)
  rows = [{"title": title, "text": text} for title, text in DOCUMENTS]
  build_corpus(
    [str(write_lines(directory / "text.jsonl", rows))],
    directory / "corpus",
    vocab=str(directory / "vocab.txt"),
    block_length=64,
    tagger=tag,
  )
  questions = write_lines(directory / "questions.jsonl", QUESTIONS)
  return TaskContext(directory / "corpus", {"train": questions})


def config(task: str, context: TaskContext, **fields: Any) -> DataConfig:
  """The data of a task on the context's files, with short lengths."""
  given = {
    f.name: getattr(context, f.name) for f in dataclasses.fields(context)
  }
  lengths = {"query_length": 16, "block_length": 32, "max_masks": 4}
  return DataConfig(
    **{"task": task, "batch_size": 1, **lengths, **given, **fields}
  )
