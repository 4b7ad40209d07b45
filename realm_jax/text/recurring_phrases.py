"""Salient spans of any language: numbers, names, and phrases that recur.

A phrase is salient if it occurs several times in a corpus, in few paragraphs
and between various other words; recurring spans are the answers of Spider's
pseudo-queries (Ram et al. 2022, arXiv 2112.07708). In scripts with capitals,
names are found by the rules of `salient_spans`. No list of words is needed. In
a text, numbers come first, then names, the rarest first, and then the best
phrases, each once: at most 12 in 100 words, and one in a text with fewer than
17. In scripts without spaces, words are assumed to have the average number of
characters: 1.7 in Chinese and Japanese, and 4 in Thai.

jieba and PyThaiNLP, if they are installed, find words in Chinese and Thai.
Without them, characters are counted instead, and phrases often have wrong
boundaries.
"""

import collections
import dataclasses
import functools
import importlib
import importlib.util
import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import NamedTuple, TypeAlias

import numpy as np
import regex
from jaxtyping import Bool, Float, Int

from realm_jax.text import salient_spans
from realm_jax.text.languages import (
  EAST_ASIAN,
  ENGLISH,
  UNSPACED,
  UNSPACED_CHARACTER,
)
from realm_jax.text.normalization import byte_positions
from realm_jax.text.salient_spans import Span

# Bytes of text in which phrases are counted; larger corpora are sampled.
SAMPLE_BYTES = 8 << 20
_SPANS_PER_WORD = 0.12
# In Chinese and Japanese, and in Thai and the like.
_CHARACTERS_PER_EAST_ASIAN_WORD, _CHARACTERS_PER_WORD = 1.7, 4
_LONGEST_PHRASE = 8
# A phrase neither begins nor ends with a word that is in more than this share
# of the paragraphs, if there are enough paragraphs.
_COMMON, _FEW_PARAGRAPHS = 0.25, 32
# A unit, such as "million" or the character for a year, follows a number or
# another unit in more than this share of its occurrences.
_SHARE_OF_UNIT = 0.4
# Added to the scores of numbers and names, which come before phrases.
_NUMBER_FIRST, _NAME_FIRST = 1e6, 1e3
_NUMBER, _END = "0", -1

# A character of a script without spaces, with its vowels.
_CHARACTER = regex.compile(rf"[เ-ไເ-ໄ]?[{UNSPACED}]\p{{M}}*[ะาำๅະາຳ]?")
_LETTER = rf"(?:(?![\d_{UNSPACED}])\w)"
# Groups of scripts without spaces are named after their segmenters, whose time
# may be quadratic in the length of a run, so runs are limited.
_TOKEN = regex.compile(
  # Also 3:08, 20–18, 27-30% and 5/7/1990.
  r"(?P<number>\d+(?:[.,٫٬:/–-]\d+)*(?: ?[%٪])?)"
  r"|(?P<jieba>\p{Han}{1,1000})|(?P<pythainlp>(?:(?!\d)\p{Thai}){1,1000})"
  rf"|(?P<nothing>(?:(?!\d)[{UNSPACED}])+)"
  rf"|(?P<word>{_LETTER}+(?:['’‐‑-]{_LETTER}+)*)"
  r"|(?P<other>\S)"
)
_EAST_ASIAN = regex.compile(f"[{EAST_ASIAN}]")
_SPACED_WORD = regex.compile(rf"(?:(?![{UNSPACED}])[\w.,:'’/-])+")
# Arabic's article and prefixes, which are written together with the next word.
_ARABIC_PREFIX = regex.compile(
  "^(?:[وف]?(?:ال|بال|كال|لل)|[وفبل](?=.{4}))(?=..)"
)
_YEAR = regex.compile(r"(?<!\d)(?:1\d|20)\d\d(?!\d)")

# Score, first and limit character, and kind.
_Candidate: TypeAlias = tuple[float, int, int, str]


class _Token(NamedTuple):
  """A word, or a character in a script without a segmenter.

  `key` is the counted form: all numbers count as the same word.
  """

  start: int
  limit: int
  key: str
  is_character: bool = False


def _runs(text: str) -> Iterator[list[_Token]]:
  """Yields the tokens between punctuation marks and line ends."""
  run: list[_Token] = []
  limit = 0
  for match in _TOKEN.finditer(text):
    kind, start = match.lastgroup, match.start()
    if run and (kind == "other" or text[limit:start] not in ("", " ")):
      yield run
      run = []
    limit = match.end()
    if kind == "number":
      run.append(_Token(start, limit, _NUMBER))
    elif kind == "word":
      key = _ARABIC_PREFIX.sub("", match[0].lower())
      run.append(_Token(start, limit, key))
    elif kind != "other":
      segmenter = _segmenter(kind)
      for word in (segmenter or _CHARACTER.findall)(match[0]):
        run.append(_Token(start, start + len(word), word, segmenter is None))
        start += len(word)
  if run:
    yield run


