"""The blocks of the paths that questions are given with."""

from collections.abc import Sequence

import numpy as np

from realm_jax.answers.occurrences import AnswersInBlocks
from realm_jax.corpus.links import neighbours
from realm_jax.corpus.store import Corpus
from realm_jax.errors import RealmError
from realm_jax.inputs.batch import Batch, QuestionAnswers


def gold_paths(batch: Batch, corpus: Corpus, max_hops: int) -> list[list[int]]:
  """Returns the rows of each question's path; none if a document is missing.

  Of the last document it is the first block that contains an answer, and of the
  others the first that links to the next one of the path; or else the first.

  Raises:
    RealmError: A path is longer than `max_hops`.
  """
  search, paths = AnswersInBlocks(corpus), list[list[int]]()
  names = batch.texts("question_id")
  for name, ids, answers in zip(
    names, batch.host["gold"], batch.answers, strict=True
  ):
    documents = [corpus.document_rows(one.decode()) for one in ids if one]
    if len(documents) > max_hops:
      raise RealmError(
        f"the path of the question {name} has {len(documents)} documents, and "
        f"a path {max_hops} at most; raise MAX_HOPS"
      )
    path = list[int]()
    for rows in reversed(documents) if all(map(len, documents)) else ():
      path = [_block_of(rows, path, answers, search), *path]
    paths.append(path)
  return paths


def _block_of(
  rows: np.ndarray,
  following: Sequence[int],
  answers: QuestionAnswers,
  search: AnswersInBlocks,
) -> int:
  """Returns the block of a document that is on a path, before others of it."""
  is_one = np.zeros(len(rows), bool)
  if not following:
    is_one = search.contained(answers, rows)
  elif search.corpus.has_links:
    targets = neighbours(search.corpus, rows, False)
    is_one = np.array([following[0] in own for own in targets])
  return int(rows[is_one.argmax()])
