"""A second, low-resource language of the demo world.

Its documents state some of the world's facts; they are not translations of
documents in the first language. Names and numbers are the same, and all other
words differ. An invented language also reverses the order of words. A
transliterated one is the first language in Cyrillic letters.
"""

import dataclasses
from collections.abc import Callable
from typing import Literal

import numpy as np

from experiments.world.documents import Document, write_notes
from experiments.world.questions import Question, make_statements
from experiments.world.world import World
from realm_jax.settings import Fraction, require_valid

# Esperanto's code, whose rules split the invented language's sentences well.
CODE = "eo"
_SYLLABLES = tuple("ba de fi go ku la me ni po ru sa te vi zo".split())
# Endings that neither names nor English words in templates have.
_ENDINGS = tuple("ak em ul oz ib".split())
_CYRILLIC = str.maketrans(
  "abcdefghijklmnopqrstuvwxyz", "абцдефгхижклмнопярстувшэыз"
)

# Whether only documents in the first language state a fact, or in both.
StatedIn = Literal["first", "both"]


@dataclasses.dataclass(frozen=True)
class SecondLanguageConfig:
  """The second language, and its number of documents.

  Attributes:
    transliterated: Whether it is the first language in Cyrillic letters,
      instead of an invented language.
    document_share: Number of documents, as a share of the first language's. The
      first language states each fact three times, so a small share states some
      facts once and others never.
  """

  transliterated: bool = False
  document_share: Fraction = 0.3

  def __post_init__(self) -> None:
    require_valid(self)


def write_in_second_language(
  world: World, config: SecondLanguageConfig, *, seed: int
) -> tuple[list[Document], dict[StatedIn, list[Question]]]:
  """Writes documents and masked statements in the second language.

  As in the first language, a statement uses a phrasing in which no document of
  the language states the fact.

  Returns:
    Documents that state some of the world's facts, and masked statements of the
    facts in the world's test statements, by the languages whose documents state
    the fact.
  """
  generator = np.random.default_rng([seed, 1])
  translate = translator(config.transliterated, generator)
  notes = write_notes(generator, world.facts)
  documents, stated = [], {fact: set[int]() for fact in range(len(world.facts))}
  for note in notes[: round(config.document_share * len(notes))]:
    sentences = []
    for sentence in note.sentences:
      stated[sentence.fact].add(sentence.phrasing)
      template = translate(sentence.template)
      sentences.append(dataclasses.replace(sentence, template=template))
    title = translate(note.title)
    documents.append(Document(f"{CODE}-{note.id}", title, tuple(sentences)))
  statements = make_statements(
    generator, world.facts, world.statements["test"], stated, translate
  )
  return documents, {
    "first": [one for one in statements if not stated[one.fact]],
    "both": [one for one in statements if stated[one.fact]],
  }


def translator(
  transliterated: bool, generator: np.random.Generator
) -> Callable[[str], str]:
  """Returns a function that translates a text, except for `{s}` and `{o}`.

  Args:
    transliterated: As in `SecondLanguageConfig`.
    generator: Generator of invented words.
  """
  invented: dict[str, str] = {}

  def translated(word: str) -> str:
    if word.startswith("{"):
      return word
    word = word.lower()
    if transliterated:
      return word.translate(_CYRILLIC)
    while word not in invented:
      drawn = generator.choice(_SYLLABLES, 2)
      word_drawn = "".join(drawn) + generator.choice(_ENDINGS)
      if word_drawn not in invented.values():
        invented[word] = word_drawn
    return invented[word]

  def translate(text: str) -> str:
    words = [translated(word) for word in text.removesuffix(".").split()]
    if not transliterated:
      words.reverse()
    words[0] = words[0].capitalize() if words[0].isalpha() else words[0]
    return " ".join(words) + "." * text.endswith(".")

  return translate
