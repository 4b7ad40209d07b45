"""Evaluation on questions: exact match, F1, recall and reciprocal rank."""

import dataclasses
import functools
import itertools
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from etils import epath
from jaxtyping import Int32

from realm_jax.answers import match
from realm_jax.console import Progress
from realm_jax.evaluation.ask import answer_from_blocks, require_answering
from realm_jax.evaluation.config import RunConfig
from realm_jax.evaluation.masked_sentences import (
  best_fillings,
  masked_query,
  read_masks,
)
from realm_jax.evaluation.outputs import EvaluationShard, Metrics
from realm_jax.evaluation.result import Hit
from realm_jax.evaluation.run import TrainedRun
from realm_jax.evaluation.scores import (
  PREDICTIONS,
  RETRIEVED,
  Line,
  with_first_order,
)
from realm_jax.indexes.protocol import IndexConfig
from realm_jax.inputs.config import DataConfig
from realm_jax.settings import PositiveInt


def evaluate_open_qa(
  *,
  config: RunConfig,
  data: DataConfig,
  max_examples: PositiveInt | None = None,
  output_dir: epath.PathLike | None = None,
) -> Metrics:
  """Answers the questions of a file and scores the answers.

  The search uses the checkpoint's query tower, the reader reads the best
  blocks, and the best answer in all of them is the prediction. Like all
  evaluations, this returns the contents of `metrics.json`.

  Args:
    config: Checkpoint to evaluate, with a reader, and settings for asking it.
    data: Open-QA task with its question file.
    max_examples: Number of questions to read from the start of the file, before
      the task drops any; None takes all.
    output_dir: Directory of `metrics.json` and `predictions.jsonl`, if any.

  Raises:
    ValueError: A file is missing or does not fit; the message says which.

  Example:
    >>> data = DataConfig(
    ...   task="open_qa", corpus_dir="corpus", split="test", batch_size=8,
    ...   question_files={"test": "questions.jsonl"},
    ...   query_length=16, block_length=40,
    ... )
    >>> evaluate_open_qa(config=run.config, data=data)["num_questions"]
    11
  """
  return _evaluate(_predictions, config, data, max_examples, None, output_dir)


def evaluate_retrieval(
  *,
  config: RunConfig,
  data: DataConfig,
  max_examples: PositiveInt | None = None,
  index: IndexConfig | str | None = None,
  output_dir: epath.PathLike | None = None,
) -> Metrics:
  """Retrieves blocks for questions with a retriever of any stage.

  After pre-training this is the zero-shot recall@5 of the paper's Table 2. The
  reciprocal rank counts a block beyond NUM_SEARCHED as missing.
  `evaluate_open_qa` describes the other arguments.

  Args:
    config: Checkpoint to evaluate. Without a configured snapshot, the snapshot
      built from this checkpoint is preferred to the one it was trained with.
    index: Index to build over the snapshot's blocks, to be searched instead of
      its own. An index without vectors, such as BM25, ranks by its own scores.
    output_dir: Directory of `metrics.json` and `retrieved.jsonl`, if any.

  Example:
    >>> data = DataConfig(
    ...   task="open_qa", corpus_dir="corpus", split="test", batch_size=8,
    ...   question_files={"test": "questions.jsonl"},
    ...   query_length=16, block_length=40,
    ... )
    >>> found = evaluate_retrieval(config=run.config, data=data, index="bm25")
    >>> found["recall_at_5"]
    1.0
  """
  config = dataclasses.replace(config, reader=None)
  return _evaluate(None, config, data, max_examples, index, output_dir)


