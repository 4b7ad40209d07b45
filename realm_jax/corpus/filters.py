"""Which blocks of a corpus a filter lets through.

A filter is an object of JSON, such as

    {"language": ["de", "fr"], "date": {"gte": "2020-01-01"}}

which lets a block through if each of the fields of its document fits: it equals
the value, or one of a list of values, or is within bounds (`gt`, `gte`, `lt`,
`lte`; texts are compared by their characters, which suits dates of ISO 8601). A
field that has a list fits if one of its values does, and a document without the
field never. Fields are those that `build_corpus --fields` keeps, with `title`,
`url` and `document`, the document's id.
"""

import functools
import json
import operator
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Bool

from realm_jax.corpus import CorpusError
from realm_jax.corpus.shard import Shard
from realm_jax.corpus.store import Corpus
from realm_jax.errors import RealmError

# A filter as JSON holds it.
Where: TypeAlias = Mapping[str, Any]
# Fields that every corpus has, and their arrays.
_TEXTS = {"title": "titles", "url": "urls", "document": "document_ids"}
_BOUNDS: Mapping[str, Callable[[Any, Any], bool]] = {
  "gt": operator.gt,
  "gte": operator.ge,
  "lt": operator.lt,
  "lte": operator.le,
}


def allowed_rows(corpus: Corpus, where: Where) -> Bool[np.ndarray, " N"]:
  """Returns whether a filter lets each block of a corpus through.

  Raises:
    RealmError: The filter is none, names a field that the corpus does not keep,
      or lets no block through.
  """
  if not where:
    raise RealmError('the filter is empty; want {"language": "de"}, say')
  return _allowed_rows(corpus, json.dumps(where, sort_keys=True))


@functools.lru_cache(maxsize=16)
def _allowed_rows(corpus: Corpus, text: str) -> Bool[np.ndarray, " N"]:
  """Returns the rows of a filter in JSON; clients send few, many times."""
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
  for name, wanted in where.items():
    if not isinstance(wanted, dict):
      continue
    if not wanted.keys() <= _BOUNDS.keys() or not all(
      isinstance(bound, str | int | float) for bound in wanted.values()
    ):
      raise RealmError(
        f"the filter of {name!r} is {wanted}; want {', '.join(_BOUNDS)}, each "
        "with a text or a number"
      )


def _allowed(shard: Shard, where: Where) -> Bool[np.ndarray, " p"]:
  """Returns whether each position of a shard is let through."""
  count = len(shard.array("document_starts")) - 1
  allowed = np.ones(count, bool)
  kept = {name: where[name] for name in where.keys() - _TEXTS.keys()}
  for name in where.keys() & _TEXTS.keys():
    texts = (
      shard.item(_TEXTS[name], number).tobytes().decode()
      for number in range(count)
    )
    allowed &= [_fits(text, where[name]) for text in texts]
  # The others are looked at only where that is still needed.
  for number in np.flatnonzero(allowed).tolist() if kept else ():
    fields = shard.fields(number)
    allowed[number] = all(
      _fits(fields.get(name), wanted) for name, wanted in kept.items()
    )
  return np.repeat(allowed, np.diff(shard.array("document_starts")))


def _fits(value: Any, wanted: Any) -> bool:
  """Returns whether a field fits a filter."""
  if isinstance(value, list):
    return any(_fits(one, wanted) for one in value)
  if isinstance(wanted, list):
    return any(_fits(value, one) for one in wanted)
  if not isinstance(wanted, dict):
    # JSON's true is no number.
    return isinstance(value, bool) == isinstance(wanted, bool) and (
      value == wanted
    )
  # A text is not compared with a number.
  return all(
    isinstance(bound, str) == isinstance(value, str)
    and value is not None
    and _BOUNDS[name](value, bound)
    for name, bound in wanted.items()
  )
