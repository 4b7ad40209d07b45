"""Retrieval of judged documents, from a folder in the format of BEIR.

    corpus.jsonl       {"_id": …, "title": …, "text": …}
    queries.jsonl      {"_id": …, "text": …}
    qrels/SPLIT.tsv    query-id, corpus-id and score (a grade), with this header

The corpus of the run is what `build_corpus --input=DIR/corpus.jsonl` makes, so
that the documents of its blocks have BEIR's ids. A document of several blocks
has the score of its best one (MaxP; Dai & Callan 2019). The figures are those
of trec_eval, and as in BEIR's own evaluation a document with the query's own id
is left out.
"""

import dataclasses
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from etils import epath

from realm_jax.console import Progress
from realm_jax.corpus.documents import block_id
from realm_jax.corpus.store import Corpus
from realm_jax.evaluation.outputs import EvaluationShard, Figures, Line
from realm_jax.evaluation.run import Retrieved, Run, RunConfig
from realm_jax.evaluation.scores import NUM_DOCUMENTS, summarize
from realm_jax.indexes.protocol import IndexConfig
from realm_jax.settings import PositiveInt
from realm_jax.storage.access import require_readable
from realm_jax.storage.paths import list_names

_HEADER = ["query-id", "corpus-id", "score"]
# More blocks are searched by this factor until they have enough documents.
_MORE_BLOCKS = 4

# Finds the blocks of texts, or all, if there are fewer than so many.
Search = Callable[[Sequence[str], int], Retrieved]


class BeirError(ValueError):
  """A folder that is not in BEIR's format, or not of the corpus."""


class JudgedQuery(NamedTuple):
  """A query, and the grades of the documents that were judged for it."""

  id: str
  text: str
  grades: Mapping[str, int]


def read_queries(
  directory: epath.PathLike, split: str = "test"
) -> list[JudgedQuery]:
  """Reads the judged queries of a folder, in the order of their file.

  Raises:
    BeirError: A file is missing, empty or malformed, or the judgements name
      queries that the folder does not have.
    StoreAccessError: A bucket cannot be read.
  """
  require_readable(directory)
  directory = epath.Path(directory)
  qrels, path = directory / "qrels", directory / "queries.jsonl"
  grades = _grades(qrels, split)
  lines = path.read_bytes().rstrip().splitlines() if path.exists() else []
  if not lines:
    raise BeirError(f"{path} is missing or empty; want a query a line")
  queries = []
  for number, line in enumerate(lines, start=1):
    try:
      row = json.loads(line)
      key, text = str(row["_id"]), row["text"]
      if key in grades and not text.strip():
        raise ValueError("no text")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
      raise BeirError(
        f'{path}:{number}: {error!r}; want {{"_id": …, "text": …}}'
      ) from None
    if key in grades:
      queries.append(JudgedQuery(key, text, grades[key]))
  if unknown := sorted({*grades} - {query.id for query in queries}):
    raise BeirError(
      f"{qrels} names {len(unknown)} queries that {path} does not have, such "
      f"as {_examples(unknown)}"
    )
  return queries


def _grades(folder: epath.Path, split: str) -> dict[str, dict[str, int]]:
  """Returns the grades of documents by query, of the file of a split."""
  path = folder / f"{split}.tsv"
  if not path.exists():
    splits = [name.removesuffix(".tsv") for name in list_names(folder)]
    raise BeirError(
      f"there is no {path}; want a folder in BEIR's format with the SPLIT "
      f"{split!r}, and this has {', '.join(sorted(splits)) or 'none'}"
    )
  header, *lines = path.read_text().rstrip().splitlines() or [""]
  if header.split("\t") != _HEADER:
    raise BeirError(
      f"{path} begins with {header[:80]!r}; want the header query-id, "
      "corpus-id and score, with tabs between"
    )
  grades: dict[str, dict[str, int]] = {}
  for number, line in enumerate(lines, start=2):
    try:
      query, document, grade = line.split("\t")
      grades.setdefault(query, {})[document] = int(grade)
    except ValueError:
      raise BeirError(
        f"{path}:{number}: {line!r}; want a query, a document and a whole "
        "number, with tabs between"
      ) from None
  if not grades:
    raise BeirError(f"{path} has no judgement after its header")
  return grades


def _examples(names: Sequence[str]) -> str:
  return ", ".join(map(repr, names[:3]))


