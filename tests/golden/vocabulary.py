"""The wordpieces of the golden models: whole words, letters, and marks."""

import string
from pathlib import Path

_SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_MARKS = ("!", "'", "(", ")", ",", "-", ".", "?")
_WORDS = """
  album army battle book born bridge britain built canal castle castles century
  church city coast college country court crown died east emperor england europe
  family father field first forest founded france german great harbour house
  island king lake land later london long married mill moon mother mountain name
  north novel ocean opera palace paper paris people poet port prince queen
  railway red river road roman rome school sea second ship ships small son song
  south state station stone story street temple theatre third tower town train
  tree university valley village wall war water west white wife wind winter won
  wood world writer written wrote year years york young
""".split()


def pieces() -> list[str]:
  """All pieces, in the order of their ids."""
  letters = string.ascii_lowercase
  continued = (f"##{letter}" for letter in letters)
  return [*_SPECIALS, *_MARKS, *letters, *continued, "##ing", *_WORDS]


def write_vocabulary(folder: Path, lines: list[str] | None = None) -> Path:
  """Writes `vocab.txt`, of `pieces` by default; returns its path."""
  path = folder / "vocab.txt"
  path.write_text("\n".join(lines or pieces()) + "\n", encoding="utf-8")
  return path
