"""What a retriever finds without a reader: recall@k and reciprocal rank."""

import contextlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from etils import epath

from realm_jax.evaluation import metrics, outputs
from realm_jax.evaluation.questions import evidence_of, question_batches
from realm_jax.evaluation.ranking import BlockRanker, Ranking
from realm_jax.evaluation.trained import (
  description,
  load_trained,
  open_generation,
  whole_batch,
)
from realm_jax.indexes.protocol import IndexConfig
from realm_jax.inputs.batches import BatchStream
from realm_jax.inputs.config import DataConfig
from realm_jax.models.retriever import Retriever
from realm_jax.text import answers
from realm_jax.training.stages.inverse_cloze import InverseCloze

RETRIEVED = "retrieved.jsonl"


def evaluate_retrieval(
  *,
  model_dir: epath.PathLike,
  corpus_dir: epath.PathLike,
  retriever: Retriever,
  question_files: Mapping[str, epath.PathLike],
  split: str = "test",
  task_modules: Sequence[str] = ("tasks",),
  task: str = "open_qa",
  answer_kind: answers.AnswerKind = "string",
  generation: epath.PathLike | None = None,
  index: IndexConfig | None = None,
  num_searched: int = 20,
  batch_size: int = 64,
  query_length: int = 64,
  block_length: int = 288,
  checkpoint_step: int | None = None,
  max_examples: int | None = None,
  output_dir: epath.PathLike | None = None,
) -> dict[str, Any]:
  """Searches for questions with a retriever of any stage.

  Zero-shot recall@5 of the paper's Table 2 is this, after pre-training.

  Args:
    model_dir: of a run of any stage, or one of its checkpoints.
    corpus_dir: what `build_corpus` wrote.
    retriever: the towers of the run.
    question_files: JSON Lines of questions, by split.
    split: which of them.
    task_modules: modules that add seqio tasks when they are imported.
    task: the seqio task that reads them.
    answer_kind: whether the task's answers are strings or patterns.
    generation: a generation, or a folder of them; None takes the one that
      was made from this checkpoint or, failing that, the one it was trained
      with.
    index: another index over the generation's blocks, which ranks alone if
      it needs no vectors, as BM25 does.
    num_searched: how many blocks to find; the reciprocal rank sees no more.
    batch_size: questions at once; rounded up to share among the devices.
    query_length: the longest question, with [CLS] and [SEP].
    block_length: the longest block.
    checkpoint_step: which checkpoint; None takes the last.
    max_examples: stop after so many questions.
    output_dir: where `metrics.json` and `retrieved.jsonl` go, if anywhere.

  Returns:
    What `metrics.json` holds.

  Raises:
    ValueError: something is missing or does not fit; the message says what.
  """
  start = time.monotonic()
  with contextlib.ExitStack() as stack:
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
    trained = load_trained(
      model_dir=model_dir,
      corpus_dir=corpus_dir,
      stage=InverseCloze(),
      retriever=retriever,
      query_length=query_length,
      block_length=block_length,
      checkpoint_step=checkpoint_step,
    )
    loaded = open_generation(trained, generation, prefer_own=True, index=index)
    ranker = BlockRanker(
      trained,
      loaded,
      num_searched=num_searched,
      as_found=not loaded.index.needs_vectors,
    )
    write = stack.enter_context(
      outputs.json_lines(output_dir and epath.Path(output_dir) / RETRIEVED)
    )
    contains = []
    for batch in question_batches(stream, max_examples=max_examples):
      ranking = ranker.rank(batch.token_ids)
      for i, question in enumerate(batch.questions):
        evidence = evidence_of(
          loaded.corpus,
          Ranking(*(part[i] for part in ranking)),
          question.references,
          kind=answer_kind,
        )
        write(
          {
            "id": question.question_id,
            "question": question.text,
            "references": question.references,
            "evidence": evidence,
          }
        )
        contains.append([e["contains_answer"] for e in evidence])
  result = {
    **metrics.retrieval_metrics(np.array(contains)),
    "num_questions": len(contains),
    "split": split,
    "task": task,
    "num_searched": ranker.num_searched,
    **description(trained, loaded),
    "seconds": round(time.monotonic() - start, 3),
  }
  if output_dir is not None:
    outputs.write_json(epath.Path(output_dir) / outputs.METRICS, result)
  return result