def evaluate_masked_statements(
  *,
  config: RunConfig,
  data: DataConfig,
  max_examples: PositiveInt | None = None,
  index: IndexConfig | str | None = None,
  output_dir: epath.PathLike | None = None,
) -> Metrics:
  """Fills in masked statements from retrieved blocks.

  A statement is a question with one [MASK] in place of its answer. It is
  replaced by a mask for each wordpiece of the answer. The prediction is the
  most likely filling under Σ_z p(z|x) p(y|z, x), over the null block and the
  retrieved blocks, as in training. Retrieval is scored as in
  `evaluate_retrieval`, and `exact_match` is the accuracy of the fillings.

  Args:
    config: Checkpoint of a run of pre-training, with its reader.
    data: Open-QA task with a file of statements.
    max_examples: Number of statements at the front of the file; None takes all.
    index: Index to build over the snapshot's blocks, to be searched instead of
      its own. The retriever weighs its results.
    output_dir: Directory of `metrics.json` and `predictions.jsonl`, if any.
  """
  return _evaluate(_fillings, config, data, max_examples, index, output_dir)


def _evaluate(
  completed: Callable[..., Iterable[Line]] | None,
  config: RunConfig,
  data: DataConfig,
  max_examples: int | None,
  index: IndexConfig | str | None,
  output_dir: epath.PathLike | None,
) -> Metrics:
  """Writes a line for each question, and returns the metrics of all.

  `completed` completes the lines of a batch, given the run, the token ids
  [b q], the retrieved blocks, and the lines, which have these as evidence; None
  leaves the lines unchanged. If the task drops questions, later ones move up in
  their rows, so batches are not exactly in order; lines are ordered by
  position.
  """
  shard = EvaluationShard(
    output_dir,
    evaluation="retrieval" if completed is None else completed.__name__,
    config=config,
    data=data,
    max_examples=max_examples,
    index=index,
  )
  with (
    # Opened first, to find a malformed file before anything large is loaded.
    shard.batches(data, shuffle=False, repeat=False) as batches,
    Progress("questions") as progress,
  ):
    run = shard.load(config, index=index, max_batch=data.batch_size)
    parts = shard.open_parts(run, data.question_paths)
    # Number of batches that are already done.
    (done,) = parts.state or (0,)
    for number, batch in enumerate(itertools.islice(batches, done, None), done):
      limit = max_examples or sys.maxsize
      is_taken = batch.is_real & (batch.positions < limit)
      # Positions rise in each row, so later batches have no question either.
      if not is_taken.any():
        break
      questions = [
        {
          "id": name,
          "question": text,
          "references": answers.texts,
          "answer_kind": answers.kind,
          "language": run.corpus.language,
          "gold": [document.decode() for document in gold if document],
        }
        for name, text, answers, gold in zip(
          batch.texts("question_id"),
          batch.texts("question"),
          batch.answers,
          batch.host.get("gold", [()] * len(batch.positions)),
          strict=True,
        )
      ]
      # Includes rows that are not counted, so that only one shape is compiled.
      token_ids = batch.arrays["query"]
      result = run.search(token_ids, config.num_searched)
      hits = run.hits(result)
      retrieved = [*map(_with_evidence, hits, questions)]
      if run.reranks:
        plain = run.restricted(None, rerank=False)
        result = plain.search(token_ids, config.num_searched)
        before = map(_with_evidence, run.hits(result), questions)
        retrieved = [
          with_first_order(line, one["evidence"])
          for line, one in zip(retrieved, before, strict=True)
        ]
      if completed is not None:
        retrieved = completed(run, token_ids, hits, retrieved)
      numbered = zip(batch.positions.tolist(), retrieved, strict=True)
      parts.add(dict(itertools.compress(numbered, is_taken)), [number + 1])
      progress.advance(int(is_taken.sum()))
  name = RETRIEVED if config.reader is None else PREDICTIONS
  described: Metrics = {
    "split": data.split,
    "task": data.task,
    "num_searched": 0,
  }
  if run.retrieves:
    number = min(config.num_searched, run.snapshot.num_blocks)
    described["num_searched"] = number
  if config.reader is not None:
    of_reader = "candidates", "num_read", "rank_answers_by"
    described |= {name: getattr(config, name) for name in of_reader}
  return shard.report_parts(name, parts, described, run)


