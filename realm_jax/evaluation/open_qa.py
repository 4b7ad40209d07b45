"""Open-domain question answering, measured: exact match, F1, recall, MRR."""

import contextlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from etils import epath

from realm_jax.evaluation import metrics, outputs
from realm_jax.evaluation.answering import Answered, Answerer, load_answerer
from realm_jax.evaluation.questions import (
  Question,
  evidence_of,
  question_batches,
)
from realm_jax.evaluation.trained import description, whole_batch
from realm_jax.inputs.batches import BatchStream
from realm_jax.inputs.config import DataConfig
from realm_jax.models.reader import Reader
from realm_jax.models.retriever import Retriever
from realm_jax.text import answers


def evaluate_open_qa(
  *,
  model_dir: epath.PathLike,
  corpus_dir: epath.PathLike,
  retriever: Retriever,
  reader: Reader,
  question_files: Mapping[str, epath.PathLike],
  split: str = "test",
  task_modules: Sequence[str] = ("tasks",),
  task: str = "open_qa",
  answer_kind: answers.AnswerKind = "string",
  generation: epath.PathLike | None = None,
  candidates: str = "index",
  index_scores: bool = False,
  num_searched: int = 20,
  num_read: int = 5,
  batch_size: int = 16,
  query_length: int = 64,
  block_length: int = 288,
  checkpoint_step: int | None = None,
  max_examples: int | None = None,
  output_dir: epath.PathLike | None = None,
) -> dict[str, Any]:
  """Answers the questions of a file and scores the answers.

  The checkpoint's own query tower searches the generation; the best blocks
  are read, and the best span of them all is the prediction.

  Args:
    model_dir: of a run of open QA, or one of its checkpoints.
    corpus_dir: what `build_corpus` wrote.
    retriever: the towers of the run.
    reader: its reader.
    question_files: JSON Lines of questions, by split.
    split: which of them.
    task_modules: modules that add seqio tasks when they are imported.
    task: the seqio task that reads them.
    answer_kind: whether the task's answers are strings or patterns.
    generation: a generation, or a folder of them; None takes the one that
      the checkpoint says it was trained with.
    candidates: `index`, or `random` for the control that reads random blocks.
    index_scores: as the run was trained: True with BM25.
    num_searched: blocks counted for recall, and over which p(z|x) goes.
    num_read: how many of the best are read.
    batch_size: questions at once; rounded up to share among the devices.
    query_length: the longest question, with [CLS] and [SEP].
    block_length: the longest block.
    checkpoint_step: which checkpoint; None takes the last.
    max_examples: stop after so many questions.
    output_dir: where `metrics.json` and `predictions.jsonl` go, if anywhere.

  Returns:
    What `metrics.json` holds.

  Raises:
    ValueError: something is missing or does not fit; the message says what.
  """
  start = time.monotonic()
  with contextlib.ExitStack() as stack:
    # Opened first: a bad line is known before anything large is loaded.
    data = DataConfig(
      task=task,
      split=split,
      corpus_dir=corpus_dir,
      question_files=question_files,
      task_modules=task_modules,
      batch_size=whole_batch(batch_size),
      query_length=query_length,
      block_length=block_length,
    )
    stream = BatchStream(data, shuffle=False, repeat=False)
    stack.callback(stream.close)
    answerer = load_answerer(
      model_dir=model_dir,
      corpus_dir=corpus_dir,
      retriever=retriever,
      reader=reader,
      generation=generation,
      candidates=candidates,
      index_scores=index_scores,
      num_searched=num_searched,
      num_read=num_read,
      query_length=query_length,
      block_length=block_length,
      checkpoint_step=checkpoint_step,
    )
    write = stack.enter_context(
      outputs.json_lines(
        output_dir and epath.Path(output_dir) / outputs.PREDICTIONS
      )
    )
    predictions, references, contains = [], [], []
    for batch in question_batches(stream, max_examples=max_examples):
      answered = answerer.answer(
        batch.token_ids, num_questions=len(batch.questions)
      )
      for question, found in zip(batch.questions, answered, strict=True):
        line = prediction_line(answerer, question, found, kind=answer_kind)
        write(line)
        predictions.append(found.prediction)
        references.append(question.references)
        contains.append([e["contains_answer"] for e in line["evidence"]])
  result = {
    **metrics.answer_metrics(predictions, references, kind=answer_kind),
    **metrics.retrieval_metrics(np.array(contains)),
    "num_questions": len(predictions),
    "split": split,
    "task": task,
    "candidates": candidates,
    "num_searched": answerer.num_searched,
    "num_read": num_read,
    **description(answerer.trained, answerer.generation),
    "seconds": round(time.monotonic() - start, 3),
  }
  if output_dir is not None:
    outputs.write_json(epath.Path(output_dir) / outputs.METRICS, result)
  return result


def prediction_line(
  answerer: Answerer,
  question: Question,
  answered: Answered,
  *,
  kind: answers.AnswerKind,
) -> dict[str, Any]:
  """A line of `predictions.jsonl`."""
  prediction, references = answered.prediction, question.references
  line: dict[str, Any] = {
    "id": question.question_id,
    "question": question.text,
    "prediction": prediction,
    "references": references,
    "correct": answers.is_correct(prediction, references, kind=kind),
    "f1": (
      answers.best_token_f1(prediction, references)
      if kind == "string"
      else None
    ),
    "answer": None,
    "evidence": evidence_of(
      answerer.corpus,
      answered.ranking,
      references,
      kind=kind,
      num_read=answerer.num_read,
    ),
  }
  if answered.answers:
    best = answered.answers[0]
    line["answer"] = {
      "block": answerer.corpus.block_name(best.row),
      "start_byte": best.start_byte,
      "limit_byte": best.limit_byte,
      "score": round(best.score, 6),
      "probability": round(best.probability, 6),
    }
  return line