def require_judged(queries: Sequence[JudgedQuery], corpus: Corpus) -> None:
  """Checks that a corpus has all judged documents.

  Raises:
    BeirError: It lacks some.
  """
  judged = sorted({document for query in queries for document in query.grades})
  ids = [block_id(corpus.name, document, 0) for document in judged]
  is_missing = corpus.rows_of(np.array(ids, np.int64)) < 0
  if missing := [*itertools.compress(judged, is_missing)]:
    raise BeirError(
      f"{len(missing)} of {len(judged)} judged documents are not in the corpus "
      f"{corpus.source}, such as {_examples(missing)}; build it with the "
      "folder's corpus.jsonl as --input, without dropping titles or "
      "duplicates, and take documents without words out of the qrels"
    )


def retrieved_lines(
  queries: Sequence[JudgedQuery],
  corpus: Corpus,
  search: Search,
  *,
  num_searched: int = NUM_DOCUMENTS,
  batch_size: int = 64,
) -> Iterator[Line]:
  """Yields for each query the 100 best documents, as lines of JSON.

  Documents of equal scores come by falling id, as in trec_eval. A line has the
  `id` of the query, the `question`, the grades of judged documents as
  `references`, and the documents as `evidence`.

  Args:
    queries: Queries.
    corpus: Corpus that is searched.
    search: Function that finds blocks.
    num_searched: Number of blocks that are searched at first; more are where
      these have fewer than 100 documents.
    batch_size: Number of queries of one search.
  """
  with Progress("queries", total=len(queries)) as progress:
    for start in range(0, len(queries), batch_size):
      batch = queries[start : start + batch_size]
      texts = [query.text for query in batch]
      while True:
        found = search(texts, num_searched)
        lines = [
          _line(query, corpus, *(part[i] for part in found))
          for i, query in enumerate(batch)
        ]
        fewest = min(len(line["evidence"]) for line in lines)
        if fewest == NUM_DOCUMENTS or num_searched >= corpus.num_blocks:
          break
        num_searched *= _MORE_BLOCKS
      yield from lines
      progress.advance(len(batch))


def search_of(run: Run) -> Search:
  """Returns the search of a run, in the order of its index."""
  return lambda texts, k: run.search(run.encode(texts), k, rescore=False)


def _line(
  query: JudgedQuery, corpus: Corpus, rows: np.ndarray, scores: np.ndarray
) -> Line:
  best: dict[str, float] = {}
  # The first block of a document is its best.
  for row, score in zip(rows.tolist(), scores.tolist(), strict=True):
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
        "score": round(best[document], 6),
        "grade": query.grades.get(document, 0),
      }
      for document in order[:NUM_DOCUMENTS]
    ],
  }


def evaluate_beir(
  *,
  config: RunConfig,
  beir_dir: epath.PathLike,
  split: str = "test",
  batch_size: PositiveInt = 64,
  index: IndexConfig | None = None,
  output_dir: epath.PathLike | None = None,
) -> Figures:
  """Retrieves documents for judged queries with a retriever of any stage.

  Several processes share the queries. Returns the contents of `metrics.json`.

  Args:
    config: Checkpoint to evaluate; `num_searched` blocks are searched at first.
      If it names no generation, the one built from this checkpoint is preferred
      to the one it was trained with.
    beir_dir: Folder in BEIR's format, of whose corpus.jsonl the corpus is made.
    split: Name of a file in its folder qrels, without the ending.
    batch_size: Number of queries of one search.
    index: Index to build over the generation's blocks instead of its own. One
      that needs no vectors, such as BM25, ranks by its own scores.
    output_dir: Directory of `metrics.json` and `retrieved.jsonl`, if any.

  Raises:
    ValueError: A file is missing or does not fit; the message says which.
  """
  shard = EvaluationShard(
    output_dir, config=config, beir_dir=str(beir_dir), split=split, index=index
  )
  queries = read_queries(beir_dir, split)
  own = slice(shard.agreement.index, None, shard.agreement.count)
  with shard.lines("retrieved.jsonl") as lines:
    config = dataclasses.replace(config, reader=None)
    run = Run.load(config, index=index, max_batch=batch_size)
    shard.require_same_run(run)
    require_judged(queries, run.corpus)
    found = retrieved_lines(
      queries[own],
      run.corpus,
      search_of(run),
      num_searched=config.num_searched,
      batch_size=batch_size,
    )
    positions = range(len(queries))[own]
    lines.update(zip(positions, found, strict=True))
  return shard.report(
    lambda: {
      **summarize(list(lines.values())),
      "beir_dir": str(beir_dir),
      "split": split,
    },
    run,
  )