@functools.cache
def _segmenter(package: str) -> Callable[[str], Iterable[str]] | None:
  """Returns the segmenter of a package, if it is installed."""
  if importlib.util.find_spec(package) is None:
    return None
  if package == "pythainlp":
    return importlib.import_module("pythainlp.tokenize").word_tokenize
  with warnings.catch_warnings(action="ignore"):
    jieba = importlib.import_module(package)
  jieba.setLogLevel("WARNING")
  return jieba.cut


def _num_words(text: str) -> float:
  """Estimates the number of words of a text."""
  east_asian = len(_EAST_ASIAN.findall(text))
  others = len(UNSPACED_CHARACTER.findall(text)) - east_asian
  return (
    len(_SPACED_WORD.findall(text))
    + east_asian / _CHARACTERS_PER_EAST_ASIAN_WORD
    + others / _CHARACTERS_PER_WORD
  )


@dataclasses.dataclass(frozen=True)
class RecurringPhrases:
  """A tagger that knows the phrases of a corpus (see `count_phrases`).

  Attributes:
    language: ISO code of the language, for splitting sentences.
    scores: Salience of phrases, whose words are joined by spaces.
    units: Words that mostly follow a number or another unit.
  """

  language: str = ENGLISH
  scores: Mapping[str, float] = dataclasses.field(default_factory=dict)
  units: Set[str] = frozenset()

  def __call__(self, text: str, title: str) -> list[Span]:
    """Finds numbers with their units, names, and the best phrases."""
    runs = list(_runs(text))
    numbers = [span for run in runs for span in self._numbers(run, text)]
    candidates = [*numbers, *self._names(text, title), *self._phrases(runs)]
    return _best(
      candidates, text, max(1, int(_SPANS_PER_WORD * _num_words(text)))
    )

  def _numbers(self, run: list[_Token], text: str) -> Iterator[_Candidate]:
    def is_part(token: _Token) -> bool:
      return token.key == _NUMBER or token.key in self.units

    for is_inside, group in itertools.groupby(run, key=is_part):
      # A unit before the first number does not count.
      tokens = [*itertools.dropwhile(lambda t: t.key != _NUMBER, group)]
      if is_inside and tokens:
        start, limit = tokens[0].start, tokens[-1].limit
        kind = "number" if len(tokens) == 1 else "quantity"
        kind = "date" if _YEAR.search(text[start:limit]) else kind
        yield _NUMBER_FIRST, start, limit, kind

  def _names(self, text: str, title: str) -> Iterator[_Candidate]:
    # Latin names in other scripts may have no spaces around them.
    apart = UNSPACED_CHARACTER.sub("·", text)
    spans = list(salient_spans.names(apart, title, self.language))
    counts = collections.Counter(text[start:limit] for start, limit in spans)
    for start, limit in spans:
      name = text[start:limit]
      # A name that does not recur is the rarest.
      key = " ".join(token.key for run in _runs(name) for token in run)
      score = self.scores.get(key, _NAME_FIRST) + np.log(counts[name])
      yield _NAME_FIRST + score, start, limit, "name"

  def _phrases(self, runs: Iterable[list[_Token]]) -> Iterator[_Candidate]:
    phrases = [
      (phrase, tokens[0].start, tokens[-1].limit)
      for run in runs
      for first in range(len(run))
      for length in range(1, _LONGEST_PHRASE + 1)
      if len(tokens := run[first : first + length]) == length
      and (phrase := " ".join(t.key for t in tokens)) in self.scores
    ]
    counts = collections.Counter(phrase for phrase, _, _ in phrases)
    for phrase, start, limit in phrases:
      score = self.scores[phrase] + np.log(counts[phrase])
      yield score, start, limit, "phrase"


