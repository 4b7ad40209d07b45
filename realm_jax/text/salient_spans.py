"""Salient spans by rules: dates, numbers and capitalized names.

REALM masks named entities and dates (section 3.4 of the paper, which finds them
with a tagger trained on CoNLL-2003 and a regular expression). These rules need
no model. They find names by their capitals, and English dates. In other
languages, `recurring_phrases` uses the rules for names.

Most capitalized words at the start of a sentence are not names. Such a word
counts as a name if there is evidence: it is capitalized elsewhere inside a
sentence or in the title, or precedes another capitalized word. It does not
count if it is a function word, or if the text also has it in lower case.
"""

import functools
import importlib
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import regex

from realm_jax.errors import RealmError
from realm_jax.text.languages import ENGLISH
from realm_jax.text.normalization import byte_positions
from realm_jax.text.sentences import sentence_characters


class Span(NamedTuple):
  """A range of UTF-8 bytes and its kind: date, number or name."""

  start: int
  limit: int
  kind: str


# A tagger returns disjoint spans (start byte, limit byte, kind) of a text that
# are worth masking. It gets a whole document, so that one sentence may explain
# another, and its title. A tagger that is faster with many texts at once, such
# as a model, has a method `tag_many(texts, titles)`.
FoundSpan: TypeAlias = tuple[int, int, str]
Tagger: TypeAlias = Callable[[str, str], Sequence[FoundSpan]]


def tag_many(
  tagger: Tagger, texts: Sequence[str], titles: Sequence[str]
) -> Sequence[Sequence[FoundSpan]]:
  """Returns the spans of each text, in a single call if possible.

  The tagger reads texts without invisible characters, which would split words.
  """
  visible = [_INVISIBLE.sub("", text) for text in texts]
  if (many := getattr(tagger, "tag_many", None)) is not None:
    tagged = many(visible, titles)
  else:
    tagged = [tagger(*pair) for pair in zip(visible, titles, strict=True)]
  return [
    spans if read == text else _moved(spans, text)
    for spans, read, text in zip(tagged, visible, texts, strict=True)
  ]


def _moved(spans: Sequence[FoundSpan], text: str) -> list[FoundSpan]:
  """Maps spans in a text's visible characters to the text."""
  is_visible = [not _INVISIBLE.match(character) for character in text]
  read = np.flatnonzero(np.repeat(is_visible, np.diff(byte_positions(text))))
  moved = []
  for start, limit, kind in spans:
    first, last = read.take([start, limit - 1], mode="clip").tolist()
    moved.append((first, last + 1, kind))
  return moved


# Soft hyphens, marks of direction and the like. Joiners belong to the spelling
# of some languages.
_INVISIBLE = regex.compile(r"[\p{Cf}--[\u200c\u200d]]", regex.V1)

_MONTHS = (
  "January February March April May June July August September October "
  "November December"
).split()
_WEEKDAYS = ("Monday Tuesday Wednesday Thursday Friday Saturday Sunday").split()

_SHORT_MONTHS = "Jan Feb Mar Apr Jun Jul Aug Sept Sep Oct Nov Dec".split()
_MONTH = rf"(?:{'|'.join(_MONTHS)}|(?:{'|'.join(_SHORT_MONTHS)})\.?)"
_WEEKDAY = rf"(?:(?:{'|'.join(_WEEKDAYS)}) ?,? )?"
_DAY = r"[0-3]?\d(?:st|nd|rd|th)?"
_YEAR = r"(?:1\d{3}|20\d{2})"
_ERA = r"(?:BCE|BC|CE|AD)"
_DATE = re.compile(
  r"(?<![\w.,$£€])(?:"
  rf"{_WEEKDAY}{_DAY} (?:of )?{_MONTH}(?: ?,? {_YEAR}\b)?"
  rf"|{_WEEKDAY}{_MONTH} {_DAY}(?!\w)(?: ?,? {_YEAR}\b)?"
  rf"|{_MONTH} ?,? (?:of )?{_YEAR}"
  rf"|\d{{4}}-\d\d-\d\d|\d\d?/\d\d?/(?:\d{{4}}|\d\d)"
  rf"|\d{{1,2}}(?:st|nd|rd|th)[ -]century(?: {_ERA})?"
  rf"|\d{{1,4}} {_ERA}|AD \d{{1,4}}"
  rf"|(?:1\d|20)\d0s|{_YEAR}"
  r")(?!\w|[.,]\d|%)"
)
_NUMBER = re.compile(
  r"(?<![\w.])(?<!\d,)(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:st|nd|rd|th)?"
  r"(?!\w|[.,]\d)(?: (?:hundred|thousand|million|billion|trillion)\b)?"
)


