"""Filters of blocks by the fields of their documents.

A filter is an object of JSON, such as

    {"language": ["de", "fr"], "date": {"gte": "2020-01-01"}}

It allows a block if each of these fields of the document matches: it equals the
value, or one of a list of values, or is within bounds (`gt`, `gte`, `lt`,
`lte`; texts are compared by characters, which suits ISO 8601 dates). A field
with a list matches if one of its values does. A document without the field
never matches. The fields are the ones that `build_corpus --fields` keeps, and
`title`, `url` and `document` (the document's id).
"""

import functools
import json
import operator
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias

import numpy as np
from jaxtyping import Bool

from realm_jax.corpus import CorpusError
from realm_jax.corpus.shard import Shard
from realm_jax.corpus.store import Corpus
from realm_jax.errors import RealmError
from realm_jax.settings import accepts

# A filter, as in JSON.
Where: TypeAlias = Mapping[str, Any]
# Fields of every corpus, and their arrays.
_TEXTS = {"title": "titles", "url": "urls", "document": "document_ids"}
_BOUNDS: Mapping[str, Callable[[Any, Any], bool]] = {
  "gt": operator.gt,
  "gte": operator.ge,
  "lt": operator.lt,
  "lte": operator.le,
}

# What a filter may say of a field.
_Value: TypeAlias = str | int | float | bool
_Bounds: TypeAlias = dict[Literal["gt", "gte", "lt", "lte"], str | int | float]
_Condition: TypeAlias = _Value | list[_Value] | _Bounds


def allowed_rows(corpus: Corpus, where: Where) -> Bool[np.ndarray, " N"]:
  """Returns whether a filter allows each block of a corpus.

  Raises:
    RealmError: The filter is malformed, has a field that the corpus does not
      keep, or allows no block.
  """
  if not where:
    raise RealmError('the filter is empty; want {"language": "de"}, say')
  return _allowed_rows(corpus, json.dumps(where, sort_keys=True))


@functools.lru_cache(maxsize=16)
def _allowed_rows(corpus: Corpus, text: str) -> Bool[np.ndarray, " N"]:
  """Returns the rows of a filter in JSON. Cached, as clients repeat filters."""
  where = json.loads(text)
  _check(where, corpus)
  masks = [_allowed(shard, where)[shard.kept] for shard in corpus.shards]
  allowed = np.concatenate(masks)
  if not allowed.any():
    raise RealmError(f"the filter {text} lets no block through")
  return allowed


def _check(where: Where, corpus: Corpus) -> None:
  known = [*corpus.fields, *_TEXTS]
  if unknown := where.keys() - {*known}:
    raise CorpusError(
      f"{corpus.source} keeps no field {sorted(unknown)}; it has "
      f"{', '.join(known)}: build it with --fields={','.join(sorted(unknown))}"
    )
  for name, condition in where.items():
    if not (accepts(_Condition, condition) and condition != {}):
      raise RealmError(
        f"the filter of {name!r} is {condition}; want {', '.join(_BOUNDS)}, "
        "each with a text or a number, or else a value, or a list of values"
      )


def _allowed(shard: Shard, where: Where) -> Bool[np.ndarray, " p"]:
  """Returns whether each position of a shard is allowed."""
  count = len(shard.array("document_starts")) - 1
  allowed = np.ones(count, bool)
  kept = {name: where[name] for name in where.keys() - _TEXTS.keys()}
  for name in where.keys() & _TEXTS.keys():
    texts = (
      shard.item(_TEXTS[name], number).tobytes().decode()
      for number in range(count)
    )
    allowed &= [_fits(text, where[name]) for text in texts]
  # Other fields are parsed only for blocks that are still allowed.
  for number in np.flatnonzero(allowed).tolist() if kept else ():
    fields = shard.fields(number)
    allowed[number] = all(
      _fits(fields.get(name), condition) for name, condition in kept.items()
    )
  return np.repeat(allowed, np.diff(shard.array("document_starts")))


def _fits(value: Any, condition: Any) -> bool:
  """Returns whether a field matches a filter."""
  if isinstance(value, list):
    return any(_fits(one, condition) for one in value)
  if isinstance(condition, list):
    return any(_fits(value, one) for one in condition)
  if not isinstance(condition, dict):
    # JSON's `true` is not the number 1.
    return isinstance(value, bool) == isinstance(condition, bool) and (
      value == condition
    )
  # Texts and numbers are not compared with each other.
  return all(
    isinstance(bound, str) == isinstance(value, str)
    and value is not None
    and _BOUNDS[name](value, bound)
    for name, bound in condition.items()
  )