def _best(candidates: list[_Candidate], text: str, number: int) -> list[Span]:
  """Returns the best spans that do not overlap, each text once."""
  is_taken, seen = bytearray(len(text)), set[str]()
  spans: list[Span] = []
  for _, start, limit, kind in sorted(
    candidates, key=lambda f: (-f[0], f[1], -f[2])
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


def count_phrases(
  texts: Iterable[str], language: str = ENGLISH
) -> RecurringPhrases:
  """Counts the phrases of a corpus, and returns the tagger that knows them.

  The score of a phrase is

      log(N / d) + log(l r / f²) + 0.4 c,

  where it occurs f times, in d of N paragraphs, after l and before r different
  words. For a phrase of several words, c is the lesser of the pointwise mutual
  information of its first word and the rest, and of its last word and the rest.
  8 MB of Chinese take 20 seconds and 0.5 GB, if characters are counted.
  """
  numbers: dict[str, int] = {}
  characters = set[str]()
  # There is also an end marker before each run.
  ids, paragraphs, num_paragraphs = [_END], [0], 0
  for text in texts:
    for paragraph in filter(None, text.split("\n")):
      for run in _runs(paragraph):
        ids += [numbers.setdefault(t.key, len(numbers)) for t in run] + [_END]
        paragraphs += [num_paragraphs] * (len(run) + 1)
        characters.update(t.key for t in run if t.is_character)
      num_paragraphs += 1
  if not numbers:
    return RecurringPhrases(language)
  words, tokens = list(numbers), np.array(ids)
  is_character = np.array([word in characters for word in words])
  scores = _scores(tokens, np.array(paragraphs), words, is_character)
  return RecurringPhrases(language, scores, _units(tokens, words))


def _units(ids: Int[np.ndarray, " t"], words: Sequence[str]) -> Set[str]:
  """Returns the words that mostly follow a number or another unit."""
  is_number = np.array([word == _NUMBER for word in words])
  times = np.bincount(ids[ids != _END])
  is_unit = np.zeros(len(words), bool)
  for _ in range(2):
    before, after = ids[:-1], ids[1:]
    follows = (is_number | is_unit)[before] & (before != _END) & (after != _END)
    counts = np.bincount(after[follows], minlength=len(words))
    is_unit = (counts >= _SHARE_OF_UNIT * times) & (times > 1) & ~is_number
  return frozenset(itertools.compress(words, is_unit))


def _scores(
  ids: Int[np.ndarray, " t"],
  paragraphs: Int[np.ndarray, " t"],
  words: Sequence[str],
  is_character: Bool[np.ndarray, " w"],
) -> dict[str, float]:
  """Returns the scores of the phrases that recur."""
  size, num_paragraphs = len(ids), int(paragraphs[-1]) + 1
  # Each end of a run counts as a different neighbor.
  neighbours = np.where(ids == _END, len(words) + np.arange(size), ids)
  most = num_paragraphs * _COMMON
  if num_paragraphs <= _FEW_PARAGRAPHS:
    most = num_paragraphs
  scores: dict[str, float] = {}
  # Number of paragraphs with the word at a position, and with the phrase that
  # begins there and is one word shorter than those being counted.
  of_word = of_shorter = np.ones(size)
  # Ids of the phrases that begin at each position, if they may recur.
  phrases = ids
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
    last = first + length - 1
    found_in = _num_distinct(group, paragraphs[places])
    score = np.log(num_paragraphs / found_in)
    score += np.log(_num_distinct(group, neighbours[places - 1]) / times)
    score += np.log(_num_distinct(group, neighbours[places + length]) / times)
    if length > 1:
      parts = np.maximum(
        of_word[first] * of_shorter[first + 1],
        of_shorter[first] * of_word[last],
      )
      score += 0.4 * np.log(found_in * num_paragraphs / parts)
    of_shorter = np.ones(size)
    of_shorter[places] = found_in[group]
    if length == 1:
      of_word = of_shorter
    # Most words have common characters at their ends.
    has_character = is_character[ids[first]] | is_character[ids[last]]
    is_rare = np.maximum(of_word[first], of_word[last]) <= most
    is_kept = has_character & (length > 1) | is_rare & ~has_character
    for i in np.flatnonzero(is_kept & (times > 1)).tolist():
      phrase = " ".join(words[j] for j in ids[first[i] : last[i] + 1])
      scores[phrase] = float(score[i])
    # Longer phrases recur only if their parts do.
    goes_on = (times > 1)[group] & (ids[places + length] != _END)
    phrases = np.full(size, _END)
    phrases[places[goes_on]] = (
      group[goes_on] * len(words) + ids[places[goes_on] + length]
    )
  scores.pop(_NUMBER, None)
  return scores


def _num_distinct(
  groups: Int[np.ndarray, " n"], values: Int[np.ndarray, " n"]
) -> Float[np.ndarray, " g"]:
  """Returns the number of different values of each group."""
  number = int(values.max()) + 1
  pairs = np.unique(groups.astype(np.int64) * number + values)
  return np.bincount(pairs // number).astype(float)