_CAPITAL = f"[{''.join(filter(str.istitle, map(chr, range(0x10000))))}]"
# Abbreviations that precede a name.
_TITLE = r"(?:Mrs?|Ms|Dr|St|Ste|Prof|Sen|Rep|Gov|Gen|Col|Maj|Capt|Lt|Sgt|Mt|Ft)"
_WORD = (
  rf"(?:(?:{_CAPITAL}\.){{2,}}(?:{_CAPITAL}\b)?"  # U.S., J.R.R.
  rf"|(?:{_TITLE}|{_CAPITAL})\.(?= {_CAPITAL})"  # St. Louis, J. Smith
  rf"|{_CAPITAL}\w*(?:(?:[-‐‑&]|['’](?!s\b))\w+)*)"  # O'Brien, AT&T
)
# Words between two capitalized words of one name: Isle of the Dead, Rio de la
# Plata.
_JOINT = (
  r"(?: (?:of the|of|de la|de los|de las|de|del|della|di|da|do|dos|du|des|"
  r"van der|van den|van|von der|von|zu|bin|ibn|y|&))?"
)
_NAME = re.compile(rf"(?<!\w)(?<!\w[-'’.]){_WORD}(?:{_JOINT} {_WORD})*")
_NAME_WORD = re.compile(_WORD)
_ANY_WORD = re.compile(r"[^\W\d_]+")
# After these characters, as at the start of a sentence, a capital is not
# evidence of a name.
_OPENINGS = "\"'`“”‘«(:[*•–—"

FUNCTION_WORDS = frozenset(
  # Articles, pronouns, determiners.
  "a an the i me my mine we us our ours you your yours he him his she her hers "
  "it its they them their theirs this that these those who whom whose which "
  "what each every either neither both all any some none no many much most "
  "more few fewer several such another other others one two three four five "
  "six seven eight nine ten someone everyone nobody something nothing "
  # Prepositions and conjunctions.
  "about above across after against along alongside amid among around as at "
  "because before behind below beneath beside besides between beyond but by "
  "despite down during except following for from if in inside into like near "
  "nor of off on onto or out outside over past per plus since so than though "
  "although through throughout till to toward towards under underneath unless "
  "unlike until unto up upon via when whenever where whereas wherever whether "
  "while with within without yet and according due owing "
  # Adverbs that open sentences.
  "again ago also always afterwards afterward additionally apart currently "
  "earlier early elsewhere especially eventually even ever finally first "
  "firstly formerly further furthermore generally hence here however "
  "historically how i.e e.g indeed initially instead just last late later "
  "lastly likewise mainly meanwhile moreover mostly nevertheless never next "
  "nonetheless not notably now nowadays often once only originally otherwise "
  "overall particularly perhaps previously rather recently second secondly "
  "similarly simply sometimes soon still subsequently then there thereafter "
  "therefore third thus today together tomorrow too traditionally twice "
  "typically usually very well why yesterday "
  # Verbs and auxiliaries.
  "am is are was were be been being do does did done has have had having can "
  "could may might must shall should will would let born based built called "
  "founded given known located made named see using yes "
  # Nouns that open sentences in encyclopedias.
  "people part parts half example examples critics fans members scientists "
  "historians researchers".split()
)
# Names that function words become in capitals: the country, and the World
# Health Organization.
_CAPITAL_NAMES = frozenset({"US", "WHO"})
# Words that begin many names although texts also have them in lower case.
_NAME_OPENINGS = frozenset(
  "new north south east west northern southern eastern western great saint "
  "royal king queen prince princess lake mount port fort".split()
)


def _candidates(
  text: str, language: str
) -> Iterator[tuple[list[tuple[int, int]], bool]]:
  """Yields runs of capitalized words, and whether each begins a sentence."""
  for start, limit in sentence_characters(text, language):
    # From the last character of the previous name, so that a long sentence is
    # not scanned for each of its names.
    after = start
    for match in _NAME.finditer(text, start, limit):
      words = [word.span() for word in _NAME_WORD.finditer(text, *match.span())]
      before = text[max(start, after - 1) : match.start()].rstrip()
      is_initial = not before or before[-1] in _OPENINGS
      after = match.end()
      yield words, is_initial


