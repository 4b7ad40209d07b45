"""Exports a checkpoint to the files of another system."""

import contextlib
import dataclasses
from typing import Literal

import numpy as np
from etils import epath

from realm_jax.checkpoints.best import NAME
from realm_jax.checkpoints.store import CheckpointStore, best_step
from realm_jax.models.reader import Reader
from realm_jax.models.retriever import Retriever
from realm_jax.storage.access import require_readable
from realm_jax.text.wordpieces import WordpieceVocabulary
from realm_jax.weights import WeightsError, sentence_transformers, tables
from realm_jax.weights.config import HF_ATTENTION_MASK_VALUE
from realm_jax.weights.directory import Export, class_files
from realm_jax.weights.importing import check_new, new_directory
from realm_jax.weights.model import (
  VOCABULARY_FILE,
  BoundModel,
  flattened,
  nested,
  parameter_shapes,
)
from realm_jax.weights.tables import READER, RETRIEVER, Encoder


@dataclasses.dataclass(frozen=True)
class TrainedModel:
  """A checkpoint of a run, and its modules, which have no vocabulary yet.

  A `checkpoint_step` of None takes the last checkpoint, and "best" the one that
  `realm_jax.evaluate --follow` has named. A `vocab` of None takes the file in
  `model_dir`, where an import leaves it, or else that of the corpus in
  `corpus_dir`, which the model was trained on.
  """

  model_dir: epath.PathLike
  retriever: Retriever
  reader: Reader
  checkpoint_step: int | Literal["best"] | None = None
  vocab: epath.PathLike | None = None
  corpus_dir: epath.PathLike | None = None

  def bind_vocabulary(self) -> BoundModel:
    """Returns the modules with their vocabulary.

    Raises:
      WeightsError: There is no vocabulary file.
    """
    path = epath.Path(self.vocab or epath.Path(self.model_dir, VOCABULARY_FILE))
    if self.vocab is None and not path.exists():
      if self.corpus_dir is None:
        raise WeightsError(
          f"{path} is not there: give --corpus_dir, the corpus that the model "
          "was trained on, or its vocab.txt as VOCAB"
        )
      path = epath.Path(self.corpus_dir, VOCABULARY_FILE)
    return BoundModel.of(self.retriever, self.reader, WordpieceVocabulary(path))

  def restore(
    self, bound: BoundModel, part: str
  ) -> tuple[dict[str, np.ndarray], int]:
    """Returns the parameters of a part by path, and their step.

    Raises:
      CheckpointError: There is no such checkpoint, or it is of another model or
        vocabulary.
    """
    shapes = parameter_shapes(bound.retriever, bound.reader, [part])
    like = nested({p: np.empty(s, np.float32) for p, s in shapes.items()})
    with contextlib.closing(CheckpointStore(self.model_dir)) as store:
      step = self.checkpoint_step
      if step is None:
        step = store.latest()
      elif step == NAME:
        step = best_step(self.model_dir)
      store.require_vocabulary(step, bound.vocabulary.sha256)
      flat = flattened(store.restore(step, items=[part], like=like))
    return {path: np.asarray(flat[path], np.float32) for path in shapes}, step


def export_weights(
  model: TrainedModel,
  output_dir: epath.PathLike,
  *,
  to: str,
  part: str | None = None,
  tower: str | None = None,
) -> str:
  """Writes a checkpoint as a directory that another system reads.

  Args:
    model: Checkpoint to export.
    output_dir: Directory to make; it appears complete or not at all.
    to: Other system: `hf_bert` or `sentence_transformers`.
    part: Part for hf_bert: `retriever` or `reader`.
    tower: `query` or `block`, if the retriever has two and one is wanted.

  Returns:
    Lines that say what was written, and which parameters were not.

  Raises:
    WeightsError: The other system cannot express the model, the choices do not
      fit the system, or `output_dir` is not empty.
    CheckpointError: There is no such checkpoint, or it is of another model or
      vocabulary.
    TargetError, DiskFullError: `output_dir` cannot be written.
    StoreAccessError: A bucket cannot be read or written.
  """
  require_readable(model.model_dir, model.vocab, model.corpus_dir)
  check_new(output_dir)
  bound = model.bind_vocabulary()
  export = plan_export(bound, to=to, part=part, tower=tower)
  parameters, step = model.restore(bound, export.part)
  with new_directory(output_dir) as directory:
    lines = export.write(directory, parameters, bound.vocabulary.pieces)
  where = f"checkpoint {step} of {model.model_dir}"
  return "\n".join([f"written of {where}:", *lines])


def plan_export(
  model: BoundModel,
  *,
  to: str,
  part: str | None = None,
  tower: str | None = None,
) -> Export:
  """Plans the export of a model; for the choices, see `export_weights`."""
  retriever, reader, _ = model
  if to == "sentence_transformers":
    if part is not None:
      raise WeightsError(
        f"--part={part} is not for --to={to}, which writes the retriever"
      )
    ours = _choose_tower(retriever, tower)
    export = sentence_transformers.plan_export(model, ours, tower)
  elif part == READER:
    if tower is not None:
      raise WeightsError(f"--tower={tower}: a reader has none")
    encoder = Encoder(reader.bert, "bert.", head=tables.HEAD)
    files = class_files(reader.bert, "BertForMaskedLM")
    export = Export(READER, [*tables.reader(encoder)], files)
  elif part == RETRIEVER:
    if retriever.projection_size is not None:
      raise WeightsError(
        f"the retriever projects to {retriever.projection_size} dimensions, as "
        "BERT does not; export it with --to=sentence_transformers, or the "
        "reader with --part=reader"
      )
    ours = _choose_tower(retriever, tower)
    encoder = Encoder(retriever.bert, "")
    export = Export(
      RETRIEVER,
      [*tables.tower(ours, encoder, retriever.pooling)],
      class_files(retriever.bert, "BertModel"),
      [
        f"pooling {retriever.pooling!r} and score_scale="
        f"{retriever.score_scale:g} are not written; "
        "--to=sentence_transformers writes how vectors are made"
      ],
    )
  else:
    raise WeightsError(
      f"--to={to} wants --part=one of {', '.join(tables.PARTS)}, not {part}"
    )
  bert = retriever.bert if export.part == RETRIEVER else reader.bert
  value = bert.attention_mask_value
  if value != HF_ATTENTION_MASK_VALUE:
    note = (
      f"attention_mask_value={value} is not written; transformers adds the "
      "lowest float to the scores of padding"
    )
    export = dataclasses.replace(export, notes=[*export.notes, note])
  return export


def _choose_tower(retriever: Retriever, tower: str | None) -> str:
  """Returns the name of the tower that the user means."""
  if retriever.shared_towers:
    if tower is not None:
      raise WeightsError(
        f"--tower={tower}: the towers of this model are one; leave it out"
      )
    return tables.SHARED_TOWER[0]
  if tower is None:
    raise WeightsError(
      "this model has two towers; choose one with --tower=query or "
      "--tower=block"
    )
  return tables.SEPARATE_TOWERS[tables.TOWERS.index(tower)]
