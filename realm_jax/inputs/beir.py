"""Judged queries, from a folder in the format of BEIR.

corpus.jsonl       {"_id": …, "title": …, "text": …}
queries.jsonl      {"_id": …, "text": …}
qrels/SPLIT.tsv    query-id, corpus-id and score (a grade), with this header
"""

from collections.abc import Mapping
from typing import NamedTuple

from absl import logging
from etils import epath

from realm_jax.errors import RealmError
from realm_jax.storage.access import require_readable
from realm_jax.storage.json_files import read_lines, read_object

_HEADER = ["query-id", "corpus-id", "score"]
_QUERIES = 'queries.jsonl of a folder in BEIR\'s format, {"_id": …, "text": …}'
_JUDGEMENTS = (
  "qrels/SPLIT.tsv of a folder in BEIR's format: a query, a document and its "
  "grade, between tabs"
)


class BeirError(RealmError):
  """A folder is not in BEIR's format, or does not match the corpus."""


class JudgedQuery(NamedTuple):
  """A query, and the grades of its judged documents."""

  id: str
  text: str
  grades: Mapping[str, int]


def read_queries(
  directory: epath.PathLike, split: str = "test"
) -> list[JudgedQuery]:
  """Reads the judged queries of a folder, in the order of their file.

  Judgements of unknown queries are left out, with a warning.

  Raises:
    BeirError: A file is missing, empty or malformed, or no query is judged.
  """
  require_readable(directory)
  path, qrels = beir_files(directory, split)
  grades: dict[str, dict[str, int]] = {}

  def judge(line: bytes) -> None:
    fields = line.decode().split("\t")
    if fields != _HEADER:
      query, document, grade = fields
      grades.setdefault(query, {})[document] = int(grade)

  def query_of(line: bytes) -> JudgedQuery:
    row = read_object(line)
    name, text = str(row["_id"]), row["text"]
    if not isinstance(text, str):
      raise RealmError(f"the text is {text!r}")
    return JudgedQuery(name, text, grades.get(name, {}))

  read_lines(qrels, judge, wanted=_JUDGEMENTS, error=BeirError)
  every = read_lines(path, query_of, wanted=_QUERIES, error=BeirError)
  queries = [query for query in every if query.grades]
  unknown = sorted({*grades} - {query.id for query in queries})
  if not queries:
    raise BeirError(
      f"{qrels} judges no query of {path}, and {len(unknown)} that it does not "
      f"have, such as {unknown[:3]}"
    )
  if unknown:
    logging.warning(
      "%s judges %d queries that %s does not have, such as %s; they are left "
      "out",
      *(qrels, len(unknown), path, unknown[:3]),
    )
  return queries


def beir_files(directory: epath.PathLike, split: str) -> tuple[epath.Path, ...]:
  """Returns the paths of the queries and of their judgements."""
  folder = epath.Path(directory)
  return folder / "queries.jsonl", folder / "qrels" / f"{split}.tsv"