def _is_function_word(word: str) -> bool:
  # I'm and It's count as I and It.
  stem = re.split("['’]", word)[0]
  return stem.lower() in FUNCTION_WORDS and stem not in _CAPITAL_NAMES


def names(
  text: str, title: str, language: str = ENGLISH
) -> Iterator[tuple[int, int]]:
  """Yields the character ranges of capitalized names."""
  candidates = list(_candidates(text, language))
  # Evidence of the text: words with a capital inside a sentence, words that
  # also occur in lower case, and names found inside sentences.
  in_capitals = set(_NAME_WORD.findall(title))
  inside = {name.group() for name in _NAME.finditer(title)}
  for words, is_initial in candidates:
    in_capitals.update(text[s:t] for s, t in words[is_initial:])
    if not is_initial:
      inside.add(text[words[0][0] : words[-1][1]])
  in_small = {word for word in _ANY_WORD.findall(text) if word.islower()}
  no_openings = in_small - _NAME_OPENINGS

  for words, is_initial in candidates:
    first = text[slice(*words[0])]
    if len(words) == 1:
      drop = _is_function_word(first) or (
        is_initial and (first not in in_capitals or first.lower() in in_small)
      )
    elif text[words[0][0] : words[-1][1]] in inside:
      drop = False
    else:
      drop = is_initial and (
        _is_function_word(first) or first.lower() in no_openings
      )
    if drop:
      words = words[1:]
    if len(words) > 1 or (
      words and not _is_function_word(text[slice(*words[0])])
    ):
      yield words[0][0], words[-1][1]


def tag(text: str, title: str, language: str = ENGLISH) -> list[Span]:
  """Finds dates, then names, then the remaining numbers.

  The language decides where sentences begin.
  """
  bare_dates = frozenset(_MONTHS + _WEEKDAYS)
  candidates = itertools.chain(
    (Span(*match.span(), "date") for match in _DATE.finditer(text)),
    (
      Span(start, limit, "date" if text[start:limit] in bare_dates else "name")
      for start, limit in names(text, title, language)
    ),
    (Span(*match.span(), "number") for match in _NUMBER.finditer(text)),
  )
  spans: list[Span] = []
  is_taken = bytearray(len(text))
  for span in candidates:
    start, limit, _ = span
    if not any(is_taken[start:limit]):
      is_taken[start:limit] = b"\1" * (limit - start)
      spans.append(span)
  spans.sort()
  if text.isascii():
    return spans
  positions = byte_positions(text).tolist()
  return [Span(positions[s], positions[t], kind) for s, t, kind in spans]


def dates(text: str, title: str) -> list[Span]:
  """Finds only dates, for taggers that find names in another way."""
  return [span for span in tag(text, title) if span.kind == "date"]


def default_tagger(language: str) -> str:
  """Returns the name of the default tagger for a language."""
  return "rules" if language == ENGLISH else "recurring"


def find_tagger(name: str, language: str = ENGLISH) -> Tagger | None:
  """Returns a tagger by name, which splits sentences in a language.

  Names are `rules`, `recurring`, `none`, `bert:DIRECTORY` of a
  BertForTokenClassification, and `module.name` of a callable. Raises
  `ValueError` if there is no such name, or the directory holds no such model.
  """
  if name == "none":
    return None
  if name == "rules":
    return functools.partial(tag, language=language)
  # Imported late, because these modules import this one.
  if name == "recurring":
    from realm_jax.text.recurring_phrases import RecurringPhrases

    return RecurringPhrases(language)
  if name.startswith("bert:"):
    from realm_jax.text.bert_tagger import load

    return load(name.removeprefix("bert:"), language)
  module_name, _, attribute = name.rpartition(".")
  try:
    tagger = getattr(importlib.import_module(module_name), attribute)
  except (ImportError, AttributeError, ValueError) as error:
    raise RealmError(
      f"no tagger {name!r} ({error}); wanted rules, recurring, none, "
      "bert:DIRECTORY, or module.name of something that can be imported from "
      "here"
    ) from error
  if not callable(tagger):
    raise RealmError(f"the tagger {name!r} is not callable")
  return tagger
