"""Exports a checkpoint to the files of another system."""

import json
from typing import Any

import numpy as np
import safetensors.numpy
from etils import epath

from realm_jax.checkpoints.manager import CheckpointStore
from realm_jax.checkpoints.vocabulary import require_vocabulary
from realm_jax.conversion.errors import ConversionError
from realm_jax.conversion.export_plan import TOWERS, Exported, ExportPlan
from realm_jax.conversion.hugging_face import directory as hf_directory
from realm_jax.conversion.hugging_face.bert_export import plan_hf_bert_export
from realm_jax.conversion.hugging_face.realm_export import (
  MODELS,
  plan_hf_realm_export,
)
from realm_jax.conversion.mapping import show_shape, write_tensors
from realm_jax.conversion.parameters import (
  flattened,
  nested,
  parameter_shapes,
)
from realm_jax.conversion.plan import PARTS
from realm_jax.conversion.vocabulary import VOCABULARY_FILE
from realm_jax.conversion.whole_directory import check_target, whole_directory
from realm_jax.models.reader import Reader
from realm_jax.models.retriever import Retriever
from realm_jax.text.wordpieces import WordpieceVocabulary, write_pieces

SYSTEMS = ("hf_bert", "hf_realm")


def export_weights(
  *,
  to: str,
  model_dir: epath.PathLike,
  output_dir: epath.PathLike,
  retriever: Retriever,
  reader: Reader,
  part: str | None = None,
  model: str | None = None,
  tower: str | None = None,
  checkpoint_step: int | None = None,
  vocab: epath.PathLike | None = None,
) -> str:
  """Writes a checkpoint as a directory that another system reads.

  Args:
    to: one of `SYSTEMS`.
    model_dir: whose checkpoint.
    output_dir: the directory to make; appears complete or not at all.
    retriever: the towers of the checkpoint.
    reader: its reader.
    part: for hf_bert, `retriever` or `reader`.
    model: for hf_realm, one of its classes: `MODELS`.
    tower: `query` or `block`, where there are two and one is wanted.
    checkpoint_step: which checkpoint; None takes the last.
    vocab: its vocabulary; None takes that of `model_dir`, which an import
      leaves there.

  Returns:
    What was written, and which parameters were not, in lines.

  Raises:
    ConversionError: the other system cannot express the model, or
      `output_dir` is not empty.
    CheckpointError: there is no such checkpoint, or it is of another model or
      vocabulary.
  """
  if to not in SYSTEMS:
    raise ConversionError(f"--to={to}; want one of {', '.join(SYSTEMS)}")
  if tower is not None and tower not in TOWERS:
    raise ConversionError(f"--tower={tower}; want one of {', '.join(TOWERS)}")
  check_target(output_dir)
  words = _vocabulary(model_dir, vocab)
  settings = {"vocab_size": words.vocab_size, "separator_id": words.sep_id}
  exported = Exported(
    retriever.for_vocabulary(**settings),
    reader.for_vocabulary(**settings),
    words,
  )
  if to == "hf_bert":
    part = _require_choice(
      to, "--part", part, PARTS, not_for_it={"--model": model}
    )
    plan = plan_hf_bert_export(exported, part=part, tower=tower)
  else:
    model = _require_choice(
      to, "--model", model, MODELS, not_for_it={"--part": part}
    )
    plan = plan_hf_realm_export(exported, name=model, tower=tower)
  parameters, step = _parameters(exported, plan, model_dir, checkpoint_step)
  with whole_directory(output_dir) as directory:
    _write(directory, plan, parameters, words.pieces)
  where = f"checkpoint {step} of {model_dir}"
  return _report(plan, parameters, where)


def _require_choice(
  to: str,
  flag: str,
  value: str | None,
  choices: tuple[str, ...],
  *,
  not_for_it: dict[str, str | None],
) -> str:
  for name, other in not_for_it.items():
    if other is not None:
      raise ConversionError(f"{name}={other} is not for --to={to}; {flag} is")
  if value is None or value not in choices:
    raise ConversionError(
      f"--to={to} wants {flag}=one of {', '.join(choices)}, not {value}"
    )
  return value


def _vocabulary(
  model_dir: epath.PathLike, vocab: epath.PathLike | None
) -> WordpieceVocabulary:
  path = epath.Path(vocab or epath.Path(model_dir) / VOCABULARY_FILE)
  if vocab is None and not path.exists():
    raise ConversionError(
      f"{path} is not there: give VOCAB, the vocab.txt in the directory of the "
      "corpus that the model was trained on"
    )
  return WordpieceVocabulary(path)


def _parameters(
  model: Exported,
  plan: ExportPlan,
  model_dir: epath.PathLike,
  checkpoint_step: int | None,
) -> tuple[dict[str, np.ndarray], int]:
  """The parameters of the plan's parts, by path, and their step."""
  shapes = parameter_shapes(model.retriever, model.reader, plan.parts)
  like = nested(
    {path: np.empty(shape, np.float32) for path, shape in shapes.items()}
  )
  store = CheckpointStore(model_dir)
  try:
    step = store.latest() if checkpoint_step is None else checkpoint_step
    require_vocabulary(store, step, model.vocabulary.sha256)
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
  # `save_file` would not say that the disk is full with an `OSError`; and
  # transformers reads no file that does not name its framework.
  (directory / hf_directory.WEIGHTS).write_bytes(
    safetensors.numpy.save(tensors, metadata={"format": "pt"})
  )


def _report(plan: ExportPlan, parameters: dict[str, Any], where: str) -> str:
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
