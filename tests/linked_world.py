"""A tiny world whose questions need an article and another that it links to."""

import re
from pathlib import Path

from realm_jax.text.vocabulary import SPECIAL_PIECES
from tests import tiny_world
from tests.json_lines import write_lines

PEOPLE = "ada bela cleo dora emil frida gus hana".split()
TOWNS = "velt tarn osker mira".split()
LANDS = "peru chad oman fiji".split()


def documents() -> list[dict]:
  """Articles of people, who were born in a town, and of towns in a land."""
  people = [
    {
      "id": name,
      "title": f"{name} stone",
      "text": f"{name} was born in {TOWNS[i % 4]}.",
      "links": [TOWNS[i % 4]],
    }
    for i, name in enumerate(PEOPLE)
  ]
  towns = [
    {"id": f"town-{name}", "title": name, "text": f"{name} lies in {land}."}
    for name, land in zip(TOWNS, LANDS, strict=True)
  ]
  return [*people, *towns]


def questions() -> list[dict]:
  """A question about each person, with the path to its answer."""
  return [
    {
      "id": name,
      "question": f"in which land was {name} born?",
      "answer": [LANDS[i % 4]],
      "gold_titles": [f"{name} stone", TOWNS[i % 4]],
    }
    for i, name in enumerate(PEOPLE)
  ]


def build(directory: Path) -> tiny_world.World:
  """Writes the corpus and the questions."""
  texts = [f"{d['title']} {d['text']}" for d in documents()]
  texts += [one["question"] for one in questions()]
  words = sorted({*re.findall(r"\w+|[^\w\s]", " ".join(texts))})
  (directory / "vocab.txt").write_text("\n".join([*SPECIAL_PIECES, *words]))
  tiny_world.write_corpus(directory, documents(), vocab=directory / "vocab.txt")
  world = tiny_world.World(directory)
  write_lines(world.question_file, questions())
  return world
