"""Names for the demo world: invented, letters only, each word used often.

Words are shared between entities on purpose: a surname by several people and
by companies, a title's word by several books. Such like names make a retriever
weigh whole names, and each word occurs often enough to become one wordpiece.
"""

from collections.abc import Sequence

import numpy as np

from realm_jax.demo_world import relations

_ONSETS = tuple("b br c d dr f g gr h j k kl l m n p pr r s t tr v w z".split())
_VOWELS = tuple("a e i o u ai ei ou".split())
_MIDDLES = tuple("b d l lm ld n nd r rv rn s sk t v z m".split())
# Endings that English inflection does not use, so that no invented word is
# a known one.
_ENDINGS = {
  "given name": ("ia", "iel", "o", "una", "eth", "is"),
  "surname": ("ock", "ask", "und", "orp", "iff", "aw"),
  "city": ("ora", "ona", "burgh", "wick", "mouth", "holm"),
  "country": ("ovia", "avia", "istan", "oria"),
  "river": ("une", "aar", "ibe", "oo"),
}

_TRADES = (
  "Brewery Foundry Shipyard Mills Bakery Tannery Pottery Glassworks Sawmill "
  "Weavers Printers Armoury Dairy Vineyard Quarry Smithy Ropeworks Distillery "
  "Saddlery Clockworks Papermill Orchards Fisheries Railway Ironworks Tailors "
  "Candlery Gasworks Cannery Looms Kilns Bindery Salters Coopers Chandlers "
  "Granary Toolworks Dyeworks Carriages Lanterns"
).split()
_TITLE_ADJECTIVES = (
  "Amber Silent Crimson Hollow Golden Bitter Frozen Gentle Hidden Ivory "
  "Jagged Lonely Marble Narrow Opal Painted Quiet Restless Scarlet Tender "
  "Velvet Wandering Yellow Ancient Broken Copper Distant Emerald Faded "
  "Grateful Humble Idle Jolly Kindly Leaden Misty Nimble Orphaned Patient "
  "Ragged Stolen Thirsty Unseen Violet Weary Barren Clever Drowsy Eager Fickle"
).split()
_TITLE_NOUNS = (
  "Orchard Lighthouse Garden Staircase Mirror Voyage Winter Feather Lantern "
  "Meadow Nightingale Anchor Bridge Comet Dagger Echo Falcon Glove Horizon "
  "Island Jewel Kettle Labyrinth Mountain Needle Oracle Pilgrim Quilt Raven "
  "Shadow Thimble Umbrella Valley Window Acrobat Balloon Carousel Dragon Elm "
  "Fiddle Goblet Hermit Icicle Jester Knight Lullaby Minstrel Nomad Owl Parade"
).split()


class NameMaker:
  """Draws names that no other entity of the world has."""

  def __init__(self, generator: np.random.Generator):
    self._generator = generator
    # What the templates say must not be a name as well.
    self._used_words = {
      word.strip(".?{}").lower()
      for relation in relations.RELATIONS
      for template in (
        *relation.articles,
        *relation.digests,
        *relation.questions,
      )
      for word in template.split()
    }

  def words(self, kind: str, count: int) -> list[str]:
    """Invents `count` new words with the endings of a kind."""
    draw = self._generator.choice
    found = []
    while len(found) < count:
      # A third syllable only where two no longer give enough new words.
      middle = "".join(
        draw(_VOWELS) + draw(_MIDDLES) for _ in range(1 + (len(found) > 500))
      )
      word = draw(_ONSETS) + middle + draw(_ENDINGS[kind])
      if word not in self._used_words:
        self._used_words.add(word)
        found.append(word.capitalize())
    return found

  def pairs(self, first: list[str], second: list[str], count: int) -> list[str]:
    """Joins `count` different pairs, each word about equally often."""
    if count > len(first) * len(second):
      raise ValueError(
        f"{count} names asked of {len(first)} x {len(second)} words; make "
        "fewer books or companies"
      )
    # Steps through the diagonals of the table of all pairs.
    cells = [
      (i % len(first), (i + i // length) % len(second))
      for length in (np.lcm(len(first), len(second)),)
      for i in range(count)
    ]
    first = [str(word) for word in self._generator.permutation(first)]
    second = [str(word) for word in self._generator.permutation(second)]
    names = [f"{first[i]} {second[j]}" for i, j in cells]
    return [str(name) for name in self._generator.permutation(names)]


def make_names(
  generator: np.random.Generator, counts: dict[relations.EntityKind, int]
) -> dict[relations.EntityKind, list[str]]:
  """Names every entity: `counts[kind]` different names of each kind."""
  maker = NameMaker(generator)
  # Three people share a given name, and three a surname.
  num_shared = max(2, -(-counts["person"] // 3))
  given = maker.words("given name", num_shared)
  surnames = maker.words("surname", num_shared)
  used = {
    "trade": _pool(generator, _TRADES, counts["company"]),
    "adjective": _pool(generator, _TITLE_ADJECTIVES, counts["book"]),
    "noun": _pool(generator, _TITLE_NOUNS, counts["book"]),
  }
  return {
    "person": maker.pairs(given, surnames, counts["person"]),
    "city": maker.words("city", counts["city"]),
    "country": maker.words("country", counts["country"]),
    "river": maker.words("river", counts["river"]),
    "company": maker.pairs(surnames, used["trade"], counts["company"]),
    "book": maker.pairs(used["adjective"], used["noun"], counts["book"]),
  }


def _pool(
  generator: np.random.Generator, words: Sequence[str], count: int
) -> list[str]:
  """As many of the words as let `count` names use each a few times."""
  wanted = min(len(words), max(3, -(-count // 3)))
  return [str(word) for word in generator.permutation(words)[:wanted]]
