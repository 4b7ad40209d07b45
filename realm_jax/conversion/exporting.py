"""Exports a checkpoint to the files of another system."""

import dataclasses
import json

import numpy as np
import safetensors.numpy
from etils import epath

from realm_jax.checkpoints.manager import CheckpointStore
from realm_jax.checkpoints.vocabulary import require_vocabulary
from realm_jax.conversion.errors import ConversionError
from realm_jax.conversion.export_plan import TOWERS, Exported, ExportPlan
from realm_jax.conversion.hugging_face import bert_export, realm_export
from realm_jax.conversion.hugging_face.directory import WEIGHTS
from realm_jax.conversion.mapping import show_shape, write_tensors
from realm_jax.conversion.output_directory import check_new, new_directory
from realm_jax.conversion.parameters import (
  flattened,
  nested,
  parameter_shapes,
)
from realm_jax.conversion.plan import PARTS
from realm_jax.conversion.vocabulary import VOCABULARY_FILE
from realm_jax.models.reader import Reader
from realm_jax.models.retriever import Retriever
from realm_jax.text.wordpieces import WordpieceVocabulary, write_pieces

SYSTEMS = ("hf_bert", "hf_realm")


@dataclasses.dataclass(frozen=True)
class TrainedModel:
  """A checkpoint and the modules whose parameters it holds.

  Attributes:
    model_dir: Directory of the run.
    retriever: Towers, without a vocabulary.
    reader: Reader, without a vocabulary.
    checkpoint_step: Step of the checkpoint; None takes the last.
    vocab: Vocabulary file; None takes that of `model_dir`, where an import
      leaves it.
  """

  model_dir: epath.PathLike
  retriever: Retriever
  reader: Reader
  checkpoint_step: int | None = None
  vocab: epath.PathLike | None = None

  def bind_vocabulary(self) -> Exported:
    """Returns the modules with their vocabulary.

    Raises:
      ConversionError: If there is no vocabulary file.
    """
    path = epath.Path(self.vocab or epath.Path(self.model_dir, VOCABULARY_FILE))
    if self.vocab is None and not path.exists():
      raise ConversionError(
        f"{path} is not there: give VOCAB, the vocab.txt in the directory of "
        "the corpus that the model was trained on"
      )
    words = WordpieceVocabulary(path)
    settings = {"vocab_size": words.vocab_size, "separator_id": words.sep_id}
    return Exported(
      self.retriever.for_vocabulary(**settings),
      self.reader.for_vocabulary(**settings),
      words,
    )


@dataclasses.dataclass(frozen=True)
class ExportTarget:
  """What the user wants to be written.

  Attributes:
    to: Other system: one of `SYSTEMS`.
    part: Part for hf_bert: `retriever` or `reader`.
    model: Class for hf_realm: one of `realm_export.MODELS`.
    tower: `query` or `block`, if the retriever has two and one is wanted.
  """

  to: str
  part: str | None = None
  model: str | None = None
  tower: str | None = None

  def __post_init__(self) -> None:
    if self.to not in SYSTEMS:
      raise ConversionError(f"--to={self.to}; want one of {', '.join(SYSTEMS)}")
    if self.tower is not None and self.tower not in TOWERS:
      raise ConversionError(
        f"--tower={self.tower}; want one of {', '.join(TOWERS)}"
      )

  def plan(self, model: Exported) -> ExportPlan:
    """Returns the plan of the export.

    Raises:
      ConversionError: If the other system cannot express the model, or the
        choices do not fit the system.
    """
    part, name = f"--part={self.part}", f"--model={self.model}"
    if self.to == "hf_bert":
      if self.model is not None:
        raise ConversionError(f"{name} is not for --to=hf_bert; --part is")
      if self.part not in PARTS:
        raise self._unknown("--part", PARTS, self.part)
      return bert_export.plan_hf_bert_export(
        model, part=self.part, tower=self.tower
      )
    if self.part is not None:
      raise ConversionError(f"{part} is not for --to=hf_realm; --model is")
    if self.model not in realm_export.MODELS:
      raise self._unknown("--model", realm_export.MODELS, self.model)
    return realm_export.plan_hf_realm_export(
      model, name=self.model, tower=self.tower
    )

  def _unknown(
    self, flag: str, choices: tuple[str, ...], value: str | None
  ) -> ConversionError:
    return ConversionError(
      f"--to={self.to} wants {flag}=one of {', '.join(choices)}, not {value}"
    )


