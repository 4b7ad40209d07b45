"""Salient spans without capitals: numbers, and phrases that recur.

A phrase is salient if a corpus has it in several places, in few paragraphs and
between various other words; recurring spans are the answers of Spider's
pseudo-queries (Ram et al. 2022, arXiv 2112.07708). No list of words is needed.
In a text, the best phrases are taken, each once: at most 12 in 100 words, and
one of a text with fewer than 17. Two characters of Chinese or Japanese count as
a word, and so do five of Thai.

Words of Chinese and Thai are those of jieba and PyThaiNLP where these are
installed; without them, characters are counted instead, and the ends of phrases
are often wrong.
"""

import collections
import dataclasses
import functools
import importlib
import importlib.util
import itertools
import re
import unicodedata
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from realm_jax.text.salient_spans import Span
from realm_jax.text.sentences import byte_positions

# Bytes of text that phrases are counted in; of more text, a sample.
SAMPLE_BYTES = 8 << 20
_SPANS_PER_WORD = 0.12
# In Chinese and Japanese, and in Thai and the like.
_CHARACTERS_PER_IDEOGRAPHIC_WORD, _CHARACTERS_PER_WORD = 2, 5
_LONGEST_PHRASE = 8
# A phrase neither begins nor ends with a word that more paragraphs have: a
# quarter of them, but of a few paragraphs any number.
_COMMON, _FEW_PARAGRAPHS = 0.25, 32
# Of the places of a unit, such as a year or a million, a number is before more.
_SHARE_OF_UNIT = 0.4
_NUMBER, _END = "0", -1

_MARKS = "".join(
  f"\\u{code:04x}"
  for code in range(0x10000)
  if unicodedata.category(chr(code)).startswith("M") or code in (0x200C, 0x200D)
)
_THAI = "\u0e01-\u0eff"
_HAN = "\u3400-\u9fff\uf900-\ufaff"
_KANA = "\u3040-\u30ff"
# Scripts without spaces: also Tibetan, Burmese and Khmer.
_UNSPACED = f"{_THAI}\u0f00-\u0fff\u1000-\u109f\u1780-\u17ff{_HAN}{_KANA}"
# Vowels of Thai and Lao that are written before or after their consonant.
_BEFORE, _AFTER = "\u0e40-\u0e44\u0ec0-\u0ec4", "ะาำๅະາຳ"
_LETTER = rf"(?![\d_{_UNSPACED}])[\w{_MARKS}]"
# A character of a script without spaces, with its vowels.
_CLUSTER = re.compile(rf"[{_BEFORE}]?[{_UNSPACED}][{_MARKS}{_AFTER}]*")
_TOKEN = re.compile(
  # Also 3:08, 20–18, 27-30% and 5/7/1990.
  r"(?P<number>\d+(?:[.,٫٬:/–-]\d+)*(?: ?[%٪])?)"
  r"|(?P<numeral>(?!一(?![〇零一二三四五六七八九十百千万億亿兆两]))"
  r"[〇零一二三四五六七八九十百千万億亿兆两]+)"
  rf"|(?P<unspaced>{_CLUSTER.pattern})"
  rf"|(?P<word>(?:{_LETTER})+(?:['’‐‑-](?:{_LETTER})+)*)"
  r"|(?P<other>\S)"
)
_IDEOGRAPH = re.compile(f"[{_HAN}{_KANA}]")
_UNSPACED_CHARACTER = re.compile(f"[{_UNSPACED}]")
_SPACED_WORD = re.compile(rf"(?:(?![{_UNSPACED}])[\w{_MARKS}.,:'’/-])+")
# Arabic's article, and what is written in one word with the next one.
_ARABIC_PREFIX = re.compile("^(?:[وف]?(?:ال|بال|كال|لل)|[وفبل](?=.{4}))(?=..)")
_YEAR = re.compile(r"(?<!\d)(?:1\d|20)\d\d(?!\d)")


class _Token(NamedTuple):
  """A word, or a character of a script without spaces.

  Attributes:
    start, limit: Its characters.
    key: What is counted: all numbers are one word.
    is_number: Whether it is a number in digits.
  """

  start: int
  limit: int
  key: str
  is_number: bool

  @property
  def is_latin(self) -> bool:
    return self.key.isascii() and self.key.isalpha()


def _runs(text: str) -> Iterator[list[_Token]]:
  """Yields the tokens between punctuation marks and line ends."""
  run: list[_Token] = []
  limit = 0
  for match in itertools.chain(_TOKEN.finditer(text), [None]):
    kind = match.lastgroup if match else "other"
    gap = text[limit : match.start()] if match else ""
    if kind == "other" or gap not in ("", " "):
      if run:
        yield _in_words(run, text)
      run = []
    if match and kind != "other":
      start, limit = match.span()
      is_number = kind in ("number", "numeral")
      key = _NUMBER if is_number else match[0].lower()
      key = _ARABIC_PREFIX.sub("", key)
      run.append(_Token(start, limit, key, kind == "number"))
    elif match:
      limit = match.end()


