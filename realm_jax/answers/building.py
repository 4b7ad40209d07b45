"""Searches all blocks for all answers, and stores what they contain."""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from etils import epath

from realm_jax.answers.distinct import DistinctAnswers
from realm_jax.answers.matcher import BlockMatcher
from realm_jax.answers.runs import Runs, merge, write_runs
from realm_jax.answers.store import (
  MANIFEST,
  AnswersError,
  write_store_manifest,
)
from realm_jax.answers.worker import Plan
from realm_jax.console.progress import Progress
from realm_jax.corpus.store import Corpus
from realm_jax.files import npy
from realm_jax.files.object_store.remote import is_remote
from realm_jax.files.whole.whole_directory import (
  TargetError,
  rename_into_place,
  staging_directory,
  upload_directory,
)

# Processes are worth their start only for more blocks than this.
_BLOCKS_PER_WORKER = 20_000
_MAX_WORKERS = 2


def build_store(
  directory: epath.PathLike,
  corpus: Corpus,
  answers: DistinctAnswers,
  *,
  key: str,
  num_workers: int | None = None,
) -> None:
  """Makes the store of a corpus and answers; replaces one that is there.

  It appears complete, or not at all. The memory that it takes does not grow
  with the number of blocks.

  Args:
    directory: Directory of the store, local or on an object store.
    corpus: Corpus to search.
    answers: Answers to look for.
    key: Key by which the store is recognised.
    num_workers: Number of processes; None chooses at most 2.

  Raises:
    AnswersError: A process failed, or the disk is full.
  """
  if num_workers is None:
    cores = len(os.sched_getaffinity(0))
    wanted = corpus.num_blocks // _BLOCKS_PER_WORKER
    num_workers = max(min(_MAX_WORKERS, cores, wanted), 1)
  try:
    with staging_directory(directory) as staging:
      _build(staging, corpus, answers, key=key, num_workers=num_workers)
      if is_remote(directory):
        upload_directory(staging, directory, last=MANIFEST)
      else:
        rename_into_place(staging, directory, overwrite=True)
  except (OSError, TargetError) as error:
    raise AnswersError(
      f"cannot store which blocks contain answers in {directory}: {error}"
    ) from error


def _build(
  staging: Path,
  corpus: Corpus,
  answers: DistinctAnswers,
  *,
  key: str,
  num_workers: int,
) -> None:
  folder = staging / "runs"
  folder.mkdir()
  runs = _search(Plan(corpus, answers, folder, num_workers))
  offsets = merge(runs, len(answers), staging / "rows.npy")
  npy.save(staging / "offsets.npy", offsets)
  shutil.rmtree(folder)
  write_store_manifest(staging, key)


def _search(plan: Plan) -> list[Runs]:
  """Searches all rows, in processes if there are to be several."""
  total = plan.corpus.num_blocks
  with Progress("blocks searched for answers", total=total) as progress:
    if plan.num_workers == 1:
      rows = plan.rows(0)
      matcher = BlockMatcher(plan.answers)
      advance = progress.advance
      return [
        write_runs(plan.path(0), matcher, plan.corpus, rows, advance=advance)
      ]
    path = plan.save()
    with _workers(path, plan.num_workers) as (processes, printed):
      for line in printed:
        progress.advance(int(line))
      failed = [i for i, process in enumerate(processes) if process.wait()]
  if failed:
    raise AnswersError(
      f"process {failed[0]}, which searched blocks for answers, ended with "
      f"status {processes[failed[0]].returncode}; its last lines say why"
    )
  return plan.runs()


@contextlib.contextmanager
def _workers(
  plan: Path, count: int
) -> Iterator[tuple[list[subprocess.Popen[bytes]], Iterator[str]]]:
  """Starts processes; yields them, and the lines that any of them prints."""
  # They find the project where this process did.
  paths = os.pathsep.join(filter(None, sys.path))
  environment = {**os.environ, "PYTHONPATH": paths}
  command = [sys.executable, "-m", "realm_jax.answers.worker", str(plan)]
  reading, writing = os.pipe()
  processes: list[subprocess.Popen[bytes]] = []
  with os.fdopen(reading) as printed:
    try:
      with os.fdopen(writing, "w") as output:
        for number in range(count):
          processes.append(
            subprocess.Popen(
              [*command, str(number)],
              stdin=subprocess.DEVNULL,
              stdout=output,
              env=environment,
            )
          )
      yield processes, printed
    finally:
      for process in processes:
        process.kill()
        process.wait()
