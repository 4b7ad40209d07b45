"""BERT in the files of Google's TensorFlow 1 code, alone or in ORQA and REALM.

Alone: bert_config.json, vocab.txt, bert_model.ckpt.{index,data-…}

In ORQA and REALM, a module that another one wraps has its variables below
`module/`, once for each wrapper. The layers beside an encoder show what it is
for: a retriever has a projection (`dense` and a LayerNorm), an open-QA reader
has a span head (`dense`, `dense_1` and a LayerNorm), and any other is the
reader of pre-training.
"""

import dataclasses
import itertools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from realm_jax.conversion import names
from realm_jax.conversion.bert_models import (
  BertInput,
  BertWeights,
  TowerOptions,
  plan_bert,
)
from realm_jax.conversion.config_file import ConfigFile, read_config_file
from realm_jax.conversion.errors import ConversionError
from realm_jax.conversion.google.checkpoint import (
  INDEX,
  TfCheckpoint,
  checkpoint_prefixes,
  locate,
)
from realm_jax.conversion.hugging_face.config import (
  dropout_note,
  read_bert_config,
  require_vocabulary_size,
)
from realm_jax.conversion.mapping import Shape
from realm_jax.conversion.names import Dialect, Rules
from realm_jax.conversion.planning import (
  READER,
  RETRIEVER,
  ImportPlan,
  ImportSource,
)
from realm_jax.conversion.vocabulary import VOCABULARY_FILE, read_uncased_pieces
from realm_jax.models.bert import Activation, BertConfig

_CONFIG = "bert_config.json"
# Variables of the training itself, which checkpoints hold beside the weights.
_LEFTOVERS = {
  r".*/adam_[mv](_\d+)?": "a moment of Adam",
  r"(.*/)?AdamWeightDecayOptimizer(_\d+)?/.*": "a variable of the optimizer",
  r"(.*/)?global_step": "a step counter",
  r"(.*/)?cls/seq_relationship/.*": "a next-sentence head",
}

_WORDS = "embeddings/word_embeddings"
# Google's gelu is the approximation by tanh.
_ACTIVATIONS: Mapping[str, Activation] = {"gelu": "gelu_tanh"}
_ATTENTION_MASK_VALUE = -10000.0
# Every BERT that Google released has heads of this size.
_HEAD_SIZE = 64
# The names under which the released code exports TF-Hub modules.
_MODULES = ("embedder", "query_embedder", "ict", "bert")
_QUERY_MODULE = "query_embedder"
# The checkpoint of a module, and that in a fine-tuned model's directory.
_VARIABLES = Path("variables", "variables")
_BEST = Path("export", "best_default", "checkpoint")
# The name of a LayerNorm shows the library that made it, and thus its epsilon:
# tf.contrib's or Keras'.
_EPSILONS = {"LayerNorm": 1e-12, r"layer_normalization(_\d+)?": 1e-3}


def plan_tf_bert(source: ImportSource, options: TowerOptions) -> ImportPlan:
  """Plans the import of a checkpoint, or of two for two towers."""
  own, block_path = _read(source.path), source.block_path
  other = None if block_path is None else _read(block_path)
  return plan_bert(source, options, own, other)


def _read(path: Path) -> BertInput:
  prefix = locate(path)
  checkpoint = TfCheckpoint(prefix)
  config_path = prefix.with_name(_CONFIG)
  if not config_path.is_file():
    raise ConversionError(
      f"{config_path} is missing; --from=tf_bert wants {_CONFIG}, "
      f"{VOCABULARY_FILE} and the checkpoint (bert_model.ckpt{INDEX}, …) in "
      "one directory"
    )
  config = read_config_file(config_path)
  pieces = read_uncased_pieces(prefix.with_name(VOCABULARY_FILE))
  require_vocabulary_size(config, len(pieces))
  roots = _encoder_roots(checkpoint.shapes)
  if len(roots) != 1:
    raise ConversionError(
      f"{prefix} holds {len(roots)} encoders ({', '.join(roots) or 'none'}); "
      "--from=tf_bert wants one, --from=tf_realm is for ORQA's and REALM's"
    )
  weights = _bert_weights(checkpoint, roots[0], _read_config(config))
  return BertInput(path, weights, pieces, dropout_note(config))


@dataclasses.dataclass(frozen=True)
class Encoder:
  """One encoder of a checkpoint, and the layers beside it.

  Attributes:
    checkpoint: Checkpoint that holds it.
    weights: Weights of the encoder.
    role: Part that it belongs to: `retriever` or `reader`.
    scope: Prefix of the names of the layers beside it.
    norm: Full name of the LayerNorm among these; empty without one.
    norm_eps: Epsilon of this LayerNorm.
    is_query: Whether it embeds queries only.
  """

  checkpoint: TfCheckpoint
  weights: BertWeights
  role: str
  scope: str = ""
  norm: str = ""
  norm_eps: float = 0.0
  is_query: bool = False

  @property
  def width(self) -> int:
    """The output size of the first layer beside it."""
    return self.checkpoint.shapes[f"{self.scope}dense/kernel"][-1]

  @property
  def modules(self) -> list[str]:
    """The names of its modules and of the layers beside it."""
    own = [self.weights.prefix.removesuffix("/"), self.weights.head]
    if self.norm:
      own += [f"{self.scope}dense", f"{self.scope}dense_1", self.norm]
    return own

  def tower_rules(self, tower: str) -> Rules:
    """Returns the rules of a retriever's tower with this name."""
    return names.tower(
      self.weights.dialect,
      self.weights.config,
      tower,
      self.weights.prefix,
      projection=f"{self.scope}dense",
      norm=self.norm,
    )

  def reader_rules(self) -> Rules:
    """Returns the rules of a reader, with the span head if there is one."""
    rules = self.weights.reader_rules()
    if self.norm:
      projection, score = f"{self.scope}dense", f"{self.scope}dense_1"
      dialect = self.weights.dialect
      rules += names.span_head(dialect, projection, self.norm, score)
    return rules


