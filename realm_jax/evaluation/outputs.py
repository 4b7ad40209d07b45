"""The processes of an evaluation, and the files that they write together.

A process evaluates its own rows of each batch, with the whole model and the
whole index on its own devices, and waits for no other until its rows are done.
An index that lives on devices must therefore fit on those of one host: the
vectors of 13 million blocks, 128 bfloat16 numbers each, take 3.4 GB. Process 0
gathers what all have found, and writes it.
"""

import contextlib
import dataclasses
import itertools
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import jax
from etils import epath

from realm_jax.errors import RealmError
from realm_jax.evaluation.run import RunConfig, TrainedRun, whole_batch
from realm_jax.evaluation.scores import Line, summarize
from realm_jax.indexes.protocol import IndexConfig
from realm_jax.inputs.batch import Batch
from realm_jax.inputs.batches import stream_batches
from realm_jax.inputs.config import DataConfig
from realm_jax.partitioning import processes
from realm_jax.partitioning.agreement import Agreement
from realm_jax.partitioning.sharding import RowGroups
from realm_jax.storage.access import require_writable
from realm_jax.storage.json_files import JsonValue, json_lines, write_json

METRICS = "metrics.json"
PREDICTIONS, RETRIEVED = "predictions.jsonl", "retrieved.jsonl"
# The key-value store of the processes refuses values of several megabytes.
_CHARACTERS_PER_PIECE = 1 << 19

# Metrics and a description of what was measured, by name.
Figures = dict[str, JsonValue]
T = TypeVar("T")


class EvaluationShard:
  """This process's part of an evaluation; all of it, if it is alone.

  All processes must call the same methods in the same order, which raise
  `ProcessesError` where one has failed.

  Args:
    output_dir: Directory of what is written; None writes nothing.
    configs: Arguments of the evaluation, which all processes must have alike.

  Raises:
    ProcessesError: An argument differs.
    StoreAccessError: The directory cannot be written to.
  """

  def __init__(self, output_dir: epath.PathLike | None = None, **configs: Any):
    self._start = time.monotonic()
    self._output_dir = None if output_dir is None else epath.Path(output_dir)
    self.agreement = Agreement("evaluation")
    devices = {"the number of devices of a process": jax.local_device_count()}
    self.agreement.require_same(configs | devices)
    if self._output_dir is not None and self.agreement.is_leader:
      require_writable(self._output_dir)

  @contextlib.contextmanager
  def batches(
    self, data: DataConfig, *, shuffle: bool = True, repeat: bool = True
  ) -> Iterator[Iterator[Batch]]:
    """Opens this process's rows of all batches: see `stream_batches`.

    The size of global batches is rounded up to a multiple of all devices.
    Without `repeat`, some processes have a batch more than others. The batches
    raise `ProcessesError` once another process has failed.
    """
    count, index = self.agreement.count, self.agreement.index
    size = whole_batch(data.batch_size, count * jax.local_device_count())
    rows = RowGroups(count, (index,)).own_rows(size)
    data = dataclasses.replace(data, batch_size=size)
    stream = stream_batches(
      data, positions=rows, shuffle=shuffle, repeat=repeat
    )

    def watched() -> Iterator[Batch]:
      for batch in stream:
        processes.require_no_failure()
        yield batch

    with contextlib.closing(stream):
      yield watched()

  def load(
    self,
    config: RunConfig,
    *,
    max_batch: int,
    index: IndexConfig | str | None = None,
    needs_index: bool = True,
  ) -> TrainedRun:
    """Loads a run with its snapshot, and its reader if one is configured.

    An evaluation that needs no index has no snapshot.

    Raises what `TrainedRun.load` does, or `ProcessesError`: the processes have
    not all loaded the same, or one has failed.
    """
    run = TrainedRun.load(config, index=index, max_batch=max_batch)
    if config.reader is not None:
      run.require_reader()
    self._needs_index = needs_index
    corpus = run.corpus if needs_index else run.newest_corpus
    self.agreement.require_same(
      {
        "the checkpoint": run.step,
        "the snapshot": run.snapshot.step if needs_index else None,
        "the corpus": corpus.fingerprint,
      }
    )
    return run

  def gather_to_leader(self, what: str, found: T) -> list[T]:
    """Returns what all processes have found to process 0; to others, nothing.

    A value, which JSON can hold, may be large: it is exchanged in pieces.
    """
    if self.agreement.count == 1:
      return [found]
    text = json.dumps(found)
    longest = self.agreement.exchange(f"size of {what}", len(text), max)
    # Process 0 alone applies the rule, to what all give.
    by_piece: list[Sequence[str]] = []
    for start in range(0, longest, _CHARACTERS_PER_PIECE):
      piece = text[start : start + _CHARACTERS_PER_PIECE]
      self.agreement.exchange(f"{what}, {start}", piece, by_piece.append)
    return [json.loads("".join(own)) for own in zip(*by_piece, strict=True)]

  def report_lines(
    self,
    name: str,
    lines: Mapping[int, Line],
    described: Figures,
    run: TrainedRun,
  ) -> Figures:
    """Writes a file of the lines of all processes, and reports their scores.

    The keys of `lines` are the positions of this process's lines among the
    examples; `described` says what they were made with.

    Raises:
      RealmError: There are no lines.
      OSError: The disk is full, or the directory cannot be written to.
    """
    parts = self.gather_to_leader(name, [*lines.items()])
    pairs = sorted(itertools.chain(*parts), key=lambda pair: pair[0])
    every = [line for _, line in pairs]
    if self.agreement.is_leader and not every:
      raise RealmError("the task gives no questions")
    if self._output_dir is not None and self.agreement.is_leader:
      with json_lines(self._output_dir / name) as write:
        for line in every:
          write(line)
    return self.report(lambda: summarize(every) | described, run)

  def report(self, metrics: Callable[[], Figures], run: TrainedRun) -> Figures:
    """Adds what was measured to metrics, and writes both to `metrics.json`.

    Process 0 computes the metrics and writes, and all return the same.

    Raises:
      OSError: The disk is full, or the directory cannot be written to.
    """

    def write() -> Figures:
      corpus, searched = run.newest_corpus, {}
      if self._needs_index:
        corpus, index = run.corpus, run.snapshot.index.kind
        searched = {"snapshot": run.snapshot.step, "index": index}
      figures = metrics() | {
        "checkpoint": run.step,
        **searched,
        "num_blocks": corpus.num_blocks,
        "model_dir": str(run.model_dir),
        "corpus_dir": str(corpus.source),
        "corpus_fingerprint": corpus.fingerprint,
        "corpus_version": corpus.version,
        "language": corpus.language,
        "seconds": round(time.monotonic() - self._start, 3),
      }
      if self._output_dir is not None:
        write_json(self._output_dir / METRICS, figures)
      return figures

    return self.agreement.on_process_0("figures", write)
