"""A second language of the demo world, in which less is written.

Its documents state some of the world's facts, and translate no documents of the
first language. Names and numbers are the same; every other word is another one.
In the invented language the words of a sentence also stand in the opposite
order. The transliterated language is the first one in Cyrillic letters.
"""

import dataclasses
from collections.abc import Callable
from typing import Literal

import numpy as np

from experiments.world.documents import Document, write_notes
from experiments.world.questions import Question, make_statements
from experiments.world.world import World
from realm_jax.settings import Fraction, require_valid

# An invented language has no code. That of Esperanto splits sentences well.
CODE = "eo"
_SYLLABLES = tuple("ba de fi go ku la me ni po ru sa te vi zo".split())
# No name and no English word of a template ends so.
_ENDINGS = tuple("ak em ul oz ib".split())
_CYRILLIC = str.maketrans(
  "abcdefghijklmnopqrstuvwxyz", "абцдефгхижклмнопярстувшэыз"
)

# Whether the first language's documents alone state a fact, or both do.
StatedIn = Literal["first", "both"]


@dataclasses.dataclass(frozen=True)
class SecondLanguageConfig:
  """The second language, and how much is written in it.

  Attributes:
    transliterated: Whether it is the first language in Cyrillic letters,
      instead of an invented one.
    document_share: How many documents it has, for each of the first language.
      As a document states a few facts, and each fact is stated three times in
      the first language, its documents state some facts once and others never.
  """

  transliterated: bool = False
  document_share: Fraction = 0.3

  def __post_init__(self) -> None:
    require_valid(self)


def write_in_second_language(
  world: World, config: SecondLanguageConfig, *, seed: int
) -> tuple[list[Document], dict[StatedIn, list[Question]]]:
  """Writes documents and masked statements in the second language.

  As in the first language, a statement has a phrasing in which no document of
  its language states the fact.

  Returns:
    Documents that state some of the world's facts, and masked statements of
    the facts that the world's test statements are about, by the languages
    whose documents state the fact.
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
  asked = make_statements(
    generator, world.facts, world.statements["test"], stated, translate
  )
  return documents, {
    "first": [one for one in asked if not stated[one.fact]],
    "both": [one for one in asked if stated[one.fact]],
  }


def translator(
  transliterated: bool, generator: np.random.Generator
) -> Callable[[str], str]:
  """Returns a function that translates all words of a text but `{s}` and `{o}`.

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
      made = "".join(drawn) + generator.choice(_ENDINGS)
      if made not in invented.values():
        invented[word] = made
    return invented[word]

  def translate(text: str) -> str:
    words = [translated(word) for word in text.removesuffix(".").split()]
    if not transliterated:
      words.reverse()
    words[0] = words[0].capitalize() if words[0].isalpha() else words[0]
    return " ".join(words) + "." * text.endswith(".")

  return translate
