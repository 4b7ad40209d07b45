"""Names of the demo world: invented words, and names similar to them.

A name is one word, which becomes one wordpiece. A small reader learns to copy
such names within minutes, but not names of several wordpieces within an hour.
Every eighth name consists of another name of its kind and a word before it, as
in "Tavora" and "New Tavora". Such similar names force a retriever to compare
whole names.
"""

import re
from collections.abc import Iterable

import numpy as np

from experiments.world import relations
from experiments.world.facts import Entities
from realm_jax.text.salient_spans import Span

_ONSETS = tuple("b br c d dr f g gr h j k kl l m n p pr r s t tr v w z".split())
_VOWELS = tuple("a e i o u ai ei ou".split())
_MIDDLES = tuple("b d l lm ld n nd r rv rn s sk t v z m".split())
# Endings that English inflection does not use, so that no invented word is
# English.
_ENDINGS: dict[relations.EntityKind, tuple[str, ...]] = {
  "person": ("ia", "iel", "o", "una", "eth", "is"),
  "city": ("ora", "ona", "burgh", "wick", "mouth", "holm"),
  "company": ("works", "corp", "smiths", "mills", "craft", "bank"),
}
# Words before names that are similar to another name of their kind.
_PREFIXES: dict[relations.EntityKind, str] = {
  "person": "Young",
  "city": "New",
  "company": "United",
}
_NAMES_PER_SIMILAR_NAME = 8
# A name has at least one letter before its middle and ending.
_NAMES = "|".join(
  rf"(?P<{kind}>\b(?:{_PREFIXES[kind]} )?[A-Z][a-z]{{2,}}"
  rf"(?:{'|'.join(_ENDINGS[kind])})\b)"
  for kind in relations.ENTITY_KINDS
)
# A pattern of bytes, because positions of spans are in bytes.
_SPAN = re.compile(rf"{_NAMES}|(?P<number>\b\d+\b)".encode())


def make_entities(
  generator: np.random.Generator,
  counts: dict[relations.EntityKind, int],
  *,
  avoid: Iterable[str] = (),
) -> Entities:
  """Returns distinct names for `counts[kind]` entities of each kind.

  They share no words with the names to `avoid`.
  """
  # Names must not be words of the templates.
  used = {
    word.strip(".,?{}").lower()
    for relation in relations.RELATIONS
    for template in relation.templates
    for word in template.split()
  }
  used.update(word.lower() for name in avoid for word in name.split())
  entities, draw = Entities(), generator.choice
  for kind, count in counts.items():
    num_similar, words = count // _NAMES_PER_SIMILAR_NAME, list[str]()
    while len(words) < count - num_similar:
      # After some hundreds of words, two syllables yield too few new ones.
      middle = "".join(
        draw(_VOWELS) + draw(_MIDDLES) for _ in range(1 + (len(words) > 500))
      )
      word = draw(_ONSETS) + middle + draw(_ENDINGS[kind])
      if word not in used:
        used.add(word)
        words.append(word.capitalize())
    similar = [f"{_PREFIXES[kind]} {word}" for word in words[:num_similar]]
    entities[kind] = generator.permutation(words + similar).tolist()
  return entities


def tag(text: str, title: str) -> list[Span]:
  """Finds names, with their kinds, and numbers: the tagger of the demo.

  It replaces a model that finds named entities, which would not know invented
  names. A name's ending determines its kind.
  """
  del title
  matches = _SPAN.finditer(text.encode())
  return [Span(*match.span(), str(match.lastgroup)) for match in matches]
