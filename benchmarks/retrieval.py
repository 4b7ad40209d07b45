"""Measures BM25, and optionally a retriever, in XQuAD's eight languages.

    python -m benchmarks.retrieval --directory=out/xquad
    python -m benchmarks.retrieval --directory=out/xquad --model_dir=runs/minilm

Each language becomes a folder in BEIR's format, `--directory`/LANGUAGE. Its
paragraphs are the documents, and a question's own paragraph is relevant.
Titles, which are always English, are omitted. BM25's corpus has a vocabulary
that was trained on it. The corpus of the retriever in `--model_dir`, such as an
imported multilingual model, has the retriever's vocabulary.
"""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import flags
from benchmarks.data.real_texts import LANGUAGES, TEXTS_DIR, xquad
from harness.jobs import Macro, gin_command
from realm_jax.console import columns
from realm_jax.corpus.build import build_corpus
from realm_jax.corpus.store import Corpus
from realm_jax.evaluation import beir
from realm_jax.evaluation.outputs import METRICS
from realm_jax.evaluation.scores import question_scores, summarize
from realm_jax.indexes.bm25 import Bm25Config
from realm_jax.indexes.protocol import Blocks, QueryBatch, SearchResult

_RECIPE = "gin/runs/eval_beir.gin"
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


def _corpus(folder: Path, name: str, vocab: str) -> Corpus:
  build_corpus(
    [str(folder / "corpus.jsonl")],
    folder / name,
    vocab=vocab,
    language=folder.name,
    tagger=None,
    overwrite=True,
  )
  return Corpus.open(folder / name)


def measure_bm25(folder: Path) -> dict[str, Any]:
  """Returns the metrics of BM25 for the corpus of a folder."""
  corpus = _corpus(folder, "bm25", "train:8000")
  blocks = Blocks(
    num_blocks=corpus.num_blocks,
    token_ids=lambda row: corpus.block(row).token_ids,
    vocab_size=corpus.vocab_size,
  )
  index = Bm25Config().build(blocks)

  def search(texts: Sequence[str], k: int) -> SearchResult:
    encoded = [corpus.vocabulary.encode(text) for text in texts]
    results = [
      index.search(QueryBatch(np.array([one])), min(k, corpus.num_blocks))
      for one in encoded
    ]
    rows, scores = zip(
      *((result.rows, result.scores) for result in results), strict=True
    )
    return SearchResult(np.concatenate(rows), np.concatenate(scores))

  queries = beir.read_queries(folder)
  batches = beir.retrieved_batches(queries, corpus, search)
  lines = [line for batch, _ in batches for line in batch]
  return summarize(question_scores(lines)) | {"num_blocks": corpus.num_blocks}


def measure_model(folder: Path, model_dir: Path) -> dict[str, Any] | None:
  """Returns the metrics of a retriever for the corpus of a folder.

  Returns None if a command fails, for example because the vocabulary lacks the
  script.
  """
  corpus = _corpus(folder, "dense", str(model_dir / "vocab.txt"))
  snapshots, output_dir = folder / "snapshots", folder / model_dir.name
  exact = {"SNAPSHOTS_DIR": snapshots, "INDEX": Macro("EXACT")}
  evaluated = {
    "BEIR_DIR": folder,
    "SNAPSHOT": snapshots,
    "OUTPUT_DIR": output_dir,
    "BLOCK_LENGTH": 288,
  }
  flags_of_run = f"--model_dir={model_dir}", f"--corpus_dir={corpus.source}"
  for command in (
    gin_command("build_index", (), "--once", *flags_of_run, **exact),
    gin_command("evaluate", [_RECIPE], *flags_of_run, **evaluated),
  ):
    if subprocess.run(command, check=False).returncode:
      return None
  return json.loads((output_dir / METRICS).read_text())


def main(argv: Sequence[str] | None = None) -> None:
  """Measures all languages, and prints one table."""
  options = flags.parse(
    *(__doc__, argv),
    directory=Path,
    model_dir=None,
    texts_dir=TEXTS_DIR,
    languages=LANGUAGES,
  )
  result: dict[str, dict[str, dict[str, Any]]] = {}
  for language in options.languages:
    folder = options.directory / language
    write_folder(options.texts_dir, language, folder)
    result[language] = {"BM25": measure_bm25(folder)}
    if options.model_dir is not None:
      name = options.model_dir.name
      if metrics := measure_model(folder, options.model_dir):
        result[language][name] = metrics
  rows = [
    [language, system, *(metrics[name] for name in _SHOWN)]
    for language, systems in result.items()
    for system, metrics in systems.items()
  ]
  print(columns([["language", "system", *_SHOWN], *rows]))
  flags.write(options, result)


if __name__ == "__main__":
  main()
