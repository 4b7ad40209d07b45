"""Requests are read, or refused in words."""

import json

import pytest

from realm_jax.serving.errors import RequestError
from realm_jax.serving.requests import Edit, Limits, Question, parse

_LIMITS = Limits(text_characters=20, edits=2, edit_characters=30)


def test_a_request_is_read():
  body = json.dumps(
    {
      "text": " who? ",
      "edits": [{"id": "7", "text": "b"}, {"id": "-12", "text": "ü"}],
    }
  )
  assert parse(body.encode(), _LIMITS) == Question(
    "who?", (Edit(-12, "ü"), Edit(7, "b"))
  )
  assert parse(b'{"text": "who?"}', _LIMITS) == Question("who?")


@pytest.mark.parametrize(
  ("body", "message"),
  [
    (b"who?", "not JSON"),
    (b'{"text": "\xff"}', "not JSON"),
    (b"[" * 100_000, "not JSON"),
    (b'["who?"]', "no JSON object"),
    (b'{"question": "who?"}', "the field 'question'; want edits, text"),
    (b"{}", '"text" is NoneType; want a string'),
    (b'{"text": " "}', "nothing to ask"),
    (b'{"text": "%s"}' % (b"a" * 21), "21 characters; at most 20"),
    (b'{"text": "\\ud800"}', "a character that no text has"),
    (b'{"text": "a\\u0000"}', "a character that no text has"),
    (b'{"text": "a", "edits": {}}', '"edits" is no list'),
    (b'{"text": "a", "edits": [1]}', "an edit is no JSON object"),
    (b'{"text": "a", "edits": [{"id": 1, "text": ""}]}', "the id of a block"),
    (
      b'{"text": "a", "edits": [{"id": "99999999999999999999", "text": ""}]}',
      "the id of a block is '99999999999999999999'",
    ),
    (
      json.dumps(
        {"text": "a", "edits": [{"id": str(i), "text": ""} for i in range(3)]}
      ).encode(),
      "3 blocks are edited, and at most 2",
    ),
    (
      b'{"text": "a", "edits": [{"id": "1", "text": ""},'
      b' {"id": "1", "text": "b"}]}',
      "edited twice",
    ),
    (
      b'{"text": "a", "edits": [{"id": "1", "text": "%s"}]}' % (b"a" * 31),
      "the text of an edit has 31 characters",
    ),
  ],
)
def test_a_request_that_is_none_is_refused(body, message):
  with pytest.raises(RequestError) as caught:
    parse(body, _LIMITS)
  assert message in str(caught.value)