def find_encoders(path: Path) -> list[Encoder]:
  """Finds all encoders of an input: see `realm.plan_tf_realm`."""
  found = [
    _encoder(checkpoint, root, path, is_query=is_query)
    for prefix, is_query in _prefixes(path)
    for checkpoint in [TfCheckpoint(prefix)]
    for root in _encoder_roots(checkpoint.shapes)
  ]
  if not found:
    raise ConversionError(
      f"{path} holds no variable bert/embeddings/word_embeddings at any depth; "
      "want a TF-Hub module of REALM or ORQA, or a model fine-tuned from one"
    )
  return found


def modules_in(path: Path) -> list[Path]:
  """Returns the modules in a directory that have the names of the release."""
  return [path / name for name in _MODULES if _is_module(path / name)]


def _is_module(directory: Path) -> bool:
  return (directory / f"{_VARIABLES}{INDEX}").is_file()


def _prefixes(path: Path) -> Iterator[tuple[Path, bool]]:
  """Yields checkpoints, and whether each embeds queries only."""
  if modules := [path] if _is_module(path) else modules_in(path):
    for module in modules:
      is_query = module != path and module.name == _QUERY_MODULE
      yield module / _VARIABLES, is_query
    return
  best = path / _BEST
  yield locate(best if checkpoint_prefixes(best) else path), False


def _encoder(
  checkpoint: TfCheckpoint, root: str, path: Path, *, is_query: bool
) -> Encoder:
  shapes = checkpoint.shapes
  weights = _bert_weights(checkpoint, root, _config(checkpoint, root, path))
  scopes = ["", *itertools.accumulate(re.findall(r"[^/]*/", root))]
  for scope in reversed(scopes):
    if f"{scope}dense/kernel" not in shapes:
      continue
    norms = {
      name.removesuffix("/gamma"): epsilon
      for name in shapes
      for pattern, epsilon in _EPSILONS.items()
      if re.fullmatch(rf"{re.escape(scope)}{pattern}/gamma", name)
    }
    if len(norms) != 1:
      raise ConversionError(
        f"{checkpoint.prefix} has {len(norms)} LayerNorms beside "
        f"{scope}dense, {', '.join(norms) or 'none'}; want one"
      )
    has_score = f"{scope}dense_1/kernel" in shapes
    role = READER if has_score else RETRIEVER
    ((norm, epsilon),) = norms.items()
    return Encoder(checkpoint, weights, role, scope, norm, epsilon, is_query)
  return Encoder(checkpoint, weights, READER)


def _config(checkpoint: TfCheckpoint, root: str, path: Path) -> BertConfig:
  # In a module, the file is beside the folder `variables`.
  for folder in (*checkpoint.prefix.parents[:2], path):
    if (folder / _CONFIG).is_file():
      return _read_config(read_config_file(folder / _CONFIG))
  return _config_from_shapes(checkpoint, root)


def _encoder_roots(shapes: Mapping[str, Shape]) -> list[str]:
  """Returns the prefix of `bert/embeddings/…` for every encoder."""
  words = f"bert/{_WORDS}"
  return [
    name.removesuffix(words)
    for name in shapes
    if f"/{name}".endswith(f"/{words}")
  ]


def _bert_weights(
  checkpoint: TfCheckpoint, root: str, config: BertConfig
) -> BertWeights:
  """Returns one encoder of a checkpoint with its masked-LM head."""
  return BertWeights(
    source=checkpoint,
    dialect=Dialect.TENSORFLOW,
    config=config,
    prefix=f"{root}bert/",
    head=root + names.HEAD,
    leftovers=_LEFTOVERS,
    where=str(checkpoint.prefix),
  )


def _read_config(config: ConfigFile) -> BertConfig:
  """Reads a `bert_config.json`, with the numerics of Google's code."""
  return read_bert_config(
    config, activations=_ACTIVATIONS, attention_mask_value=_ATTENTION_MASK_VALUE
  )


def _config_from_shapes(checkpoint: TfCheckpoint, root: str) -> BertConfig:
  """Infers the configuration of an encoder from its variables.

  They do not show the number of heads, which have 64 dimensions in every BERT
  that Google released.
  """
  shapes = checkpoint.shapes
  prefix = f"{root}bert/"
  pattern = re.compile(rf"{re.escape(prefix)}encoder/layer_(\d+)/.*")
  layers = {m[1] for m in map(pattern.fullmatch, shapes) if m}
  hidden_size = shapes[f"{prefix}{_WORDS}"][-1]
  inner = f"{prefix}encoder/layer_0/intermediate/dense/kernel"
  positions = f"{prefix}embeddings/position_embeddings"
  missing = [name for name in (inner, positions) if name not in shapes]
  if missing or hidden_size % _HEAD_SIZE:
    found = f"no {missing[0]}" if missing else f"hidden size {hidden_size}"
    raise ConversionError(
      f"{checkpoint.prefix} has {found}, so its variables do not show its "
      f"sizes (heads of {_HEAD_SIZE} dimensions); put the model's {_CONFIG} "
      "beside it"
    )
  return BertConfig(
    hidden_size=hidden_size,
    num_layers=len(layers),
    num_heads=hidden_size // _HEAD_SIZE,
    intermediate_size=shapes[inner][-1],
    max_positions=shapes[positions][0],
    activation=_ACTIVATIONS["gelu"],
    attention_mask_value=_ATTENTION_MASK_VALUE,
  )
