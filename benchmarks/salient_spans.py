"""Measures the taggers of salient spans in XQuAD's eight languages.

    python -m benchmarks.salient_spans

`spans` is their number in 100 words, or in 200 characters of Chinese and Thai.
`equal` is the share of XQuAD's 1,190 answers that equal a tagged span of their
paragraph, and `ceiling` the share of those that are a number, or that the 240
paragraphs have in another place. Titles, which are English, are left out.
"""

import argparse
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.data.real_texts import TEXTS_DIR
from realm_jax.console import columns
from realm_jax.text.recurring_phrases import RecurringPhrases, count_phrases
from realm_jax.text.salient_spans import default_tagger, find_tagger, tag_many

_LANGUAGES = ("en", "es", "de", "ru", "ar", "hi", "th", "zh")
_CHARACTERS = ("th", "zh")
_NUMBER = re.compile(r"[\d\W]*\d[\d\W]*")


class _Paragraph(NamedTuple):
  text: str
  answers: list[str]


def _paragraphs(texts_dir: Path, language: str) -> Iterator[_Paragraph]:
  folder = "xquad_en" if language == "en" else "xquad"
  file = texts_dir / folder / f"xquad.{language}.json"
  for article in json.loads(file.read_text("utf-8"))["data"]:
    for paragraph in article["paragraphs"]:
      answers = [a["text"] for q in paragraph["qas"] for a in q["answers"]]
      yield _Paragraph(paragraph["context"], answers)


def _row(paragraphs: list[_Paragraph], language: str, name: str) -> list[str]:
  texts = [paragraph.text for paragraph in paragraphs]
  tagger = find_tagger(name, language)
  if isinstance(tagger, RecurringPhrases):
    tagger = count_phrases(texts, language)
  assert tagger is not None
  num_spans = num_equal = num_possible = num_answers = 0
  whole = "\n".join(texts)
  spans_of = tag_many(tagger, texts, [""] * len(texts))
  for paragraph, spans in zip(paragraphs, spans_of, strict=True):
    encoded = paragraph.text.encode()
    found = {encoded[start:limit].decode() for start, limit, _ in spans}
    num_spans += len(spans)
    for answer in paragraph.answers:
      num_answers += 1
      num_equal += answer in found
      num_possible += bool(_NUMBER.fullmatch(answer) or whole.count(answer) > 1)
  units = (
    sum(map(len, texts)) / 200
    if language in _CHARACTERS
    else len(whole.split()) / 100
  )
  is_default = " (default)" if name == default_tagger(language) else ""
  return [
    *(language, name + is_default, f"{num_spans / units:.1f}"),
    *(f"{n / num_answers:.3f}" for n in (num_equal, num_possible)),
  ]


def main(argv: Sequence[str] | None = None) -> None:
  """Prints a row for each language and tagger."""
  parser = argparse.ArgumentParser(
    description=(__doc__ or "").partition("\n")[0]
  )
  parser.add_argument("--texts_dir", type=Path, default=TEXTS_DIR)
  parser.add_argument("--taggers", nargs="+", default=("rules", "recurring"))
  given = parser.parse_args(argv)
  rows = [["language", "tagger", "spans", "equal", "ceiling"]]
  for language in _LANGUAGES:
    paragraphs = list(_paragraphs(given.texts_dir, language))
    rows += [_row(paragraphs, language, name) for name in given.taggers]
  print(columns(rows))


if __name__ == "__main__":
  main()
