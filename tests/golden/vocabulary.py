"""The wordpieces of the golden models, and the folders that these lie in."""

import contextlib
import json
import shutil
import string
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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


@contextlib.contextmanager
def replaced(folder: Path) -> Iterator[Path]:
  """Empties a folder of models, and yields another one for vocabularies.

  At the end, JSON files of the models are written anew, each item of their
  outermost list or dictionary on a line. Most would have hundreds of lines.
  """
  shutil.rmtree(folder, ignore_errors=True)
  with tempfile.TemporaryDirectory() as scratch:
    yield Path(scratch)
  for path in sorted(folder.rglob("*.json")):
    content = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(in_few_lines(content), encoding="utf-8")


def in_few_lines(content: list[Any] | dict[str, Any]) -> str:
  """Returns JSON with each item on a line."""
  if isinstance(content, dict):
    pairs = content.items()
    items = [f"{json.dumps(name)}: {_dumped(item)}" for name, item in pairs]
    first, last = "{}"
  else:
    items, (first, last) = [*map(_dumped, content)], "[]"
  return f"{first}\n" + ",\n".join(items) + f"\n{last}\n"


def _dumped(item: Any) -> str:
  return json.dumps(item, ensure_ascii=False)
