"""Chooses and loads the snapshot that a trained run searches."""

from collections.abc import Sequence
from typing import Any

from absl import logging
from etils import epath

from realm_jax.corpus.store import Corpus
from realm_jax.evaluation.config import RunConfig
from realm_jax.indexes.protocol import SearchError
from realm_jax.snapshots.loading import Snapshot, load_newest, load_snapshot
from realm_jax.snapshots.manifest import MissingSnapshotError, SnapshotError
from realm_jax.snapshots.store import FOLDER as SNAPSHOTS
from realm_jax.snapshots.store import SnapshotStore, step_of


def load_chosen_snapshot(
  config: RunConfig,
  model_dir: epath.Path,
  steps: Sequence[int],
  *,
  corpus: Corpus,
  **settings: Any,
) -> Snapshot:
  """Loads the configured snapshot, or the first of these steps that exists.

  Raises:
    SnapshotError: The snapshot is missing, damaged, or for another corpus.
    SearchError: The index does not fit INDEX_SCORES.
  """
  folder = epath.Path(config.snapshot or model_dir / SNAPSHOTS)
  if config.snapshot is None:
    published = SnapshotStore(folder).steps()
    number = next((step for step in steps if step in published), None)
    if number is None:
      raise MissingSnapshotError(
        f"the checkpoint wants snapshot {steps[-1]}, and {folder} has "
        f"{published or 'none'}; build the newest checkpoint's with `python -m "
        f"realm_jax.build_index --once --model_dir={model_dir}`, or name one "
        "with SNAPSHOT"
      )
  elif (number := step_of(folder)) is not None:
    folder = folder.parent
  elif not folder.exists():
    raise SnapshotError(
      f"{folder} does not exist; want a snapshot, or a folder of them such "
      f"as MODEL_DIR/{SNAPSHOTS}"
    )
  if number is None:
    snapshot = load_newest(folder, corpus=corpus, **settings)
  else:
    snapshot = load_snapshot(folder, number, corpus=corpus, **settings)
  logging.info(
    "Searching snapshot %d (%s over %d blocks)",
    *(snapshot.step, snapshot.index.kind, snapshot.num_blocks),
  )
  if snapshot.corpus.version < corpus.version:
    logging.warning(
      "Snapshot %d is of version %d of the corpus, which has version %d by "
      "now; `python -m realm_jax.build_index --once` builds one of that "
      "version",
      *(snapshot.step, snapshot.corpus.version, corpus.version),
    )
  if config.index_scores and snapshot.index.needs_vectors:
    raise SearchError(
      "INDEX_SCORES is for an index without vectors, and snapshot "
      f"{snapshot.step} is searched by {snapshot.index.kind!r}; give the "
      "snapshot of the index that the run was trained with"
    )
  return snapshot
