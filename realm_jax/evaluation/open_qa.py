"""Evaluation of open QA: exact match, F1, recall and reciprocal rank."""

import time
from collections.abc import Sequence

import numpy as np
from etils import epath
from jaxtyping import Int

from realm_jax.evaluation import outputs
from realm_jax.evaluation.answering import (
  Answered,
  Answerer,
  AnsweringConfig,
  load_answerer,
)
from realm_jax.evaluation.questions import (
  Question,
  evidence_of,
  open_questions,
)
from realm_jax.evaluation.scoring.summary import summarize
from realm_jax.evaluation.shares import Share
from realm_jax.evaluation.trained_model import ModelSource
from realm_jax.inputs.config import DataConfig
from realm_jax.settings import PositiveInt
from realm_jax.text import answers


def evaluate_open_qa(
  *,
  source: ModelSource,
  data: DataConfig,
  answering: AnsweringConfig,
  max_examples: PositiveInt | None = None,
  output_dir: epath.PathLike | None = None,
) -> outputs.Figures:
  """Answers the questions of a file and scores the answers.

  The checkpoint's own query tower searches the generation, the reader reads
  the best blocks, and the best answer in all of them is the prediction. Returns
  the contents of `metrics.json`.

  Args:
    source: Checkpoint to evaluate, with a reader.
    data: Open-QA task with its question file.
    answering: Number of blocks to search and read.
    max_examples: Number of questions at the front of the file; None takes all.
      Those that the task drops count.
    output_dir: Directory of `metrics.json` and `predictions.jsonl`, if any.

  Raises:
    ValueError: A file is missing or does not fit; the message says which.
  """
  start = time.monotonic()
  share = Share(
    source=source,
    data=data,
    answering=answering,
    max_examples=max_examples,
  )
  with (
    open_questions(data, share=share, max_examples=max_examples) as batches,
    outputs.lines(output_dir, "predictions.jsonl", share) as lines,
  ):
    answerer = load_answerer(source, answering)
    share.require_same(answerer.model, answerer.generation)
    for token_ids, questions in batches:
      ranking = answerer.rank(token_ids)
      evidence = [
        evidence_of(answerer.corpus, ranking.of_query(i), question)
        for i, question in enumerate(questions)
      ]
      places = _places_to_read(evidence, answering, len(token_ids))
      answered = answerer.read(
        token_ids, ranking, places=places, num_questions=len(questions)
      )
      for i, question in enumerate(questions):
        for place, block in enumerate(evidence[i]):
          block["read"] = place in places[i]
        line = _prediction(answerer, question, answered[i])
        lines[question.position] = line | {"evidence": evidence[i]}
  return outputs.report(
    lambda: {
      **summarize(list(lines.values())),
      "split": data.split,
      "task": data.task,
      "candidates": answering.candidates,
      "num_searched": answerer.num_searched,
      "num_read": answering.num_read,
      "rank_answers_by": answering.rank_answers_by,
    },
    answerer.model,
    answerer.generation,
    start=start,
    output_dir=output_dir,
    share=share,
  )


def _places_to_read(
  evidence: Sequence[Sequence[outputs.Figures]],
  config: AnsweringConfig,
  num_rows: int,
) -> Int[np.ndarray, "b r"]:
  """Returns which blocks of each ranking are read; padding reads the best."""
  places = np.tile(np.arange(config.num_read), (num_rows, 1))
  if config.candidates == "gold":
    for i, blocks in enumerate(evidence):
      has_none = [not block["contains_answer"] for block in blocks]
      gold_first = np.argsort(has_none, kind="stable")
      places[i] = gold_first[: config.num_read]
  return places


def _prediction(
  answerer: Answerer, question: Question, answered: Answered
) -> outputs.Line:
  """Returns a line of `predictions.jsonl`, but for the evidence.

  Google's released `evaluate_predictions` reads its `question` and
  `prediction`. Without an answer, the `prediction` is empty and the `answer`
  None. Regular expressions have no `f1`.
  """
  place: outputs.Figures | None = None
  if answered.answers:
    best = answered.answers[0]
    place = {
      "block": answerer.corpus.block(best.row).name,
      "start_byte": best.start_byte,
      "limit_byte": best.limit_byte,
      "score": round(best.score, 6),
      "probability": round(best.probability, 6),
    }
  text, references = answered.prediction, question.references
  kind = question.answer_kind
  return question.line() | {
    "prediction": text,
    "correct": answers.is_correct(text, references, kind=kind),
    "f1": answers.best_token_f1(text, references) if kind == "string" else None,
    "answer": place,
    "answers": [
      {
        "text": answer.text,
        "probability": round(answer.probability, 6),
        "correct": answers.is_correct(answer.text, references, kind=kind),
      }
      for answer in answered.answers
    ],
  }
