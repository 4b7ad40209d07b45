"""Measures BM25 in XQuAD's eight languages.

    python -m benchmarks.retrieval --directory=out/xquad

Each language becomes a folder in BEIR's format, `--directory`/LANGUAGE: its
paragraphs are the documents, and a question's own paragraph is the relevant one
(titles, which are English in all, are left out). The corpus has a vocabulary
that was trained on it. gin/runs/eval_beir.gin measures a retriever over such a
folder.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import flags
from benchmarks.data.real_texts import LANGUAGES, TEXTS_DIR, xquad
from realm_jax.console import columns
from realm_jax.corpus.build import build_corpus
from realm_jax.corpus.store import Corpus
from realm_jax.evaluation import beir
from realm_jax.evaluation.scores import summarize
from realm_jax.indexes.bm25 import Bm25Config
from realm_jax.indexes.protocol import Blocks, QueryBatch, SearchResult
from realm_jax.storage.json_files import write_json

_SHOWN = ("num_blocks", "ndcg_at_10", "recall_at_100", "mrr_at_10")


def write_folder(texts_dir: Path, language: str, folder: Path) -> None:
  """Writes a language of XQuAD as a folder in BEIR's format."""
  documents, queries, qrels = [], [], ["query-id\tcorpus-id\tscore"]
  for number, (_, paragraph) in enumerate(xquad(texts_dir, language)):
    documents.append(
      {"_id": str(number), "title": "", "text": paragraph["context"]}
    )
    for row in paragraph["qas"]:
      queries.append({"_id": row["id"], "text": row["question"]})
      qrels.append(f"{row['id']}\t{number}\t1")
  (folder / "qrels").mkdir(parents=True, exist_ok=True)
  (folder / "qrels" / "test.tsv").write_text("\n".join([*qrels, ""]))
  for name, rows in (("corpus", documents), ("queries", queries)):
    lines = "".join(json.dumps(r, ensure_ascii=False) + "\n" for r in rows)
    (folder / f"{name}.jsonl").write_text(lines, encoding="utf-8")


def measure(folder: Path) -> dict[str, Any]:
  """Returns the figures of BM25 over the corpus of a folder."""
  build_corpus(
    [str(folder / "corpus.jsonl")],
    folder / "bm25",
    vocab="train:8000",
    language=folder.name,
    tagger=None,
    overwrite=True,
  )
  corpus = Corpus.open(folder / "bm25")
  index = Bm25Config().build(
    Blocks(
      num_blocks=corpus.num_blocks,
      token_ids=lambda row: corpus.block(row).token_ids,
      vocab_size=corpus.vocab_size,
    )
  )

  def search(texts: Sequence[str], k: int) -> SearchResult:
    found = [
      index.search(
        QueryBatch(np.array([corpus.vocabulary.encode(text)], np.int32)),
        min(k, corpus.num_blocks),
      )
      for text in texts
    ]
    return SearchResult(
      np.concatenate([one.rows for one in found]),
      np.concatenate([one.scores for one in found]),
    )

  queries = beir.read_queries(folder)
  lines = [*beir.retrieved_lines(queries, corpus, search)]
  return summarize(lines) | {"num_blocks": corpus.num_blocks}


def main(argv: Sequence[str] | None = None) -> None:
  """Measures all languages, and prints one table."""
  given = flags.parse(
    __doc__, argv, directory=Path, texts_dir=TEXTS_DIR, languages=LANGUAGES
  )
  result: dict[str, dict[str, Any]] = {}
  for language in given.languages:
    write_folder(given.texts_dir, language, given.directory / language)
    result[language] = measure(given.directory / language)
  rows = [[n, *(own[m] for m in _SHOWN)] for n, own in result.items()]
  print(columns([["language", *_SHOWN], *rows]))
  if given.json:
    write_json(given.json, result)


if __name__ == "__main__":
  main()
