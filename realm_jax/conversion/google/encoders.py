"""The encoders in checkpoints of released REALM and ORQA.

A module that another one wraps has its variables below `module/`, once for
each wrapper. The layers beside an encoder show what it is for: a retriever has
a projection (`dense` and a LayerNorm), an open-QA reader has a span head
(`dense`, `dense_1` and a LayerNorm), and any other is the reader of
pre-training.
"""

import dataclasses
import itertools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from realm_jax.conversion.bert_models import BertWeights
from realm_jax.conversion.config_file import read_config_file
from realm_jax.conversion.errors import ConversionError
from realm_jax.conversion.google import bert, hub_module
from realm_jax.conversion.google.checkpoint import (
  TfCheckpoint,
  checkpoint_prefixes,
  only_checkpoint,
)
from realm_jax.conversion.plan import READER, RETRIEVER
from realm_jax.conversion.tensors import Shape
from realm_jax.models.bert import BertConfig

# The names under which the released code exports modules.
_MODULES = ("embedder", "query_embedder", "ict", "bert")
_QUERY_MODULE = "query_embedder"
# The checkpoint in a fine-tuned model's directory.
_BEST = Path("export", "best_default", "checkpoint")
# The name of a LayerNorm shows the library that made it, and thus its epsilon.
_CONTRIB_NORM, _CONTRIB_EPS = "LayerNorm", 1e-12
_KERAS_NORM, _KERAS_EPS = r"layer_normalization(_\d+)?", 1e-3


@dataclasses.dataclass(frozen=True)
class Encoder:
  """One encoder of a checkpoint, and the layers beside it.

  Attributes:
    weights: Weights of the encoder.
    role: Part that it belongs to: `retriever` or `reader`.
    scope: Prefix of the names of the layers beside it.
    norm: Full name of the LayerNorm among these; empty without one.
    norm_eps: Epsilon of this LayerNorm.
    is_query: Whether it embeds queries only.
  """

  weights: BertWeights
  role: str
  scope: str = ""
  norm: str = ""
  norm_eps: float = 0.0
  is_query: bool = False

  @property
  def prefix(self) -> Path:
    """The prefix of its checkpoint."""
    source = self.weights.source
    assert isinstance(source, TfCheckpoint)
    return source.prefix

  @property
  def width(self) -> int:
    """The output size of the first layer beside it."""
    return self.weights.source.shapes[f"{self.scope}dense/kernel"][-1]


def find_encoders(path: Path) -> list[Encoder]:
  """Finds all encoders of an input.

  Args:
    path: Module, directory of modules, directory of a fine-tuned model, or
      prefix of a checkpoint.

  Raises:
    ConversionError: If there are none, or they are not BERT's.
  """
  found = [
    _encoder(checkpoint, root, path, is_query=is_query)
    for prefix, is_query in _prefixes(path)
    for checkpoint in [TfCheckpoint(prefix)]
    for root in bert.encoder_roots(checkpoint.shapes)
  ]
  if not found:
    raise ConversionError(
      f"{path} holds no variable bert/embeddings/word_embeddings at any depth; "
      "want a TF-Hub module of REALM or ORQA, or a model fine-tuned from one"
    )
  return found


def _prefixes(path: Path) -> Iterator[tuple[Path, bool]]:
  """Yields checkpoints, and whether each embeds queries only."""
  if not path.is_dir():
    yield bert.locate(path), False
    return
  modules = [path] if hub_module.is_module(path) else modules_in(path)
  if modules:
    for module in modules:
      is_query = module != path and module.name == _QUERY_MODULE
      yield hub_module.variables(module), is_query
    return
  best = path / _BEST
  folder = best if checkpoint_prefixes(best) else path
  yield only_checkpoint(folder, where=str(path)), False


def modules_in(path: Path) -> list[Path]:
  """Returns the modules in a directory that have the names of the release."""
  folders = [path / name for name in _MODULES]
  return [folder for folder in folders if hub_module.is_module(folder)]


def _encoder(
  checkpoint: TfCheckpoint, root: str, path: Path, *, is_query: bool
) -> Encoder:
  shapes = checkpoint.shapes
  weights = bert.bert_weights(checkpoint, root, _config(checkpoint, root, path))
  scopes = ["", *itertools.accumulate(re.findall(r"[^/]*/", root))]
  for scope in reversed(scopes):
    if f"{scope}dense/kernel" not in shapes:
      continue
    norms = _norms(shapes, scope)
    if len(norms) != 1:
      raise ConversionError(
        f"{checkpoint.prefix} has {len(norms)} LayerNorms beside "
        f"{scope}dense, {', '.join(norms) or 'none'}; want one"
      )
    has_score = f"{scope}dense_1/kernel" in shapes
    role = READER if has_score else RETRIEVER
    (norm, epsilon), *_ = norms.items()
    return Encoder(
      weights,
      role,
      scope=scope,
      norm=norm,
      norm_eps=epsilon,
      is_query=is_query,
    )
  return Encoder(weights, READER)


def _norms(shapes: Mapping[str, Shape], scope: str) -> dict[str, float]:
  """Returns the LayerNorms of a scope, and their epsilons."""
  kinds = ((_CONTRIB_NORM, _CONTRIB_EPS), (_KERAS_NORM, _KERAS_EPS))
  return {
    name.removesuffix("/gamma"): epsilon
    for name in shapes
    for pattern, epsilon in kinds
    if re.fullmatch(rf"{re.escape(scope)}{pattern}/gamma", name)
  }


def _config(checkpoint: TfCheckpoint, root: str, path: Path) -> BertConfig:
  where = str(checkpoint.prefix)
  # In a module, the file is beside the folder `variables`.
  for folder in (*checkpoint.prefix.parents[:2], path):
    file = folder / bert.CONFIG
    if file.is_file():
      return bert.read_config(read_config_file(file))
  return bert.config_from_shapes(checkpoint.shapes, root, where=where)
