"""What the page asks for, read from JSON and held to limits."""

import dataclasses
import json
from typing import Any

from realm_jax.serving.errors import RequestError

_MAX_BLOCK_ID = (1 << 63) - 1


@dataclasses.dataclass(frozen=True)
class Limits:
  """Bounds of what is accepted.

  Attributes:
    request_bytes: Bytes of the body of a request.
    text_characters: Characters of a question or a sentence.
    edits: Number of edited blocks.
    edit_characters: Characters of an edited block.
    waiting: Requests that wait, besides the one that is computed.
  """

  request_bytes: int = 256 * 1024
  text_characters: int = 2000
  edits: int = 16
  edit_characters: int = 10_000
  waiting: int = 64


@dataclasses.dataclass(frozen=True)
class Edit:
  """Another text of a block.

  Attributes:
    block_id: Stable id of the block.
    text: Its new body.
  """

  block_id: int
  text: str


@dataclasses.dataclass(frozen=True)
class Question:
  """A question or a sentence with [MASK], over a corpus with edits.

  Attributes:
    text: Question or sentence.
    edits: Edits of the page, by id.
  """

  text: str
  edits: tuple[Edit, ...] = ()


def parse(body: bytes, limits: Limits) -> Question:
  """Reads `{"text": …, "edits": [{"id": …, "text": …}]}`.

  Raises:
    RequestError: It is not that, or beyond a limit.
  """
  try:
    fields = json.loads(body.decode("utf-8"))
  except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
    raise RequestError(f"the request is not JSON: {error}") from None
  fields = _object(fields, "the request", {"text", "edits"})
  text = _text(fields.get("text"), '"text"', limits.text_characters)
  if not text.strip():
    raise RequestError(
      "there is nothing to ask; write a question or a sentence"
    )
  edits = fields.get("edits", [])
  if not isinstance(edits, list):
    raise RequestError('"edits" is no list; want [{"id": "…", "text": "…"}]')
  if len(edits) > limits.edits:
    raise RequestError(
      f"{len(edits)} blocks are edited, and at most {limits.edits} may be at "
      "once; restore some"
    )
  made = {}
  for item in edits:
    own = _object(item, "an edit", {"id", "text"})
    block_id = _block_id(own.get("id"))
    if block_id in made:
      raise RequestError(f"block {block_id} is edited twice; give one text")
    text_of = _text(
      own.get("text"), "the text of an edit", limits.edit_characters
    )
    made[block_id] = Edit(block_id, text_of)
  return Question(text.strip(), tuple(made[key] for key in sorted(made)))


def _object(value: Any, name: str, known: set[str]) -> dict[str, Any]:
  if not isinstance(value, dict):
    raise RequestError(f"{name} is no JSON object; see the server's docs")
  if unknown := sorted(set(value) - known):
    raise RequestError(
      f"{name} has the field {unknown[0]!r}; want {', '.join(sorted(known))}"
    )
  return value


def _text(value: Any, name: str, max_characters: int) -> str:
  if not isinstance(value, str):
    raise RequestError(f"{name} is {type(value).__name__}; want a string")
  if len(value) > max_characters:
    raise RequestError(
      f"{name} has {len(value):,} characters; at most {max_characters:,} are "
      "read: shorten it"
    )
  # JSON can write what is no character, and what would end a C string.
  if any(0xD800 <= ord(c) <= 0xDFFF or c == "\0" for c in value):
    raise RequestError(
      f"{name} has a character that no text has (U+0000, or "
      "half of a surrogate pair); remove it"
    )
  return value


def _block_id(value: Any) -> int:
  """Reads an id, which is a string, since JavaScript's numbers have 53 bits."""
  is_number = isinstance(value, str) and value.removeprefix("-").isdecimal()
  if not is_number or len(value) > 20 or abs(int(value)) > _MAX_BLOCK_ID:
    raise RequestError(
      f"the id of a block is {str(value)[:40]!r}; want the string that an "
      "answer names it by"
    )
  return int(value)
