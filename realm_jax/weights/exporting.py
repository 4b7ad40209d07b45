"""Exports a checkpoint to the files of another system."""

import contextlib
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import safetensors.numpy
from etils import epath

from realm_jax.checkpoints.store import FOLDER, locate
from realm_jax.models.reader import Reader
from realm_jax.models.retriever import Retriever
from realm_jax.storage.access import require_readable
from realm_jax.storage.atomic import atomic_file, atomic_text_file
from realm_jax.storage.json_files import write_json
from realm_jax.text.wordpieces import WordpieceVocabulary, write_pieces
from realm_jax.weights import WeightsError, reading, tables
from realm_jax.weights.directory import (
  VOCABULARY_FILE,
  WEIGHTS,
  Export,
  class_files,
)
from realm_jax.weights.importing import check_new, new_directory
from realm_jax.weights.model import (
  BoundModel,
  flattened,
  nested,
  parameter_shapes,
)
from realm_jax.weights.sentence_transformers import export_tower
from realm_jax.weights.tables import READER


def export_weights(
  model_dir: epath.PathLike,
  retriever: Retriever,
  reader: Reader,
  output_dir: epath.PathLike,
  *,
  to: str,
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
    to: `sentence_transformers` for the retriever, or `hf_bert` for the reader.
    tower: `query` or `block`, if the retriever has two.
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
  export = plan_export(model, to=to, tower=tower)
  shapes = parameter_shapes(model.retriever, model.reader, [export.part])
  like = nested({p: np.empty(s, np.float32) for p, s in shapes.items()})
  checkpoint = epath.Path(model_dir)
  if checkpoint_step is not None:
    checkpoint = checkpoint / FOLDER / str(checkpoint_step)
  store, step = locate(checkpoint)
  with contextlib.closing(store):
    store.require_vocabulary(step, model.vocabulary.sha256)
    flat = flattened(store.restore(step, items=[export.part], like=like))
  parameters = {path: np.asarray(flat[path], np.float32) for path in shapes}
  with new_directory(output_dir) as directory:
    lines = write_export(export, directory, parameters, model.vocabulary.pieces)
  return "\n".join([f"written of checkpoint {step} of {model_dir}:", *lines])


def plan_export(
  model: BoundModel, *, to: str, tower: str | None = None
) -> Export:
  """Plans the export of a model; for the choices, see `export_weights`."""
  retriever, reader, words = model
  if to == "hf_bert":
    if tower is not None:
      raise WeightsError(f"--tower={tower}: a reader has none")
    table = tables.bert("bert/", reader.bert.num_layers)
    table += tables.masked_lm_head()
    return Export(
      READER,
      tables.below(table, ours=f"{READER}/"),
      class_files(reader.bert, "BertForMaskedLM", cased=words.cased),
    )
  if retriever.shared_towers and tower is not None:
    raise WeightsError(
      f"--tower={tower}: the towers of this model are one; leave it out"
    )
  if not retriever.shared_towers and tower is None:
    raise WeightsError(
      "this model has two towers; choose one with --tower=query or "
      "--tower=block"
    )
  return export_tower(model, tower)


def write_export(
  export: Export,
  directory: epath.Path,
  parameters: Mapping[str, np.ndarray],
  pieces: Sequence[str],
) -> list[str]:
  """Writes the files of an export; returns lines for the report.

  Args:
    export: Files to write.
    directory: Directory to fill.
    parameters: Parameters of the part by path, in float32.
    pieces: Vocabulary.
  """
  for folder in export.folders:
    (directory / folder).mkdir(parents=True)
  write_pieces(directory / VOCABULARY_FILE, pieces)
  for name, content in export.files.items():
    if isinstance(content, str):
      with atomic_text_file(directory / name) as file:
        file.write(content)
    else:
      write_json(directory / name, content)
  by_folder: dict[str, dict[str, np.ndarray]] = {}
  left, lines = dict(parameters), []
  named = reading.write(parameters, export.table)
  for name, (path, tensor) in named.items():
    folder, _, of_module = name.partition(".")
    if folder not in export.folders:
      folder, of_module = "", name
    by_folder.setdefault(folder, {})[of_module] = tensor
    left.pop(path)
    lines.append(f"  {reading.show(name, tensor.shape)} <- {path}")
  # `save_file` does not report a full disk as an `OSError`; and transformers
  # reads no file that does not name its framework.
  for folder, tensors in by_folder.items():
    content = safetensors.numpy.save(tensors, metadata={"format": "pt"})
    with atomic_file(directory / folder / WEIGHTS) as path:
      path.write_bytes(content)
  lines.append(f"parameters that are not written: {len(left) or 'none'}")
  lines += [f"  {reading.show(p, array.shape)}" for p, array in left.items()]
  return [*lines, *export.notes]
