"""Reads the requests of clients, and refuses malformed ones."""

import asyncio
import json
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request

from realm_jax.errors import RealmError
from realm_jax.feedback.log import Rewards, checked_rewards

# Limits of a request: number of bytes, characters of an edited block, and
# edited blocks; for programs, number of texts, blocks for each text, and blocks
# in total.
MAX_BYTES = 2 << 20
MAX_EDIT_CHARACTERS = 10_000
MAX_EDITS = 16
MAX_TEXTS = 4096
MAX_BLOCKS = 1000
MAX_RETRIEVED = 256_000
# Number of characters of a question or a sentence.
MAX_CHARACTERS = 2000
# Time limit for receiving a request.
_BODY_SECONDS = 30.0


class RequestError(RealmError):
  """A request that is malformed, exceeds a limit, or fits none of the runs."""


async def fields_of(request: Request, name: str) -> dict[str, Any]:
  """Returns the fields of a JSON request, which must have the wanted one."""
  kind = request.headers.get("content-type", "").partition(";")[0].strip()
  if kind.lower() != "application/json":
    # A page of another site can send forms here, but no JSON.
    raise HTTPException(415, "send JSON, with Content-Type: application/json")
  body = bytearray()
  try:
    async with asyncio.timeout(_BODY_SECONDS):
      async for chunk in request.stream():
        body += chunk
        # Counted here, because the header may be missing or wrong.
        if len(body) > MAX_BYTES:
          raise HTTPException(
            413,
            f"the request has more than {MAX_BYTES:,} bytes; shorten the text, "
            "or restore some blocks",
          )
  except TimeoutError:
    raise HTTPException(
      408, f"the request did not arrive within {_BODY_SECONDS:.0f} s"
    ) from None
  try:
    fields = json.loads(body.decode("utf-8"))
  except (ValueError, RecursionError) as error:
    raise RequestError(f"the request is no JSON: {error}") from None
  if not isinstance(fields, dict) or name not in fields:
    raise RequestError(
      f"the request has no field {name!r}, as in {{{json.dumps(name)}: …}}"
    )
  return fields


def filter_of(fields: dict[str, Any]) -> dict[str, Any] | None:
  """Returns the filter of a request, if it has one."""
  where = fields.get("where")
  if where is not None and not isinstance(where, dict):
    raise RequestError(
      f'where={where!r}; want an object such as {{"language": "de"}}'
    )
  return where


def flag_of(fields: dict[str, Any], name: str, *, default: bool) -> bool:
  """Returns a Boolean field of a request."""
  value = fields.get(name)
  value = default if value is None else value
  if not isinstance(value, bool):
    raise RequestError(f"{name}={value!r}; want true or false")
  return value


def texts_of_blocks(blocks: Any) -> dict[str, str]:
  """Returns the texts of blocks by the blocks' names."""
  try:
    return {
      checked(block["id"]): checked(block["text"], MAX_EDIT_CHARACTERS)
      for block in blocks
    }
  except (KeyError, TypeError) as error:
    raise RequestError(
      'want blocks as [{"id": "…", "text": "…"}], with ids from an answer: '
      f"{error!r}"
    ) from None


def rewards_of(sent: Any) -> list[tuple[str, Rewards]]:
  """Returns pairs of a request ID and its rewards.

  Raises:
    RequestError, FeedbackError: They are malformed, or there are too many.
  """
  if not isinstance(sent, list) or not 1 <= len(sent) <= MAX_TEXTS:
    raise RequestError(
      f"want a list of 1 to {MAX_TEXTS} objects "
      '{"request_id": "…", "rewards": …} as feedback'
    )
  pairs = list[tuple[str, Rewards]]()
  for entry in sent:
    if not isinstance(entry, dict) or not {"request_id", "rewards"} <= {*entry}:
      raise RequestError(
        f"{entry!r:.60} is no feedback; want "
        '{"request_id": "…", "rewards": …}'
      )
    name, rewards = checked(entry["request_id"]), entry["rewards"]
    if isinstance(rewards, list) and len(rewards) > MAX_BLOCKS:
      raise RequestError(f"{len(rewards)} rewards are more than any list has")
    pairs.append((name, checked_rewards(rewards)))
  return pairs


def checked(text: Any, most: int = MAX_CHARACTERS) -> str:
  """Returns a value if it is a valid text, or raises `RequestError`."""
  if not isinstance(text, str):
    raise RequestError(f"{text!r} is no string")
  if len(text) > most:
    raise RequestError(
      f"a text has {len(text):,} characters; at most {most:,} are read: "
      "shorten it"
    )
  # JSON can encode values that are not characters, and NUL, which ends C
  # strings.
  if any(0xD800 <= ord(c) <= 0xDFFF or c == "\0" for c in text):
    raise RequestError(
      "a text has an invalid character (U+0000, or half of a surrogate pair); "
      "remove it"
    )
  return text