def _predictions(
  run: TrainedRun,
  token_ids: Int32[np.ndarray, "b q"],
  hits: Sequence[Sequence[Hit]],
  lines: Sequence[Line],
) -> Iterator[Line]:
  """Yields the lines of `evaluate_open_qa`, with each answer's position."""
  require_answering(run)
  is_bound = run.config.candidates == "gold"
  read = []
  for line, retrieved in zip(lines, hits, strict=True):
    lacks = [is_bound and not b["contains_answer"] for b in line["evidence"]]
    order = np.argsort(lacks, kind="stable")[: run.config.num_read].tolist()
    read.append([retrieved[place] for place in order])
  questions = [line["question"] for line in lines]
  results = answer_from_blocks(
    run.require_reader(), run, questions, token_ids, read
  )
  for line, result in zip(lines, results, strict=True):
    place: Metrics | None = None
    best = result.answers[0] if result.answers else None
    if best is not None and (block := best.block) is not None:
      place = {
        "block": block.id,
        "start_byte": len(block.text[: best.start].encode()),
        "limit_byte": len(block.text[: best.limit].encode()),
        "score": best.score and round(best.score, 6),
        "probability": round(best.probability, 6),
      }
    texts = [answer.text for answer in result.answers]
    judged = _judged(line, texts, [hit.block.id for hit in result.hits])
    for entry, answer in zip(judged["answers"], result.answers, strict=True):
      entry["probability"] = round(answer.probability, 6)
    if run.config.rouge_l and line["answer_kind"] == "string":
      references = line["references"]
      judged["rouge_l"] = match.rouge_l(judged["prediction"], references)
    yield judged | {"answer": place}


def _fillings(
  run: TrainedRun,
  token_ids: Int32[np.ndarray, "b q"],
  hits: Sequence[Sequence[Hit]],
  lines: Sequence[Line],
) -> Iterator[Line]:
  """Yields the lines of `evaluate_masked_statements`."""
  del token_ids, hits
  for line in lines:
    masked = masked_query(run, line["question"], line["references"][0])
    reading = read_masks(run, masked.query, masked.positions)
    best, _ = best_fillings(reading, run.config.num_fillings)
    texts = [masked.filling_text(run.vocabulary, ids) for ids in best.tolist()]
    names = [run.block(row).id for row in reading.rows[1:].tolist()]
    yield _judged(line, texts, names)


def _with_evidence(hits: Sequence[Hit], question: Line) -> Line:
  """Returns a question with the blocks retrieved for it, best first.

  `contains_answer` matches words, and `contains_characters` characters, as in
  Google's released ORQA. For a pattern both are the same.
  """
  references, kind = question["references"], question["answer_kind"]
  evidence = []
  for hit in hits:
    text = hit.block.text
    has_words = match.contains_answer(
      text, references, kind=kind, language=question["language"]
    )
    has_characters = has_words
    if kind == "string":
      has_characters = match.contains_characters(text.encode(), references)
    evidence.append(
      {
        "block": hit.block.id,
        "title": hit.block.title,
        "documents": [part.document_id for part in hit.block.parts],
        "probability": round(hit.probability, 6),
        "score": round(hit.score, 6),
        "contains_answer": has_words,
        "contains_characters": has_characters,
      }
    )
  return {**question, "evidence": evidence}


def _judged(
  line: Line, texts: Sequence[str], names_read: Collection[str]
) -> dict[str, Any]:
  """Returns a line of `predictions.jsonl` for answers, best first.

  Google's released `evaluate_predictions` reads its `question` and
  `prediction`. Regular expressions have no `f1`.

  Args:
    line: Question, with the blocks that were retrieved.
    texts: Answers, best first.
    names_read: Names of the blocks that were read.
  """
  references, kind = line["references"], line["answer_kind"]
  language = line["language"]
  is_correct = functools.partial(
    match.is_correct, references=references, kind=kind, language=language
  )
  prediction = texts[0] if texts else ""
  f1 = None
  if kind == "string":
    scores = (match.token_f1(prediction, r, language) for r in references)
    f1 = max(scores, default=0.0)
  evidence = line["evidence"]
  return {
    **line,
    "prediction": prediction,
    "correct": is_correct(prediction),
    "f1": f1,
    "answers": [{"text": t, "correct": is_correct(t)} for t in texts],
    "evidence": [{**b, "read": b["block"] in names_read} for b in evidence],
  }
