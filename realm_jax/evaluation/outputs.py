"""The processes of an evaluation, and the files that they write together.

A process evaluates its own rows of each batch, with the whole model and the
whole index on its own devices, and waits for no other until its rows are done.
An index that lives on devices must therefore fit on those of one host: the
vectors of 13 million blocks, 128 bfloat16 numbers each, take 3.4 GB. Process 0
gathers the scores of all, and writes them with the lines in their parts.
"""

import contextlib
import dataclasses
import json
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import jax
from etils import epath

from realm_jax.checkpoints.store import FOLDER as CHECKPOINTS
from realm_jax.corpus.store import Corpus
from realm_jax.errors import RealmError
from realm_jax.evaluation.parts import (
  FOLDER,
  Part,
  Parts,
  merge,
  open_folder,
  require_shared,
)
from realm_jax.evaluation.run import RunConfig, TrainedRun, whole_batch
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
    self._configs = configs
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
    self._needs_index = needs_index and config.candidates != "none"
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

  def open_parts(
    self,
    run: TrainedRun,
    inputs: Sequence[epath.PathLike],
    scored: Callable[[Sequence[Line]], Scores] = line_scores,
  ) -> Parts:
    """Opens this process's lines, of which an earlier one may have left some.

    Those were made by the same program and settings from the same checkpoint,
    snapshot, corpus and `inputs`, the files and folders of the questions.
    `scored` returns the scores of lines.

    Raises:
      RealmError: The hosts do not share the output directory.
    """
    if self._output_dir is None:
      return Parts(None, self.agreement.index, scored)
    output_dir = self._output_dir

    def describe() -> str:
      checkpoint = run.model_dir / CHECKPOINTS / str(run.step)
      values = {
        **self._configs,
        "the number of processes": self.agreement.count,
        "the kind of devices": jax.devices()[0].device_kind,
        # Files of a checkpoint have random names.
        "the checkpoint": json_checksum(sizes_below(checkpoint)),
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
    folder = output_dir / FOLDER / name
    self.agreement.on_all_processes(
      "shared folder", lambda: require_shared(folder)
    )
    return Parts(folder, self.agreement.index, scored)

  def report_parts(
    self,
    name: str | None,
    own: Parts,
    described: Figures,
    run: TrainedRun,
    summarized: Callable[[Scores], Figures] = summarize,
    written: Callable[[epath.Path], None] = lambda path: None,
  ) -> Figures:
    """Writes a file of the lines of all processes, and reports their scores.

    `described` says what the lines were made with. Without a name for the file,
    the scores alone are reported. `written` is called with the path of the file
    on process 0, before there are metrics.

    Raises:
      RealmError: There are no lines, or process 0 does not see those of others.
      OSError: The disk is full, or the directory cannot be written to.
    """
    own.flush()
    most = self.agreement.exchange("number of parts", len(own.parts), max)
    parts = []
    for number in range(most):
      given = [part.to_json() for part in own.parts[number : number + 1]]
      every = self.gather_to_leader("scores of a part", given)
      parts += [Part.from_json(one) for few in every for one in few]

    def metrics() -> Figures:
      if not parts:
        raise RealmError("the task gives no questions")
      scores = merge(parts, own.folder, name)
      if self._output_dir is not None and name is not None:
        written(self._output_dir / name)
      return summarized(scores) | described

    figures = self.report(metrics, run)
    if own.folder is not None and self.agreement.is_leader:
      own.folder.parent.rmtree()
    return figures

  def report(self, metrics: Callable[[], Figures], run: TrainedRun) -> Figures:
    """Adds what was measured to metrics, and writes both to `metrics.json`.

    Process 0 computes the metrics and writes, and all return the same.

    Raises:
      OSError: The disk is full, or the directory cannot be written to.
    """

    def write() -> Figures:
      corpus, searched = self._corpus_of(run), {}
      if self._needs_index:
        index = run.snapshot.index.kind
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
