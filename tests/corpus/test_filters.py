"""Filters of blocks by the fields of their documents."""

import numpy as np
import pytest

from realm_jax.corpus import InputError
from realm_jax.corpus.filters import allowed_rows
from realm_jax.errors import RealmError

_ROWS = [
  {"id": "a", "title": "Velt", "text": "Ada. Ada.", "year": 1907},
  {"id": "b", "title": "Velt", "text": "Ada.", "year": "1907", "url": "u/b"},
  {"id": "c", "title": "Ada", "text": "Velt.", "date": "2020-05-01"},
  {"id": "d", "title": "Ada", "text": "was in.", "tags": ["x", 3, True]},
]
_FIELDS = ["year", "date", "tags"]


@pytest.fixture
def corpus(build):
  # A block for each sentence.
  return build(_ROWS, fields=_FIELDS, block_length=8, shard_bytes=1)


def test_blocks_of_documents_whose_fields_fit_are_let_through(corpus):
  names = [corpus.block(i).document_id for i in range(corpus.num_blocks)]
  for where, documents in (
    ({"year": 1907}, "a"),
    ({"year": [1907, "1907"]}, "ab"),
    ({"year": {"gte": 1907, "lt": 1908}}, "a"),
    ({"date": {"gt": "2020-01-01"}}, "c"),
    ({"tags": "x"}, "d"),
    ({"tags": {"gt": 2}}, "d"),
    ({"title": "Ada"}, "cd"),
    ({"title": "Ada", "tags": [7, 3]}, "d"),
    ({"url": "u/b"}, "b"),
    ({"document": ["a", "c"]}, "ac"),
  ):
    is_allowed = [name in documents for name in names]
    assert allowed_rows(corpus, where).tolist() == is_allowed, where


def test_what_no_filter_can_be_is_refused(corpus, build):
  for where, message in (
    ({}, "the filter is empty"),
    ({"language": "de"}, "--fields=language"),
    ({"year": {"like": 3}}, "want gt, gte"),
    ({"year": {"gt": None}}, "a text or a number"),
    ({"year": {"gt": [1]}}, "a text or a number"),
    # They would let documents without the field through, or end in a crash.
    ({"year": {}}, "or else a value"),
    ({"year": None}, "or else a value"),
    ({"year": [{"like": 3}]}, "or a list of values"),
    ({"year": 3}, "lets no block through"),
  ):
    with pytest.raises(RealmError, match=message):
      allowed_rows(corpus, where)
  nested = [{"title": "Velt", "text": "Ada.", "year": {"at": 3}}]
  with pytest.raises(InputError, match=r"'year' is \{'at': 3\}; a field"):
    build(nested, folder="nested", fields=["year"])


def test_an_update_changes_fields(corpus, update):
  changed = {**_ROWS[1], "year": 1908}
  update([changed])
  updated = corpus.newest()
  (row,) = np.flatnonzero(allowed_rows(updated, {"year": 1908})).tolist()
  assert updated.block(row).document_id == "b"
  assert updated.fields == tuple(_FIELDS)
