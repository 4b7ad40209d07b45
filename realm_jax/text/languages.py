"""Languages by their ISO 639-1 codes, and the scripts of texts."""

import collections
import functools
import locale
import unicodedata

import regex

from realm_jax.errors import RealmError

ENGLISH = "en"
CODES = frozenset(
  "aa ab ae af ak am an ar as av ay az ba be bg bi bm bn bo br bs ca ce ch co "
  "cr cs cu cv cy da de dv dz ee el en eo es et eu fa ff fi fj fo fr fy ga gd "
  "gl gn gu gv ha he hi ho hr ht hu hy hz ia id ie ig ii ik io is it iu ja jv "
  "ka kg ki kj kk kl km kn ko kr ks ku kv kw ky la lb lg li ln lo lt lu lv mg "
  "mh mi mk ml mn mr ms mt my na nb nd ne ng nl nn no nr nv ny oc oj om or os "
  "pa pi pl ps pt qu rm rn ro ru rw sa sc sd se sg si sk sl sm sn so sq sr ss "
  "st su sv sw ta te tg th ti tk tl tn to tr ts tt tw ty ug uk ur uz ve vi vo "
  "wa wo xh yi yo za zh zu".split()
)
# Languages whose scripts have no capitals.
WITHOUT_CAPITALS = frozenset(
  "am ar as bn bo dv dz fa gu he hi ii ja ka km kn ko ks lo ml mr my ne or pa "
  "pi ps sa sd si ta te th ti ug ur yi zh".split()
)

# Characters of scripts without spaces between words, for regular expressions.
EAST_ASIAN = r"\p{Han}\p{Hiragana}\p{Katakana}ー"
UNSPACED = EAST_ASIAN + r"\p{Thai}\p{Lao}\p{Tibetan}\p{Myanmar}\p{Khmer}"
UNSPACED_CHARACTER = regex.compile(f"[{UNSPACED}]")
# A character of a word, for BERT's tokenizer: no white space, punctuation or
# CJK. Runs in other scripts without spaces consist of many words.
_IN_WORD = (
  r"[^\s\p{P}$+<=>^`|~\u2000-\u206f\u2e80-\u9fff\uf900-\ufaff"
  rf"\U00020000-\U0003ffff{UNSPACED}]"
)

# Number of letters to sample for the script of a text.
_NUM_SAMPLED = 64
# Scripts that are reported as one, because Japanese mixes them.
_NAMES_OF_EAST_ASIAN = ("Cjk", "Hiragana", "Katakana", "Halfwidth")


class LanguageError(RealmError):
  """A language code is unknown; the message suggests similar ones."""


def require_language(code: str) -> None:
  """Raises a `LanguageError` unless this is an ISO 639-1 code."""
  if code in CODES:
    return
  written = code.strip().lower()
  # Python knows names such as german; pt-BR and deu start with a code.
  near = CODES & {locale.normalize(written)[:2], written[:2]} or {
    known for known in CODES if known[0] == written[:1]
  }
  raise LanguageError(
    f"{code!r} is no language's code of ISO 639-1, such as {ENGLISH}; near it: "
    f"{', '.join(sorted(near)) or 'none'}"
  )


def words_longer_than(length: int) -> regex.Pattern[str]:
  """Returns a pattern for longer words, in scripts with spaces."""
  # Matches only at the starts of words, so its time is linear.
  return regex.compile(rf"(?<!{_IN_WORD}){_IN_WORD}{{{length + 1},}}")


@functools.cache
def _script_of(character: str) -> str:
  """Returns the script of a letter; empty for other characters."""
  if not character.isalpha():
    return ""
  name = unicodedata.name(character, "").split(" ")[0].capitalize()
  return "Chinese or Japanese" if name in _NAMES_OF_EAST_ASIAN else name


def script(text: str) -> str:
  """Returns the script, such as "Latin", of most letters in a sample.

  It is empty if there are no letters.
  """
  if text.isascii():
    return "Latin" if any(map(str.isalpha, text[:_NUM_SAMPLED])) else ""
  sample = text[:: len(text) // _NUM_SAMPLED + 1]
  counts = collections.Counter(map(_script_of, sample))
  del counts[""]
  return max(counts, key=counts.__getitem__, default="")