def export_weights(
  model: TrainedModel, target: ExportTarget, output_dir: epath.PathLike
) -> str:
  """Writes a checkpoint as a directory that another system reads.

  Args:
    model: Checkpoint to export.
    target: System to export to, and what to write.
    output_dir: Directory to make; it appears complete or not at all.

  Returns:
    Lines that say what was written, and which parameters were not.

  Raises:
    ConversionError: If the other system cannot express the model, or
      `output_dir` is not empty.
    CheckpointError: If there is no such checkpoint, or it is of another model
      or vocabulary.
    TargetError, DiskFullError: If `output_dir` cannot be written.
  """
  check_new(output_dir)
  exported = model.bind_vocabulary()
  plan = target.plan(exported)
  parameters, step = _parameters(model, exported, plan)
  with new_directory(output_dir) as directory:
    _write(directory, plan, parameters, exported.vocabulary.pieces)
  return _report(plan, parameters, f"checkpoint {step} of {model.model_dir}")


def _parameters(
  model: TrainedModel, exported: Exported, plan: ExportPlan
) -> tuple[dict[str, np.ndarray], int]:
  """Returns the parameters of the plan's parts, by path, and their step."""
  shapes = parameter_shapes(exported.retriever, exported.reader, plan.parts)
  like = nested(
    {path: np.empty(shape, np.float32) for path, shape in shapes.items()}
  )
  store = CheckpointStore(model.model_dir)
  try:
    step = model.checkpoint_step
    if step is None:
      step = store.latest()
    require_vocabulary(store, step, exported.vocabulary.sha256)
    restored = store.restore(step, items=plan.parts, like=like)
  finally:
    store.close()
  flat = flattened(restored)
  return {path: np.asarray(flat[path], np.float32) for path in shapes}, step


def _write(
  directory: epath.Path,
  plan: ExportPlan,
  parameters: dict[str, np.ndarray],
  pieces: tuple[str, ...],
) -> None:
  directory.mkdir(parents=True, exist_ok=True)
  write_pieces(directory / VOCABULARY_FILE, pieces)
  for name, content in plan.files.items():
    path = directory / name
    if content is None:
      path.mkdir(parents=True)
    else:
      path.parent.mkdir(parents=True, exist_ok=True)
      path.write_text(json.dumps(content, indent=2) + "\n")
  tensors = write_tensors(parameters, plan.rules)
  # `save_file` does not report a full disk as an `OSError`; and transformers
  # reads no file that does not name its framework.
  (directory / WEIGHTS).write_bytes(
    safetensors.numpy.save(tensors, metadata={"format": "pt"})
  )


def _report(
  plan: ExportPlan, parameters: dict[str, np.ndarray], where: str
) -> str:
  written = {rule.path for rule in plan.rules}
  left = [path for path in parameters if path not in written]
  lines = [f"written of {where} ({len(plan.rules)} tensors):"]
  for rule in plan.rules:
    shape = parameters[rule.path].shape
    stored = shape[::-1] if rule.transpose else shape
    lines.append(f"  {rule.names[0]} {show_shape(stored)} <- {rule.path}")
  lines.append(f"not written (parameters): {len(left) or 'none'}")
  lines += [f"  {path} {show_shape(parameters[path].shape)}" for path in left]
  return "\n".join([*lines, *plan.notes])
