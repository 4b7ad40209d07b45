"""Evaluation on questions: exact match, F1, recall and reciprocal rank."""

import contextlib
import dataclasses
import functools
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from etils import epath
from jaxtyping import Int32

from realm_jax.console import Progress
from realm_jax.evaluation.answers import Answered, num_searched, read
from realm_jax.evaluation.outputs import (
  PREDICTIONS,
  EvaluationShard,
  Figures,
  Line,
)
from realm_jax.evaluation.run import Block, Run, RunConfig
from realm_jax.evaluation.scores import summarize
from realm_jax.indexes.protocol import IndexConfig
from realm_jax.inputs.batch import Batch
from realm_jax.inputs.config import DataConfig
from realm_jax.settings import PositiveInt
from realm_jax.text import answers


class Question(NamedTuple):
  """A question, its accepted answers, and its position in the file.

  The references are strings or patterns, as the task says.
  """

  id: str
  text: str
  references: list[str]
  answer_kind: answers.AnswerKind
  position: int

  def line(self, run: Run) -> Line:
    """Returns the fields with which a question's line of a file begins."""
    return {
      "id": self.id,
      "question": self.text,
      "references": self.references,
      "answer_kind": self.answer_kind,
      "language": run.language,
    }


# Token ids, whose rows past the last question are padding, and the questions.
QuestionBatch = tuple[Int32[np.ndarray, "b q"], list[Question]]


def evaluate_open_qa(
  *,
  config: RunConfig,
  data: DataConfig,
  max_examples: PositiveInt | None = None,
  output_dir: epath.PathLike | None = None,
) -> Figures:
  """Answers the questions of a file and scores the answers.

  The checkpoint's own query tower searches the generation, the reader reads
  the best blocks, and the best answer in all of them is the prediction. Returns
  the contents of `metrics.json`.

  Args:
    config: Checkpoint to evaluate, with a reader, and how it is asked.
    data: Open-QA task with its question file.
    max_examples: Number of questions at the front of the file; None takes all.
      Those that the task drops count.
    output_dir: Directory of `metrics.json` and `predictions.jsonl`, if any.

  Raises:
    ValueError: A file is missing or does not fit; the message says which.
  """
  shard = EvaluationShard(
    output_dir, config=config, data=data, max_examples=max_examples
  )
  with (
    open_questions(data, shard=shard, max_examples=max_examples) as batches,
    shard.lines(PREDICTIONS) as lines,
  ):
    run = Run.load(config, max_batch=data.batch_size)
    shard.require_same_run(run)
    number = num_searched(run)
    for token_ids, questions in batches:
      found = run.search(token_ids, number)
      order = None
      if config.candidates == "gold":
        # Rows past the last question are padding.
        lacks = np.zeros(found.rows.shape, bool)
        for i, question in enumerate(questions):
          evidence = block_evidence(run, run.blocks(found, i), question)
          lacks[i] = [not block["contains_answer"] for block in evidence]
        order = np.argsort(lacks, axis=1, kind="stable")
      texts = [question.text for question in questions]
      answered = read(run, texts, token_ids, found, order)
      for question, one in zip(questions, answered, strict=True):
        lines[question.position] = _prediction(run, question, one)
  return shard.report(
    lambda: {
      **summarize(list(lines.values())),
      "split": data.split,
      "task": data.task,
      "candidates": config.candidates,
      "num_searched": number,
      "num_read": config.num_read,
      "rank_answers_by": config.rank_answers_by,
    },
    run,
  )


def evaluate_retrieval(
  *,
  config: RunConfig,
  data: DataConfig,
  max_examples: PositiveInt | None = None,
  index: IndexConfig | None = None,
  output_dir: epath.PathLike | None = None,
) -> Figures:
  """Retrieves blocks for questions with a retriever of any stage.

  After pre-training this gives the zero-shot recall@5 of the paper's Table 2.
  The reciprocal rank counts a block beyond NUM_SEARCHED as missing. Arguments
  that are not listed are those of `evaluate_open_qa`.

  Args:
    config: Checkpoint to evaluate. If it names no generation, the one built
      from this checkpoint is preferred to the one it was trained with.
    index: Index to build over the generation's blocks instead of its own. One
      that needs no vectors, such as BM25, ranks by its own scores.
    output_dir: Directory of `metrics.json` and `retrieved.jsonl`, if any.
  """
  shard = EvaluationShard(
    output_dir, config=config, data=data, max_examples=max_examples, index=index
  )
  with (
    open_questions(data, shard=shard, max_examples=max_examples) as batches,
    shard.lines("retrieved.jsonl") as lines,
  ):
    config = dataclasses.replace(config, reader=None)
    run = Run.load(config, index=index, max_batch=data.batch_size)
    shard.require_same_run(run)
    for token_ids, questions in batches:
      found = run.search(token_ids, config.num_searched, rescore=False)
      for i, question in enumerate(questions):
        evidence = block_evidence(run, run.blocks(found, i), question)
        lines[question.position] = question.line(run) | {"evidence": evidence}
  return shard.report(
    lambda: {
      **summarize(list(lines.values())),
      "split": data.split,
      "task": data.task,
      "num_searched": min(config.num_searched, run.generation.num_blocks),
    },
    run,
  )


