"""Makes `tests/golden/hf_tagger`: tiny taggers and what transformers computes.

    .venv-peers/bin/python -m tests.golden.make_hf_tagger

What each folder holds: `benchmarks/peers/hf_tagger_values.py`.
"""

import shutil
import string
import tempfile
from pathlib import Path

from benchmarks.peers.hf_tagger_values import make_tagger
from tests.golden import vocabulary

OUTPUT_DIR = Path(__file__).resolve().parent / "hf_tagger"
_MODEL = {
  "hidden_size": 24,
  "num_hidden_layers": 2,
  "num_attention_heads": 2,
  "intermediate_size": 48,
  "max_position_embeddings": 64,
}
# Accents, Chinese characters, abbreviations, marks inside words, words that
# have no pieces, and a text of one word.
_SENTENCES = (
  "the Queen of England married Prince Albert in a castle near the river",
  "Ada Lovelace and J. R. R. Tolkien wrote songs (and stories) in the U.S.",
  "Zoë Çelik saw the opera in Kraków, a wall-painting and 北京 station!",
  "half of it is ½ of a fine paper; ☃ built railways-and-towers in 1987",
  "Army",
  "AT&T's first ship sailed west, past O'Brien's mill... and the son's wife",
)


def _cased_pieces() -> list[str]:
  capitals = string.ascii_uppercase
  words = ("Queen", "Prince", "England", "Army", "##ada")
  return [*vocabulary.pieces(), *capitals, "ë", "##ë", "ó", "##ó", *words]


def main() -> None:
  """Replaces the folder."""
  shutil.rmtree(OUTPUT_DIR, ignore_errors=True)
  with tempfile.TemporaryDirectory() as folder:
    for name, pieces in (
      ("uncased", vocabulary.pieces()),
      ("cased", _cased_pieces()),
    ):
      path = vocabulary.write_vocabulary(Path(folder), pieces)
      make_tagger(
        OUTPUT_DIR / name,
        path,
        sentences=_SENTENCES,
        cased=name == "cased",
        model=_MODEL,
      )


if __name__ == "__main__":
  main()
