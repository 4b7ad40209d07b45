"""Measures how fast all blocks are searched for the answers of all questions.

    python -m benchmarks.answers --directory=out/answers --json=answers.json

The blocks are sentences of real texts, or of the demo's world where
there is no --texts_dir, in random order. The answers are those of NQ-open and
WebQuestions, salient spans of the texts, and invented names up to the number of
questions.
Each search is what a run does before its first step. The peer is what the steps
of a run did instead: for each question of a batch, 5,000 blocks were read and
compared with its answers. A step's batch is then made with the store.
"""

import argparse
import contextlib
import itertools
import os
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.data import demo_corpus, generated_blocks, real_texts
from benchmarks.refresh import machine
from realm_jax.answers.in_blocks import AnswersInBlocks
from realm_jax.answers.store import AnswerStore, build_store, store_key
from realm_jax.console import figures_table
from realm_jax.corpus.store import Corpus
from realm_jax.indexes.protocol import SearchResult
from realm_jax.inputs.batch import Batch
from realm_jax.storage.json_files import write_json
from realm_jax.text.answers import contains_characters
from realm_jax.training.stages.open_qa import OpenQa, OpenQaBatch
from realm_jax.training.stages.stage import StageContext

_BATCH, _SEARCHED, _STEPS, _QUERY_LENGTH = 16, 5000, 12, 16
_JOINT_LENGTH = generated_blocks.BLOCK_LENGTH + 32
_VOCABULARY = "train:16000"
_SECONDS_BETWEEN_SAMPLES = 0.2

Row = dict[str, Any]


class PeakMemory:
  """Samples the memory of this process's children, without mapped files.

  Attributes:
    bytes: Largest anonymous memory of any child.
  """

  def __init__(self) -> None:
    self.bytes = 0
    self._ended = threading.Event()
    self._thread = threading.Thread(target=self._sample)

  def __enter__(self) -> "PeakMemory":
    self._thread.start()
    return self

  def __exit__(self, *_: object) -> None:
    self._ended.set()
    self._thread.join()

  def _sample(self) -> None:
    while not self._ended.wait(_SECONDS_BETWEEN_SAMPLES):
      for path in Path("/proc/self/task").glob("*/children"):
        # A process may end meanwhile.
        with contextlib.suppress(OSError):
          for child in path.read_text().split():
            status = Path(f"/proc/{child}/status").read_text()
            size = status.partition("RssAnon:")[2].split()[:1]
            self.bytes = max(self.bytes, 1024 * int(*size))


def texts_and_answers(
  directory: Path, texts_dir: Path, num_questions: int
) -> tuple[list[tuple[str, str]], list[str]]:
  """Returns titled texts, and answers."""
  if texts_dir.is_dir():
    texts = real_texts.titled_paragraphs(texts_dir)
    answers = real_texts.answers(texts_dir)
  else:
    demo = Corpus.open(demo_corpus.make_corpus(directory / "demo"))
    blocks = map(demo.block, range(demo.num_blocks))
    texts = [(block.title, block.body) for block in blocks]
    answers = []
  source = generated_blocks.source_corpus(directory, texts, _VOCABULARY)
  distinct = dict.fromkeys(answers) | dict.fromkeys(_salient(source))
  words = sorted({w for _, t in texts for w in t.split() if w.istitle()})
  names = random.Random(0)
  while len(distinct) < num_questions:
    distinct[" ".join(names.sample(words, 2))] = None
  return texts, list(itertools.islice(distinct, num_questions))


def _salient(corpus: Corpus) -> Iterator[str]:
  for row in range(corpus.num_blocks):
    block = corpus.block(row)
    for start, limit in block.salient_spans.tolist():
      yield block.answer_text(start, limit)


def search(
  directory: Path, corpus: Corpus, answers: Sequence[str]
) -> tuple[Row, AnswerStore]:
  """Makes a store, and returns its figures and the store."""
  key = store_key(corpus, answers)
  start, used = time.perf_counter(), _cpu_seconds()
  with PeakMemory() as peak:
    build_store(directory, corpus, answers)
  seconds = time.perf_counter() - start
  store = AnswerStore.open(directory, key)
  stored = sum(path.stat().st_size for path in directory.iterdir())
  row = {
    "seconds": seconds,
    "cpu_seconds": _cpu_seconds() - used,
    "blocks_per_second": corpus.num_blocks / seconds,
    "pairs_per_block": store.num_pairs / corpus.num_blocks,
    "answers_found": store.num_answers - store.num_not_found,
    "peak_memory_of_a_process_mb": peak.bytes / 1e6,
    "stored_mb": stored / 1e6,
  }
  return row, store


def _cpu_seconds() -> float:
  """Returns what this process and its children, once they ended, have used."""
  used = os.times()
  return sum(used[:4])


