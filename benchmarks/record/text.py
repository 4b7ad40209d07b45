"""The text of the record: articles, their vocabulary and questions on them."""

import json
import random
import re
import unicodedata
from pathlib import Path
from typing import Any

_FIRST = (
  "Ada Béla Chloë Dóra Émile Frida Gül Håkon Íris Jörg Kaï Léa Mía Nuño Oda "
  "Pär Quim Rosa Søren Túlia Udo Véra Wim Xenia Yves Zoë"
).split()
_LAST = "Stone Velasco Okafor Lindgren Moreau".split()
_CITIES = "Velt Tarn Ösker Mirá Pola Quint Brel".split()
_WORKS = "bridge opera novel palace school theatre".split()
_SENTENCES = (
  "{name} was born in {city} in {year}.",
  "In {year} {name} built the {work} of {city}.",
  "{name} married {other} in {city}.",
  "The {work} of {city} made {name} known.",
  "{name} left {city} for {other_city} in {year}.",
  "Nobody knows why {name} (“the poet”) sold 3.5 km² of {city}.",
)
# Words that the vocabulary lacks, so that they are read letter by letter.
_RARE = frozenset("chloe hakon iris soren oskar quim okafor".split())
_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_NUM_ARTICLES = 78
_NUM_QUESTIONS = 40


def write(folder: Path) -> None:
  """Writes `text.jsonl`, `changes.jsonl`, `vocab.txt` and `questions.jsonl`."""
  chance = random.Random(0)
  articles, questions = [], []
  for i in range(_NUM_ARTICLES):
    name = f"{_FIRST[i % len(_FIRST)]} {_LAST[i % len(_LAST)]}"
    born = chance.choice(_CITIES)
    sentences = [_SENTENCES[0].format(name=name, city=born, year=1900 + i % 60)]
    sentences += [
      chance.choice(_SENTENCES[1:]).format(
        name=name,
        city=chance.choice(_CITIES),
        other_city=chance.choice(_CITIES),
        other=f"{chance.choice(_FIRST)} {chance.choice(_LAST)}",
        work=chance.choice(_WORKS),
        year=chance.randrange(1850, 1990),
      )
      for _ in range(i % 6)
    ]
    articles.append({"id": f"p{i}", "title": name, "text": " ".join(sentences)})
    questions.append(
      {"id": f"q{i}", "question": f"where was {name} born?", "answer": [born]}
    )
  changes = [
    {"id": "p0", "remove": True},
    {**articles[1], "text": f"{articles[1]['title']} was born in Brel."},
    {"id": "new", "title": "New", "text": "The opera of Tarn is new. It is."},
  ]
  _write_lines(folder / "text.jsonl", articles)
  _write_lines(folder / "changes.jsonl", changes)
  _write_lines(folder / "questions.jsonl", questions[:_NUM_QUESTIONS])
  (folder / "vocab.txt").write_text(
    "\n".join(_pieces(articles)) + "\n", encoding="utf-8"
  )


def _pieces(articles: list[dict[str, str]]) -> list[str]:
  """Returns all words but the rare ones, and the letters of those."""
  texts = " ".join(f"{a['title']} {a['text']}" for a in articles)
  folded = unicodedata.normalize("NFD", f"{texts} where ?".lower())
  folded = "".join(c for c in folded if unicodedata.category(c) != "Mn")
  words = set(re.findall(r"\w+|[^\w\s]", folded)) - _RARE
  letters = sorted(set("".join(_RARE)))
  pieces = sorted(words | set(letters))
  return [*_SPECIAL, *pieces, *(f"##{letter}" for letter in letters)]


def _write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
  lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
  path.write_text("".join(lines), encoding="utf-8")