@functools.cache
def _segmenter(package: str) -> Callable[[str], Iterable[str]] | None:
  """Returns what finds words, if its package is installed."""
  if importlib.util.find_spec(package) is None:
    return None
  if package == "jieba":
    with warnings.catch_warnings(action="ignore"):
      jieba = importlib.import_module(package)
    jieba.setLogLevel("WARNING")
    return jieba.cut
  return importlib.import_module("pythainlp.tokenize").word_tokenize


def _in_words(run: list[_Token], text: str) -> list[_Token]:
  """Joins characters to words, where something can find them."""
  words: list[_Token] = []
  for segmenter, group in itertools.groupby(run, key=_segmenter_of):
    tokens = list(group)
    if segmenter is None:
      words += tokens
      continue
    start, limit = tokens[0].start, tokens[-1].limit
    for word in segmenter(text[start:limit]):
      if not word.isspace():
        words.append(_Token(start, start + len(word), word, False))
      start += len(word)
  return words


def _segmenter_of(token: _Token) -> Callable[[str], Iterable[str]] | None:
  if token.key != _NUMBER and not token.key.isascii():
    if re.match(f"[{_HAN}]", token.key):
      return _segmenter("jieba")
    if re.match("[\u0e01-\u0e5b]", token.key):
      return _segmenter("pythainlp")
  return None


@dataclasses.dataclass(frozen=True)
class RecurringPhrases:
  """A tagger that knows the phrases of a corpus: see `count_phrases`.

  Attributes:
    scores: Phrases, their words joined by spaces, and how salient they are.
    units: Phrases that mostly follow a number.
  """

  scores: Mapping[str, float] = dataclasses.field(default_factory=dict)
  units: Set[str] = frozenset()

  def __call__(self, text: str, title: str) -> list[Span]:
    """Finds numbers, Latin words in other scripts, and the best phrases."""
    del title
    runs = list(_runs(text))
    latin = sum(token.is_latin for run in runs for token in run)
    has_latin = 2 * latin < sum(map(len, runs))
    found = list[tuple[float, int, int, str]]()
    phrases = list[tuple[str, int, int]]()
    for run in runs:
      found += _numbers(run, text, self.units)
      if has_latin:
        found += _latin(run)
      for first in range(len(run)):
        for limit in range(first + 1, len(run) + 1)[:_LONGEST_PHRASE]:
          phrase = " ".join(token.key for token in run[first:limit])
          if phrase in self.scores:
            phrases.append((phrase, run[first].start, run[limit - 1].limit))
    counts = collections.Counter(phrase for phrase, _, _ in phrases)
    found += [
      (self.scores[phrase] + np.log(counts[phrase]), start, limit, "phrase")
      for phrase, start, limit in phrases
    ]
    return _best(found, text, max(1, int(_SPANS_PER_WORD * _num_words(text))))


def _num_words(text: str) -> float:
  """Returns about how many words a text has."""
  ideographs = len(_IDEOGRAPH.findall(text))
  others = len(_UNSPACED_CHARACTER.findall(text)) - ideographs
  return (
    len(_SPACED_WORD.findall(text))
    + ideographs / _CHARACTERS_PER_IDEOGRAPHIC_WORD
    + others / _CHARACTERS_PER_WORD
  )


def _numbers(
  run: list[_Token], text: str, units: Set[str]
) -> Iterator[tuple[float, int, int, str]]:
  """Yields numbers with the units and numbers that follow; the longest."""
  first = 0
  while first < len(run):
    limit = first
    while limit < len(run):
      if run[limit].key == _NUMBER:
        limit += 1
        continue
      rest = [t.key for t in run[limit : limit + _LONGEST_PHRASE]]
      lengths = range(len(rest) if limit > first else 0, 0, -1)
      length = next((n for n in lengths if " ".join(rest[:n]) in units), 0)
      if not length:
        break
      limit += length
    tokens = run[first:limit]
    if len(tokens) > 1 or any(token.is_number for token in tokens):
      start, end = tokens[0].start, tokens[-1].limit
      kind = "number" if len(tokens) == 1 else "quantity"
      kind = "date" if _YEAR.search(text[start:end]) else kind
      yield np.inf, start, end, kind
    first = max(limit, first + 1)


def _latin(run: list[_Token]) -> Iterator[tuple[float, int, int, str]]:
  for is_latin, group in itertools.groupby(run, key=lambda t: t.is_latin):
    if is_latin:
      tokens = list(group)
      yield 1e3, tokens[0].start, tokens[-1].limit, "phrase"


