"""Measures the taggers of salient spans in XQuAD's eight languages.

    python -m benchmarks.salient_spans

`spans` is the number of spans in 100 words, or in 200 characters of Chinese and
Thai. `equal` is the share of XQuAD's 1,190 answers that equal a tagged span of
their paragraph. `ceiling` is the share of answers that are a number, or occur
elsewhere in the 240 paragraphs. Titles, which are English, are omitted.
"""

import re
from collections.abc import Sequence
from typing import Any

from benchmarks import flags
from benchmarks.data.real_texts import LANGUAGES, TEXTS_DIR, xquad
from realm_jax.console import columns
from realm_jax.text.recurring_phrases import RecurringPhrases, count_phrases
from realm_jax.text.salient_spans import default_tagger, find_tagger, tag_many

_CHARACTERS = ("th", "zh")
_NUMBER = re.compile(r"[\d\W]*\d[\d\W]*")


def _row(paragraphs: list[Any], language: str, name: str) -> list[str]:
  texts = [paragraph["context"] for paragraph in paragraphs]
  tagger = find_tagger(name, language)
  if isinstance(tagger, RecurringPhrases):
    tagger = count_phrases(texts, language)
  assert tagger is not None
  num_spans = num_equal = num_possible = num_answers = 0
  whole = "\n".join(texts)
  spans_of = tag_many(tagger, texts, [""] * len(texts))
  for paragraph, spans in zip(paragraphs, spans_of, strict=True):
    encoded = paragraph["context"].encode()
    tagged = {encoded[start:limit].decode() for start, limit, _ in spans}
    num_spans += len(spans)
    of_questions = [row["answers"] for row in paragraph["qas"]]
    for answer in (one["text"] for own in of_questions for one in own):
      num_answers += 1
      num_equal += answer in tagged
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
  options = flags.parse(
    __doc__, argv, texts_dir=TEXTS_DIR, taggers=("rules", "recurring")
  )
  rows = [["language", "tagger", "spans", "equal", "ceiling"]]
  for language in LANGUAGES:
    paragraphs = [row for _, row in xquad(options.texts_dir, language)]
    rows += [_row(paragraphs, language, name) for name in options.taggers]
  print(columns(rows))
  header, *of_taggers = rows
  named = [dict(zip(header, row, strict=True)) for row in of_taggers]
  flags.write(options, {"rows": named})


if __name__ == "__main__":
  main()
