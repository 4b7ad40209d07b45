"""Exports a checkpoint to the files of another system."""

import contextlib
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
from realm_jax.weights.directory import Export, class_files
from realm_jax.weights.importing import check_new, new_directory
from realm_jax.weights.model import (
  VOCABULARY_FILE,
  BoundModel,
  flattened,
  nested,
  parameter_shapes,
)
from realm_jax.weights.tables import READER, RETRIEVER


def export_weights(
  model_dir: epath.PathLike,
  retriever: Retriever,
  reader: Reader,
  output_dir: epath.PathLike,
  *,
  to: str,
  part: str | None = None,
  tower: str | None = None,
  checkpoint_step: int | Literal["best"] | None = None,
  vocab: epath.PathLike | None = None,
  corpus_dir: epath.PathLike | None = None,
) -> str:
  """Writes a checkpoint as a directory that another system reads.

  Args:
    model_dir: Directory of the run.
    retriever: Retriever of the run, which has no vocabulary yet.
    reader: Reader of the run, likewise.
    output_dir: Directory to make; it appears complete or not at all.
    to: Other system: `hf_bert` or `sentence_transformers`.
    part: Part for hf_bert: `retriever` or `reader`.
    tower: `query` or `block`, if the retriever has two and one is wanted.
    checkpoint_step: Step of the checkpoint; None takes the last one, and "best"
      the one that `realm_jax.evaluate --follow` has named.
    vocab: Vocabulary file; None takes the one in `model_dir`, where an import
      leaves it, or else that of the corpus.
    corpus_dir: Corpus that the model was trained on.

  Returns:
    Lines that say what was written, and which parameters were not.

  Raises:
    WeightsError: The other system cannot express the model, the choices do not
      fit the system, there is no vocabulary, or `output_dir` is not empty.
    CheckpointError: There is no such checkpoint, or it is of another model or
      vocabulary.
    TargetError, DiskFullError: `output_dir` cannot be written.
    StoreAccessError: A bucket cannot be read or written.
  """
  require_readable(model_dir, vocab, corpus_dir)
  check_new(output_dir)
  path = epath.Path(vocab or epath.Path(model_dir, VOCABULARY_FILE))
  if vocab is None and not path.exists():
    if corpus_dir is None:
      raise WeightsError(
        f"{path} is not there: give --corpus_dir, the corpus that the model "
        "was trained on, or its vocab.txt as VOCAB"
      )
    path = epath.Path(corpus_dir, VOCABULARY_FILE)
  model = BoundModel.of(retriever, reader, WordpieceVocabulary(path))
  export = plan_export(model, to=to, part=part, tower=tower)
  shapes = parameter_shapes(model.retriever, model.reader, [export.part])
  like = nested({p: np.empty(s, np.float32) for p, s in shapes.items()})
  with contextlib.closing(CheckpointStore(model_dir)) as store:
    step = checkpoint_step
    if step is None:
      step = store.latest()
    elif step == NAME:
      step = best_step(model_dir)
    store.require_vocabulary(step, model.vocabulary.sha256)
    flat = flattened(store.restore(step, items=[export.part], like=like))
  parameters = {path: np.asarray(flat[path], np.float32) for path in shapes}
  with new_directory(output_dir) as directory:
    lines = export.write(directory, parameters, model.vocabulary.pieces)
  return "\n".join([f"written of checkpoint {step} of {model_dir}:", *lines])


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
    table = tables.reader("bert/", reader.bert.num_layers, head=tables.HEAD)
    export = Export(
      READER,
      tables.below(table, ours=f"{READER}/"),
      class_files(reader.bert, "BertForMaskedLM", cased=model.vocabulary.cased),
    )
  elif part == RETRIEVER:
    if retriever.projection_size is not None:
      raise WeightsError(
        f"the retriever projects to {retriever.projection_size} dimensions, as "
        "BERT does not; export it with --to=sentence_transformers, or the "
        "reader with --part=reader"
      )
    ours = _choose_tower(retriever, tower)
    table = tables.tower("", retriever.bert.num_layers)
    export = Export(
      RETRIEVER,
      tables.below(table, ours=f"{RETRIEVER}/{ours}/"),
      class_files(retriever.bert, "BertModel", cased=model.vocabulary.cased),
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
  return export


def _choose_tower(retriever: Retriever, tower: str | None) -> str:
  """Returns the name of the tower that the user means."""
  if retriever.shared_towers and tower is not None:
    raise WeightsError(
      f"--tower={tower}: the towers of this model are one; leave it out"
    )
  if not retriever.shared_towers and tower is None:
    raise WeightsError(
      "this model has two towers; choose one with --tower=query or "
      "--tower=block"
    )
  return tables.SEPARATE_TOWERS[tower] if tower else tables.SHARED_TOWER