def make_batches(
  corpus: Corpus, answers: Sequence[str]
) -> list[tuple[Batch, SearchResult]]:
  """Makes batches of questions with one answer each, and blocks for them."""
  rng, words = np.random.default_rng(0), corpus.vocabulary
  searched = min(_SEARCHED, corpus.num_blocks)
  batches = []
  for step in range(_STEPS):
    chosen = rng.choice(len(answers), _BATCH, replace=False).tolist()
    texts = [answers[number] for number in chosen]
    tokens = [words.encode(text) for text in texts]
    padded = np.zeros((_BATCH, 1, max(map(len, tokens))), np.int32)
    for row, ids in zip(padded, tokens, strict=True):
      row[0, : len(ids)] = ids
    query = np.full((_BATCH, _QUERY_LENGTH), words.unk_id, np.int32)
    query[:, 0], query[:, -1] = words.cls_id, words.sep_id
    host = {
      "answers": np.array([[text.encode()] for text in texts], object),
      "answer_kind": np.array([b"string"] * len(texts), object),
      "answer_tokens": padded,
    }
    positions = np.arange(step * _BATCH, (step + 1) * _BATCH)
    rows = rng.integers(corpus.num_blocks, size=(_BATCH, searched))
    scores = np.zeros(rows.shape, np.float32)
    batches.append(
      (
        Batch({"query": query}, host, positions, positions + _BATCH),
        SearchResult(rows.astype(np.int32), scores),
      )
    )
  return batches


def search_in_blocks(
  corpus: Corpus, batch: Batch, rows: np.ndarray
) -> np.ndarray:
  """Finds which blocks contain an answer by reading all of them."""
  has_answer = np.zeros(rows.shape, bool)
  for query, searched in enumerate(rows):
    has_answer[query] = [
      contains_characters(body, batch.answers[query])
      for body in corpus.bodies_utf8(searched)
    ]
  return has_answer


def steps(
  corpus: Corpus, answers: AnswersInBlocks, texts: Sequence[str]
) -> Row:
  """Compares a step's batch, made with the store, with reading all blocks."""
  stage = OpenQa(
    index_scores=True,
    num_searched_blocks=_SEARCHED,
  )
  context = StageContext(
    corpus,
    None,
    generated_blocks.BLOCK_LENGTH,
    answers=answers,
  )
  stored_ms, read_ms = [], []
  for batch, retrieved in make_batches(corpus, texts):
    start = time.perf_counter()
    made, _ = stage.assemble(batch, retrieved, context)
    stored_ms.append(1e3 * (time.perf_counter() - start))
    assert isinstance(made, OpenQaBatch)
    start = time.perf_counter()
    expected = search_in_blocks(corpus, batch, retrieved.rows)
    read_ms.append(1e3 * (time.perf_counter() - start))
    if not np.array_equal(made.has_answer, expected):
      raise AssertionError("the store differs from a search of the blocks")
  # The first steps read what the system has not cached yet.
  half = len(stored_ms) // 2
  return {
    "step_ms": statistics.median(stored_ms[half:]),
    "search_in_blocks_ms": statistics.median(read_ms[half:]),
  }


def measure(
  directory: Path, *, num_blocks: int, num_questions: int, texts_dir: Path
) -> Row:
  """Does all searches and returns the figures."""
  texts, strings = texts_and_answers(directory, texts_dir, num_questions)
  corpus = generated_blocks.make_corpus(
    directory, num_blocks, texts=texts, vocab=_VOCABULARY
  )
  answers = sorted({*strings} - {""})
  row, store = search(directory / "store", corpus, answers)
  row |= steps(corpus, AnswersInBlocks(corpus, answers, store), strings)
  return {
    "blocks": corpus.num_blocks,
    "answers": len(strings),
    **row,
    "machine": machine(),
  }


def main(argv: Sequence[str] | None = None) -> None:
  """Runs the benchmark."""
  parser = argparse.ArgumentParser(
    description=(__doc__ or "").partition("\n")[0]
  )
  parser.add_argument(
    "--directory", type=Path, help="folder that keeps the corpus; 3.8 GB"
  )
  parser.add_argument("--num_blocks", type=int, default=1_000_000)
  parser.add_argument("--num_questions", type=int, default=100_000)
  parser.add_argument(
    "--texts_dir", type=Path, default=real_texts.TEXTS_DIR, help="real texts"
  )
  parser.add_argument("--json", help="file to write the result to")
  given = parser.parse_args(argv)
  with contextlib.ExitStack() as stack:
    directory = given.directory
    if directory is None:
      folder = tempfile.TemporaryDirectory(prefix="realm_answers_")
      directory = Path(stack.enter_context(folder))
    result = measure(
      directory,
      num_blocks=given.num_blocks,
      num_questions=given.num_questions,
      texts_dir=given.texts_dir,
    )
  print(figures_table(result))
  if given.json:
    write_json(given.json, result)


if __name__ == "__main__":
  main()
