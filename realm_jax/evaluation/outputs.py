"""The processes of an evaluation, and the files that they write together.

Each process evaluates its own rows of each batch, with the whole model and the
whole index on its own devices, and waits for others only when its rows are
done. An index on devices must therefore fit on the devices of one host: the
vectors of 13 million blocks, 128 bfloat16 numbers each, take 3.4 GB. Process 0
reads the parts of all processes, and writes their lines and scores.
"""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
from etils import epath

from realm_jax.corpus.store import Corpus
from realm_jax.errors import RealmError
from realm_jax.evaluation.config import RunConfig
from realm_jax.evaluation.parts import (
  FOLDER,
  Parts,
  merge,
  open_folder,
  read_parts,
)
from realm_jax.evaluation.run import TrainedRun, whole_batch
from realm_jax.evaluation.scores import Line, Scores, line_scores, summarize
from realm_jax.indexes.protocol import IndexConfig
from realm_jax.inputs.batch import Batch
from realm_jax.inputs.batches import stream_batches
from realm_jax.inputs.config import DataConfig
from realm_jax.partitioning import processes
from realm_jax.partitioning.agreement import Agreement, description_of
from realm_jax.partitioning.sharding import RowGroups
from realm_jax.snapshots.manifest import json_checksum
from realm_jax.storage.access import require_writable
from realm_jax.storage.json_files import JsonValue, write_json
from realm_jax.storage.paths import sizes_below
from realm_jax.storage.staging import sha256_of

METRICS = "metrics.json"

# Metrics of an evaluation by name, with a description of its settings.
Metrics = dict[str, JsonValue]


class EvaluationShard:
  """This process's part of an evaluation; all of it for a single process.

  All processes must call the same methods in the same order. The methods raise
  a `ProcessesError` if another process has failed.

  Args:
    output_dir: Output directory; None, for a single process, writes nothing.
    configs: Arguments of the evaluation, which must be the same for all
      processes.

  Raises:
    ProcessesError: An argument differs.
    RealmError: There are several processes, but no shared directory.
    StoreAccessError: The directory cannot be written to.
  """

  def __init__(self, output_dir: epath.PathLike | None = None, **configs: Any):
    self._start = time.monotonic()
    self._output_dir = None if output_dir is None else epath.Path(output_dir)
    self._configs = configs
    self.agreement = Agreement("evaluation")
    devices = {"the number of devices of a process": jax.local_device_count()}
    self.agreement.require_same(configs | devices)
    if self._output_dir is None and self.agreement.count > 1:
      raise RealmError(
        "several processes evaluate together, and OUTPUT_DIR is None; name a "
        "directory on a file system or in a bucket that all hosts share"
      )
    if self.agreement.is_leader:
      require_writable(self._output_dir)

  @contextlib.contextmanager
  def batches(
    self, data: DataConfig, *, shuffle: bool = True, repeat: bool = True
  ) -> Iterator[Iterator[Batch]]:
    """Opens this process's rows of all batches (see `stream_batches`).

    The size of global batches is rounded up to a multiple of the number of
    devices. Without `repeat`, some processes have one batch more than others.
    The batches raise a `ProcessesError` once another process has failed.
    """
    count, index = self.agreement.count, self.agreement.index
    size = whole_batch(data.batch_size, count * jax.local_device_count())
    rows = RowGroups(count, (index,)).local_rows(size)
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

    Raises the errors of `TrainedRun.load`, or a `ProcessesError` if the
    processes have not all loaded the same, or one has failed.
    """
    run = TrainedRun.load(config, index=index, max_batch=max_batch)
    if config.reader is not None:
      run.require_reader()
    self._needs_index = needs_index and run.retrieves
    self.agreement.require_same(
      {
        "the checkpoint": run.step,
        "the snapshot": run.snapshot.step if self._needs_index else None,
        "the corpus": self._corpus_of(run).fingerprint,
      }
    )
    return run

  def _corpus_of(self, run: TrainedRun) -> Corpus:
    return run.corpus if self._needs_index else run.newest_corpus

  def open_parts(
    self,
    run: TrainedRun,
    inputs: Sequence[epath.PathLike],
    scored: Callable[[Sequence[Line]], Scores] = line_scores,
  ) -> Parts:
    """Opens this process's lines, including lines of a killed evaluation.

    Earlier lines are used if they are from the same program, settings,
    checkpoint, snapshot, corpus and `inputs`, the files and folders of the
    questions. `scored` returns the scores of lines.

    Raises:
      RealmError: The hosts do not share the output directory.
    """
    if self._output_dir is None:
      return Parts(None, self.agreement.index, scored)
    output_dir = self._output_dir

    def describe() -> str:
      values = {
        **self._configs,
        "the number of processes": self.agreement.count,
        "the kind of devices": jax.devices()[0].device_kind,
        "the checkpoint": run.checkpoint_checksum,
        "the snapshot": json_checksum(
          dataclasses.asdict(run.snapshot.manifest) if self._needs_index else {}
        ),
        "the corpus": self._corpus_of(run).fingerprint,
        "the questions": [
          sha256_of(path) if epath.Path(path).is_file() else sizes_below(path)
          for path in inputs
        ],
      }
      return open_folder(output_dir, description_of(values))

    name = self.agreement.on_process_0("parts", describe)
    folder, index = output_dir / FOLDER / name, self.agreement.index
    return self.agreement.on_all_processes(
      "shared folder", lambda: Parts(folder, index, scored)
    )

  def report_parts(
    self,
    name: str | None,
    own: Parts,
    described: Metrics,
    run: TrainedRun,
    summarized: Callable[[Scores], Metrics] = summarize,
    written: Callable[[epath.Path], None] = lambda path: None,
  ) -> Metrics:
    """Writes the lines of all processes to a file, and `metrics.json`.

    The metrics are added to `described`, the description of the settings.
    Without a name for the file, only the scores are reported. Process 0 calls
    `written` with the path of the file, before it writes metrics. All processes
    return the same metrics.

    Raises:
      RealmError: There are no lines, or lines of other processes are missing on
        process 0.
      OSError: The disk is full, or the directory cannot be written to.
    """
    own.flush()
    folder, output_dir = own.folder, self._output_dir
    counts = self.agreement.exchange("parts", len(own.parts), list)

    def write() -> Metrics:
      parts = own.parts
      if folder is not None:
        parts = [
          part
          for process, count in enumerate(counts)
          for part in read_parts(folder, process, range(count))
        ]
      if not parts:
        raise RealmError("the task gives no questions")
      scores = merge(parts, folder, name)
      if output_dir is not None and name is not None:
        written(output_dir / name)
      corpus, searched = self._corpus_of(run), {}
      if self._needs_index:
        index = run.snapshot.index.kind
        searched = {"snapshot": run.snapshot.step, "index": index}
      metrics = summarized(scores) | {
        **described,
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
      if output_dir is not None:
        write_json(output_dir / METRICS, metrics)
      return metrics

    metrics = self.agreement.on_process_0("metrics", write)
    if folder is not None and self.agreement.is_leader:
      folder.parent.rmtree()
    return metrics
