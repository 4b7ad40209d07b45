"""Measures the CPU time that the host needs for a training step.

    python -m benchmarks.host --corpus_dir=CORPUS --patterns=PATTERNS.jsonl

`examples` is the time to read batches of tasks, in a thread that does nothing
else. `features` is the time of the retrieval's thread for random blocks: it
prepares candidates for masked sentences, and determines which blocks answer
CuratedTREC's questions (JSON Lines, as for the task open_qa_regex). Blocks are
measured on first use and again.
"""

import argparse
import contextlib
import functools
import time
from collections.abc import Callable, Generator, Sequence
from typing import Any

import numpy as np
import seqio

from benchmarks import flags, train_step
from realm_jax.answers.occurrences import AnswersInBlocks
from realm_jax.console import columns
from realm_jax.corpus.store import Corpus
from realm_jax.indexes.protocol import SearchResult
from realm_jax.inputs.batch import Batch
from realm_jax.inputs.batches import stream_batches
from realm_jax.inputs.config import DataConfig
from realm_jax.inputs.examples import find_task
from realm_jax.training.stages.open_qa import OpenQa
from realm_jax.training.stages.pretraining import Pretraining
from realm_jax.training.stages.stage import StageContext

_MIXTURE = "mixture"
_EXAMPLES = {
  "inverse_cloze": (32, 128, 256),
  "masked_salient_spans": (32, 512),
  _MIXTURE: (64,),
}
_FEATURES = {"masked_salient_spans": 512, "open_qa_regex": 64}
_WARM_UP = 4


def _batches(
  options: argparse.Namespace, task: str, size: int
) -> Generator[Batch, None, None]:
  files = {"train": options.patterns}
  data = {"corpus_dir": options.corpus_dir, "question_files": files}
  return stream_batches(DataConfig(task=task, batch_size=size, **data))


def _milliseconds(function: Callable[[], Any], steps: int) -> list[float]:
  """Measures the CPU time of a call, in this thread and in all threads."""
  clocks = time.thread_time, time.process_time
  began = [clock() for clock in clocks]
  for _ in range(steps):
    function()
  taken = [clock() - start for clock, start in zip(clocks, began, strict=True)]
  return [1e3 * seconds / steps for seconds in taken]


def main(argv: Sequence[str] | None = None) -> None:
  """Prints a row for each task and size."""
  options = flags.parse(__doc__, argv, corpus_dir=str, patterns=str, steps=20)
  find_task("masked_salient_spans")
  tasks = [("masked_salient_spans", 3), ("masked_random_tokens", 1)]
  seqio.MixtureRegistry.add(_MIXTURE, tasks)
  times: dict[str, list[float]] = {}
  for task, sizes in _EXAMPLES.items():
    for size in sizes:
      with contextlib.closing(_batches(options, task, size)) as stream:
        for _ in range(_WARM_UP):
          next(stream)
        take = functools.partial(next, stream)
        times[f"examples, {task}, {size}"] = _milliseconds(take, options.steps)
  corpus = Corpus.open(options.corpus_dir)
  sizes = {**train_step.SIZES, "dtype": "float32", "attention": "xla"}
  models = train_step.make_models(argparse.Namespace(**sizes))
  context = StageContext(
    models, corpus, None, corpus.block_length, answers=AnswersInBlocks(corpus)
  )
  for task, size in _FEATURES.items():
    stage = OpenQa(index_scores=True) if "qa" in task else Pretraining()
    assert stage.retrieval is not None
    with contextlib.closing(_batches(options, task, size)) as stream:
      batch = next(stream)
    count = stage.retrieval.num_searched(corpus.num_blocks)
    rng = np.random.default_rng(0)
    rows = [rng.permutation(corpus.num_blocks)[:count] for _ in range(size)]
    searched = SearchResult(np.stack(rows), np.ones((size, count), np.float32))
    make = functools.partial(stage.features, batch, searched, context)
    for when in ("the first time", "again"):
      times[f"features, {task}, {size}, {when}"] = _milliseconds(make, 1)
  rows = [["what", "thread, ms", "all threads, ms"]]
  rows += [[name, *(f"{ms:.1f}" for ms in of)] for name, of in times.items()]
  print(columns(rows))
  flags.write(options, times)


if __name__ == "__main__":
  main()
