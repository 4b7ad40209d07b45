"""Retrieval of judged documents, from a folder in the format of BEIR.

    corpus.jsonl       {"_id": …, "title": …, "text": …}
    queries.jsonl      {"_id": …, "text": …}
    qrels/SPLIT.tsv    query-id, corpus-id and score (a grade), with this header

Build the corpus of the run with `build_corpus --input=DIR/corpus.jsonl`, so
that documents have BEIR's ids. A document with several blocks has the score of
its best one (MaxP; Dai & Callan 2019). The metrics agree with trec_eval. As in
BEIR's own evaluation, a document with the query's own id is left out.
OUTPUT_DIR/run.trec and qrels.trec are inputs for trec_eval.
"""

import dataclasses
import functools
import itertools
import json
import re
from collections.abc import Callable, Iterator, Sequence
from urllib.parse import quote

import numpy as np
from absl import logging
from etils import epath

from realm_jax.console import Progress
from realm_jax.corpus.documents import block_id
from realm_jax.corpus.store import NULL_ROW, Corpus
from realm_jax.evaluation.config import RunConfig
from realm_jax.evaluation.outputs import EvaluationShard, Metrics
from realm_jax.evaluation.run import TrainedRun
from realm_jax.evaluation.scores import (
  NUM_DOCUMENTS,
  RETRIEVED,
  Line,
  with_first_order,
)
from realm_jax.indexes.protocol import IndexConfig, SearchResult
from realm_jax.inputs.beir import (
  BeirError,
  JudgedQuery,
  beir_files,
  read_queries,
)
from realm_jax.settings import PositiveInt
from realm_jax.storage.atomic import atomic_text_file
from realm_jax.storage.line_files import lines_of

_RUN, _QRELS = "run.trec", "qrels.trec"
# Growth factor of the number of blocks, until they have enough documents.
_MORE_BLOCKS = 4

# Function from texts and k to the k best blocks of each text, or all blocks.
Search = Callable[[Sequence[str], int], SearchResult]


def count_missing(queries: Sequence[JudgedQuery], corpus: Corpus) -> int:
  """Returns the number of judged documents that a corpus lacks, with a warning.

  They cannot be found, but count as relevant.

  Raises:
    BeirError: The corpus lacks all of them.
  """
  judged = sorted({document for query in queries for document in query.grades})
  ids = [block_id(corpus.name, document, 0) for document in judged]
  is_missing = corpus.rows_of(np.array(ids, np.int64)) < 0
  missing = [*itertools.compress(judged, is_missing)]
  problem = (
    f"{len(missing)} of {len(judged)} judged documents are not in the corpus "
    f"{corpus.source}, such as {missing[:3]}; if the folder's corpus.jsonl has "
    "them, build the corpus with it as --input, without dropping titles or "
    "duplicates"
  )
  if len(missing) == len(judged):
    raise BeirError(problem)
  if missing:
    logging.warning("%s. They count as not found.", problem)
  return len(missing)


def _search(run: TrainedRun, texts: Sequence[str], k: int) -> SearchResult:
  """Searches for texts; one that cannot be encoded finds null blocks."""
  token_ids, refused = run.encode_each(texts)
  good = [number for number in range(len(texts)) if number not in refused]
  k = min(k, run.snapshot.num_blocks)
  rows = np.full((len(texts), k), NULL_ROW, np.int32)
  scores = np.zeros((len(texts), k), np.float32)
  if good:
    result = run.search(token_ids[good], k)
    rows[good], scores[good] = result.rows, result.scores
  return SearchResult(rows, scores)


def retrieved_batches(
  queries: Sequence[JudgedQuery],
  corpus: Corpus,
  search: Search,
  *,
  num_searched: int = NUM_DOCUMENTS,
  batch_size: int = 64,
  first: Search | None = None,
) -> Iterator[tuple[list[Line], int]]:
  """Yields the 100 best documents of each query, as lines of JSON.

  Documents with equal scores are ordered by falling id, as in trec_eval. A line
  has the `id` of the query, the `question`, the grades of judged documents as
  `references`, and the documents as `evidence`. A search is for `num_searched`
  blocks at first, and for more if these have fewer than 100 documents. Each
  batch of lines comes with the number of the next query. With a cross-encoder,
  lines also have the order of the `first` search.
  """

  def lines_of(
    search: Search, batch: Sequence[JudgedQuery], number: int
  ) -> list[Line]:
    result = search([query.text for query in batch], number)
    each = zip(batch, result.rows, result.scores, strict=True)
    return [_line(query, corpus, rows, scores) for query, rows, scores in each]

  with Progress("queries", total=len(queries)) as progress:
    for start in range(0, len(queries), batch_size):
      batch = queries[start : start + batch_size]
      while True:
        lines = lines_of(search, batch, num_searched)
        # A query that cannot be encoded finds no more among all blocks.
        numbers = filter(None, (len(line["evidence"]) for line in lines))
        fewest = min(numbers, default=NUM_DOCUMENTS)
        if fewest == NUM_DOCUMENTS or num_searched >= corpus.num_blocks:
          break
        num_searched *= _MORE_BLOCKS
      if first is not None:
        before = lines_of(first, batch, num_searched)
        lines = [
          with_first_order(line, one["evidence"])
          for line, one in zip(lines, before, strict=True)
        ]
      yield lines, num_searched
      progress.advance(len(batch))


