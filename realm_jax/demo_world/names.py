"""Names for the demo world: invented words, and names that are like them.

A name is one word, which becomes one wordpiece: a small reader learns in
minutes to copy those, and in an hour not yet those of several wordpieces.
Every eighth name is another one of its kind with a word before it, "Tavora" and
"New Tavora". Such like names make a retriever weigh whole names.
"""

import numpy as np

from realm_jax.demo_world import relations

_ONSETS = tuple("b br c d dr f g gr h j k kl l m n p pr r s t tr v w z".split())
_VOWELS = tuple("a e i o u ai ei ou".split())
_MIDDLES = tuple("b d l lm ld n nd r rv rn s sk t v z m".split())
# Endings that English inflection does not use, so that no invented word is
# a known one.
_ENDINGS: dict[relations.EntityKind, tuple[str, ...]] = {
  "person": ("ia", "iel", "o", "una", "eth", "is"),
  "city": ("ora", "ona", "burgh", "wick", "mouth", "holm"),
  "country": ("ovia", "avia", "istan", "oria"),
  "river": ("une", "aar", "ibe", "oo"),
  "company": ("works", "corp", "smiths", "mills", "craft", "bank"),
  "book": ("ock", "ask", "und", "iff", "iad", "eid"),
}
# What precedes a name that is like another one of its kind.
_LIKE: dict[relations.EntityKind, str] = {
  "person": "Young",
  "city": "New",
  "country": "East",
  "river": "Little",
  "company": "United",
  "book": "Lost",
}
_NAMES_PER_LIKE_NAME = 8


def make_names(
  generator: np.random.Generator, counts: dict[relations.EntityKind, int]
) -> dict[relations.EntityKind, list[str]]:
  """Names every entity: `counts[kind]` different names of each kind."""
  # What the templates say must not be a name as well.
  used = {
    word.strip(".,?{}").lower()
    for relation in relations.RELATIONS
    for template in (
      *relation.articles,
      *relation.digests,
      *relation.questions,
    )
    for word in template.split()
  }
  names = {}
  for kind, count in counts.items():
    num_like = count // _NAMES_PER_LIKE_NAME
    words = _invent(generator, kind, count - num_like, used)
    like = [f"{_LIKE[kind]} {word}" for word in words[:num_like]]
    names[kind] = [str(name) for name in generator.permutation(words + like)]
  return names


def _invent(
  generator: np.random.Generator,
  kind: relations.EntityKind,
  count: int,
  used: set[str],
) -> list[str]:
  """Makes `count` new words with the endings of a kind, and marks them used."""
  draw = generator.choice
  found = []
  while len(found) < count:
    # A third syllable only where two no longer give enough new words.
    middle = "".join(
      draw(_VOWELS) + draw(_MIDDLES) for _ in range(1 + (len(found) > 500))
    )
    word = draw(_ONSETS) + middle + draw(_ENDINGS[kind])
    if word not in used:
      used.add(word)
      found.append(word.capitalize())
  return found