def _best(
  found: list[tuple[float, int, int, str]], text: str, number: int
) -> list[Span]:
  """Returns the best spans that do not overlap, each text once."""
  is_taken, seen = bytearray(len(text)), set[str]()
  spans: list[Span] = []
  for _, start, limit, kind in sorted(
    found, key=lambda f: (-f[0], f[1], -f[2])
  ):
    if len(spans) == number:
      break
    if text[start:limit] not in seen and not any(is_taken[start:limit]):
      spans.append(Span(start, limit, kind))
      seen.add(text[start:limit])
    is_taken[start:limit] = b"\1" * (limit - start)
  positions = byte_positions(text).tolist()
  return sorted(Span(positions[s], positions[t], kind) for s, t, kind in spans)


# --- Counting -----------------------------------------------------------------


def count_phrases(texts: Iterable[str]) -> RecurringPhrases:
  """Counts the phrases of a corpus, and returns the tagger that knows them.

  The score of a phrase is

      log(N / d) + log(l r / f²) + 0.4 c,

  where it occurs f times, in d of N paragraphs, after l and before r different
  words, and c is the pointwise mutual information of its two parts, where they
  are cut so that it is least. 8 MB of Chinese take 20 seconds and 0.5 GB, if
  characters are counted.
  """
  numbers: dict[str, int] = {}
  ids, paragraphs, num_paragraphs = list[int](), list[int](), 0
  for text in texts:
    for paragraph in filter(None, text.split("\n")):
      for run in _runs(paragraph):
        ids += [numbers.setdefault(t.key, len(numbers)) for t in run] + [_END]
        paragraphs += [num_paragraphs] * (len(run) + 1)
      num_paragraphs += 1
  if not ids:
    return RecurringPhrases()
  return _counted(np.array(ids), np.array(paragraphs), num_paragraphs, numbers)


def _counted(
  ids: Int[np.ndarray, " t"],
  paragraphs: Int[np.ndarray, " t"],
  num_paragraphs: int,
  numbers: Mapping[str, int],
) -> RecurringPhrases:
  size, words = len(ids), list(numbers)
  # Ends of runs are neighbours of their own.
  apart = np.where(ids == _END, len(words) + np.arange(size), ids)
  most = (
    num_paragraphs * _COMMON if num_paragraphs > _FEW_PARAGRAPHS else np.inf
  )
  scores: dict[str, float] = {}
  units = set[str]()
  number = numbers.get(_NUMBER, _END - 1)
  # By length of a phrase: in how many paragraphs, and how often, is that which
  # begins here?
  found_in, occurs = [np.ones(size, np.int32)], [np.ones(size, np.int32)]
  phrases = ids.copy()
  for length in range(1, _LONGEST_PHRASE + 1):
    places = np.flatnonzero(phrases != _END)
    if not len(places):
      break
    _, first, group, times = np.unique(
      phrases[places],
      return_index=True,
      return_inverse=True,
      return_counts=True,
    )
    first = places[first]

    def distinct(other: np.ndarray, group: np.ndarray = group) -> np.ndarray:
      pairs = np.unique(group * (size + len(words)) + other)
      return np.bincount(pairs // (size + len(words)))

    in_paragraphs = distinct(paragraphs[places])
    for counts, here in ((found_in, in_paragraphs), (occurs, times)):
      counts.append(np.ones(size, np.int32))
      counts[-1][places] = here[group]
    is_unit = (ids[first] == number) & (in_paragraphs > 1) & (length > 1)
    # Without the number, it is as long as what was counted before.
    of_all = occurs[length - 1][np.minimum(first + 1, size - 1)]
    is_unit &= times >= _SHARE_OF_UNIT * of_all
    # A longer one, if the shorter one mostly continues so.
    is_unit &= (times >= 0.8 * occurs[length - 1][first]) | (length == 2)
    for start in first[is_unit].tolist():
      units.add(" ".join(words[j] for j in ids[start + 1 : start + length]))
    together = np.full(len(first), np.inf)
    for cut in range(1, length):
      parts = 1.0 * found_in[cut][first] * found_in[length - cut][first + cut]
      together = np.minimum(
        together, np.log(in_paragraphs * num_paragraphs / parts)
      )
    score = np.log(num_paragraphs / in_paragraphs)
    score += np.log(distinct(apart[places - 1]) / times)
    score += np.log(distinct(apart[places + length]) / times)
    score += 0.4 * together if length > 1 else 0
    edges = np.maximum(found_in[1][first], found_in[1][first + length - 1])
    for i in np.flatnonzero((times > 1) & (edges <= most)).tolist():
      phrase = [words[j] for j in ids[first[i] : first[i] + length]]
      if length > 1 or not _CLUSTER.fullmatch(phrase[0]):
        scores[" ".join(phrase)] = float(score[i])
    # Longer phrases recur only if their parts do.
    kept = places[(times > 1)[group]]
    kept_group = group[(times > 1)[group]]
    longer = np.full(size, _END)
    follows = ids[kept + length] != _END
    longer[kept[follows]] = (
      kept_group[follows] * len(words) + ids[kept[follows] + length]
    )
    phrases = longer
  scores.pop(_NUMBER, None)
  return RecurringPhrases(scores, frozenset(units))
