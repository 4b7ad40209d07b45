"""Generated documents of any number, as JSON Lines, with names and dates."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

_LETTERS = np.array([*"abcdefghijklmnoprstuvwy"])
_NUM_WORDS = 30_000
# In a sentence of generated text.
_MOST_WORDS = 26
_DOCUMENTS_AT_ONCE = 500


def write_documents(path: Path, *, num_words: int, seed: int = 0) -> None:
  """Writes articles of 200 to 1,000 words, about `num_words` in all.

  Words have lengths and frequencies like those of English (Zipf's law); one in
  fifteen is a name, and one in fifty a year.
  """
  with path.open("w", encoding="utf-8") as file:
    for number, text in enumerate(_texts(num_words, seed)):
      title = text.partition(".")[0].split(" ")[:2]
      document = {"id": f"d{number}", "title": " ".join(title), "text": text}
      file.write(json.dumps(document) + "\n")


def _texts(num_words: int, seed: int) -> Iterator[str]:
  rng = np.random.default_rng(seed)
  lengths = rng.integers(2, 11, _NUM_WORDS)
  words = ["".join(rng.choice(_LETTERS, length)) for length in lengths.tolist()]
  weights = 1 / np.arange(1, _NUM_WORDS + 1)
  limits = np.cumsum(weights / weights.sum())
  while num_words > 0:
    sizes = rng.integers(200, 1001, _DOCUMENTS_AT_ONCE).tolist()
    drawn = np.searchsorted(limits, rng.random(sum(sizes))).tolist()
    kinds = rng.random(sum(sizes)).tolist()
    sentence_sizes = iter(rng.integers(6, _MOST_WORDS, sum(sizes)).tolist())
    position = 0
    for size in sizes:
      sentences, left = [], size
      while left > 0:
        count = min(next(sentence_sizes), left)
        chosen = [
          _word(words[drawn[i]], kinds[i], drawn[i])
          for i in range(position, position + count)
        ]
        chosen[0] = chosen[0].capitalize()
        sentences.append(" ".join(chosen) + ".")
        position, left = position + count, left - count
      yield " ".join(sentences)
      num_words -= size
      if num_words <= 0:
        return


def _word(word: str, kind: float, number: int) -> str:
  if kind < 1 / 15:
    return word.capitalize()
  if kind < 1 / 15 + 1 / 50:
    return str(1700 + number % 320)
  return word