def _line(
  query: JudgedQuery, corpus: Corpus, rows: np.ndarray, scores: np.ndarray
) -> Line:
  best: dict[str, float] = {}
  # The first block of a document has the best score.
  for row, score in zip(rows.tolist(), scores.tolist(), strict=True):
    if row != NULL_ROW:
      best.setdefault(corpus.block(row).document_id, score)
  best.pop(query.id, None)
  order = sorted(best, key=lambda name: (best[name], name), reverse=True)
  return {
    "id": query.id,
    "question": query.text,
    "references": query.grades,
    "evidence": [
      {
        "document": document,
        # All digits of a float32, because rounded scores might be equal.
        "score": float(f"{best[document]:.9g}"),
        "grade": query.grades.get(document, 0),
      }
      for document in order[:NUM_DOCUMENTS]
    ],
  }


def _write_trec(queries: Sequence[JudgedQuery], retrieved: epath.Path) -> None:
  """Writes a file of retrieved documents, and the judgements, for trec_eval."""
  with atomic_text_file(retrieved.parent / _QRELS) as file:
    for query in queries:
      for document, grade in query.grades.items():
        file.write(f"{_field(query.id)} 0 {_field(document)} {grade}\n")
  with atomic_text_file(retrieved.parent / _RUN) as file:
    for line in map(json.loads, lines_of(retrieved)):
      for rank, found in enumerate(line["evidence"], 1):
        names = f"{_field(line['id'])} Q0 {_field(found['document'])}"
        file.write(f"{names} {rank} {found['score']} realm_jax\n")


def _field(name: str) -> str:
  """Returns an id with white space escaped as in a URL (`%20`)."""
  return re.sub(r"\s", lambda space: quote(space[0]), name)


def evaluate_beir(
  *,
  config: RunConfig,
  beir_dir: epath.PathLike,
  split: str = "test",
  batch_size: PositiveInt = 64,
  index: IndexConfig | str | None = None,
  output_dir: epath.PathLike | None = None,
) -> Metrics:
  r"""Retrieves documents for judged queries with a retriever of any stage.

  Several processes share the queries. Returns the contents of `metrics.json`.

  Args:
    config: Checkpoint to evaluate; a search is for `num_searched` blocks at
      first. Without a configured snapshot, the snapshot built from this
      checkpoint is preferred to the one it was trained with.
    beir_dir: Folder in BEIR's format; its corpus.jsonl must be the source of
      the corpus.
    split: Name of a file in the folder qrels, without suffix.
    batch_size: Number of queries in one search.
    index: Index to build over the snapshot's blocks, to be searched instead of
      its own. An index without vectors, such as BM25, ranks by its own scores.
    output_dir: Directory of `metrics.json`, `retrieved.jsonl`, `run.trec` and
      `qrels.trec`, if any.

  Raises:
    ValueError: A file is missing or does not fit; the message says which.

  Example:
    >>> folder = epath.Path("judged")
    >>> (folder / "qrels").mkdir(parents=True)
    >>> query = '{"_id": "q", "text": "where was Ada born?"}'
    >>> _ = (folder / "queries.jsonl").write_text(query)
    >>> judgement = "\t".join(["q", "p0", "1"])
    >>> _ = (folder / "qrels" / "test.tsv").write_text(judgement)
    >>> found = evaluate_beir(config=run.config, beir_dir=folder, index="bm25")
    >>> found["ndcg_at_10"]
    1.0
  """
  shard = EvaluationShard(
    output_dir,
    config=config,
    beir_dir=str(beir_dir),
    split=split,
    batch_size=batch_size,
    index=index,
  )
  queries = read_queries(beir_dir, split)
  of_process = slice(shard.agreement.index, None, shard.agreement.count)
  config = dataclasses.replace(config, reader=None)
  run = shard.load(config, index=index, max_batch=batch_size)
  _, refused = run.encode_each([query.text for query in queries])
  if refused:
    logging.warning(
      "%d of %d queries cannot be searched for, and find nothing: %s, because "
      "%s",
      *(len(refused), len(queries), queries[min(refused)].id),
      refused[min(refused)],
    )
  lacking = {
    "unsearchable_queries": len(refused),
    "missing_documents": count_missing(queries, run.corpus),
  }
  parts = shard.open_parts(run, beir_files(beir_dir, split))
  done, num_searched = parts.state or (0, config.num_searched)
  batches = retrieved_batches(
    queries[of_process][done:],
    run.corpus,
    functools.partial(_search, run),
    num_searched=num_searched,
    batch_size=batch_size,
    first=functools.partial(_search, run.restricted(None, rerank=False))
    if run.reranks
    else None,
  )
  for lines, num_searched in batches:
    positions = range(len(queries))[of_process][done : done + len(lines)]
    done += len(lines)
    parts.add(dict(zip(positions, lines, strict=True)), [done, num_searched])
  described: Metrics = {"beir_dir": str(beir_dir), "split": split, **lacking}
  return shard.report_parts(
    *(RETRIEVED, parts, described, run),
    written=functools.partial(_write_trec, queries),
  )