@contextlib.contextmanager
def open_questions(
  data: DataConfig, *, shard: EvaluationShard, max_examples: int | None = None
) -> Iterator[Iterator[QuestionBatch]]:
  """Yields batches of this process's questions, in the order of their file.

  Of all questions it takes those at the first `max_examples` positions. If the
  task drops questions, those after them move up in their rows, and some batches
  have a question before an earlier one; its position tells.

  A malformed file is reported when the block is entered, so open it before
  anything large is loaded. The batch size of the open-QA task is rounded up to
  a multiple of the devices.

  Raises:
    ValueError: The file cannot be read, or max_examples is not positive.
  """
  if max_examples is not None and max_examples < 1:
    raise ValueError(f"max_examples={max_examples}; want at least 1")
  with shard.batches(data, shuffle=False, repeat=False) as batches:
    yield _question_batches(batches, max_examples or sys.maxsize)


def _question_batches(
  batches: Iterator[Batch], max_examples: int
) -> Iterator[QuestionBatch]:
  with Progress("questions") as progress:
    for batch in batches:
      is_taken = batch.is_real & (batch.positions < max_examples)
      size = int(is_taken.sum())
      # The positions of a row rise, so no later batch has a question, either.
      if not size:
        return
      # Rows without a question follow those that have one.
      order = np.argsort(~is_taken, stable=True)
      fields = (
        batch.texts("question_id"),
        batch.texts("question"),
        batch.answers,
        batch.answer_kinds,
        batch.positions.tolist(),
      )
      rows = [*zip(*fields, strict=True)]
      yield (
        batch.arrays["query"][order],
        [Question(*rows[i]) for i in order[:size]],
      )
      progress.advance(size)


def block_evidence(
  run: Run, blocks: Sequence[Block], question: Question
) -> list[dict[str, Any]]:
  """Describes the blocks retrieved for a question, best first, as JSON.

  `contains_answer` is by words, and `contains_characters` as in Google's
  released ORQA. A pattern is searched for both in the same way.
  """
  evidence = []
  references, kind = question.references, question.answer_kind
  for block in blocks:
    has_words = answers.contains_answer(
      block.text, references, kind=kind, language=run.language
    )
    has_characters = has_words
    if kind == "string":
      body = block.text.encode()
      has_characters = answers.contains_characters(body, references)
    evidence.append(
      {
        "block": block.id,
        "title": block.title,
        "probability": round(block.probability, 6),
        "score": round(block.score, 6),
        "contains_answer": has_words,
        "contains_characters": has_characters,
      }
    )
  return evidence


def _prediction(run: Run, question: Question, answered: Answered) -> Line:
  """Returns a line of `predictions.jsonl`.

  Google's released `evaluate_predictions` reads its `question` and
  `prediction`. Without an answer, the `prediction` is empty and the `answer`
  None. Regular expressions have no `f1`.
  """
  place: Figures | None = None
  if answered.answers:
    best = answered.answers[0]
    place = {
      "block": best.block.id,
      "start_byte": len(best.block.text[: best.start].encode()),
      "limit_byte": len(best.block.text[: best.limit].encode()),
      "score": round(best.score, 6),
      "probability": round(best.probability, 6),
    }
  text, references = answered.text, question.references
  kind, language = question.answer_kind, run.language
  evidence = block_evidence(run, answered.blocks, question)
  for number, block in enumerate(evidence):
    block["read"] = number in answered.read
  f1 = None
  if kind == "string":
    f1 = answers.best_token_f1(text, references, language)
  is_correct = functools.partial(
    answers.is_correct, references=references, kind=kind, language=language
  )
  return question.line(run) | {
    "prediction": text,
    "correct": is_correct(text),
    "f1": f1,
    "answer": place,
    "answers": [
      {
        "text": answer.text,
        "probability": round(answer.probability, 6),
        "correct": is_correct(answer.text),
      }
      for answer in answered.answers
    ],
    "evidence": evidence,
  }
