"""Names that the parameters of BERT and REALM have in other systems.

A table of rules serves both directions, so import and export cannot drift
apart. Names are given as TensorFlow spells them (`encoder/layer_0/output`), and
a `Dialect` spells them for its system.
"""

import dataclasses
import enum

from realm_jax.models.bert import BertConfig

HEAD = "cls/predictions"
_EMBEDDINGS = {
  "word_embeddings": "word_embeddings",
  "position_embeddings": "position_embeddings",
  "type_embeddings": "token_type_embeddings",
}
# Our modules in a layer of the encoder, and theirs.
_DENSE_LAYERS = {
  "attention/query": "attention/self/query",
  "attention/key": "attention/self/key",
  "attention/value": "attention/self/value",
  "attention/output": "attention/output/dense",
  "up": "intermediate/dense",
  "down": "output/dense",
}
_LAYER_NORMS = {
  "attention_norm": "attention/output/LayerNorm",
  "output_norm": "output/LayerNorm",
}
# BERT's first ports to torch kept TensorFlow's names of LayerNorm's tensors,
# and a decoder's bias has two names, of which a file may keep either.
_TORCH_NAMES = {
  "kernel": ("weight",),
  "gamma": ("weight", "gamma"),
  "beta": ("bias", "beta"),
  "output_bias": ("bias", "decoder.bias"),
  **{table: (f"{table}.weight",) for table in _EMBEDDINGS.values()},
}


@dataclasses.dataclass(frozen=True)
class Rule:
  """One parameter and its tensor in another system.

  Attributes:
    path: Path of the parameter: its keys joined by slashes.
    names: Names of the tensor. An export writes the first. An import reads the
      first that the file has, and any others there must be equal copies.
    transpose: Whether the tensor is the parameter's transpose.
    scale: Factor of the tensor, a power of two, so that neither direction
      rounds.
  """

  path: str
  names: tuple[str, ...]
  transpose: bool = False
  scale: float = 1.0


Rules = tuple[Rule, ...]


class Dialect(enum.Enum):
  """A system's spelling of names; the value separates the parts of a name."""

  TENSORFLOW = "/"
  TORCH = "."

  def spell(self, module: str) -> str:
    """Returns the name of a module."""
    if self is Dialect.TENSORFLOW:
      return module
    return module.replace("encoder/layer_", "encoder/layer/").replace("/", ".")

  def rule(self, path: str, module: str, tensor: str) -> Rule:
    """Returns the rule of a module's tensor."""
    if self is Dialect.TENSORFLOW:
      return Rule(path, (f"{module}/{tensor}",))
    names = _TORCH_NAMES.get(tensor, (tensor,))
    # torch's Linear holds [out, in].
    return Rule(
      path,
      tuple(f"{self.spell(module)}.{name}" for name in names),
      transpose=tensor == "kernel",
    )

  def dense(self, ours: str, theirs: str) -> Rules:
    """Returns the rules of a linear layer."""
    return (
      self.rule(f"{ours}/kernel", theirs, "kernel"),
      self.rule(f"{ours}/bias", theirs, "bias"),
    )

  def layer_norm(self, ours: str, theirs: str) -> Rules:
    """Returns the rules of a LayerNorm."""
    return (
      self.rule(f"{ours}/scale", theirs, "gamma"),
      self.rule(f"{ours}/bias", theirs, "beta"),
    )


def tower(
  dialect: Dialect,
  config: BertConfig,
  ours: str,
  theirs: str,
  *,
  pooler: bool = True,
  pooler_dense: str = "",
  projection: str = "",
  norm: str = "",
  projection_scale: float = 1.0,
) -> Rules:
  """Returns the rules of a tower.

  Args:
    ours: `tower`, `query_tower` or `block_tower`.
    theirs: Prefix of `embeddings/…` and `pooler/…` there: `bert/` or nothing.
    pooler: Whether the tower has BERT's pooler.
    pooler_dense: Their name of its linear layer; empty for BERT's own.
    projection: Their name of the projection; empty without one.
    norm: Their name of the projection's LayerNorm.
    projection_scale: Factor of their projection.
  """
  path = f"retriever/{ours}"
  rules = _encoder(dialect, config, f"{path}/encoder", theirs)
  if pooler:
    dense = pooler_dense or f"{theirs}pooler/dense"
    rules += dialect.dense(f"{path}/pooler", dense)
  if projection:
    rules += tuple(
      dataclasses.replace(rule, scale=projection_scale)
      for rule in dialect.dense(f"{path}/projection", projection)
    )
    rules += dialect.layer_norm(f"{path}/projection_norm", norm)
  return rules


def reader(
  dialect: Dialect,
  config: BertConfig,
  theirs: str,
  *,
  head: str = "",
  tied: bool = True,
) -> Rules:
  """Returns the rules of a reader without its span head.

  Args:
    theirs: Prefix of `embeddings/…` there.
    head: Their name of the masked-LM head; empty without one.
    tied: Whether a decoder in the head is a copy of the word embeddings; any
      other decoder has no rule.
  """
  rules = _encoder(dialect, config, "reader/encoder", theirs)
  if not head:
    return rules
  if tied and dialect is Dialect.TORCH:
    words, *others = rules
    copy = f"{dialect.spell(head)}.decoder.weight"
    rules = (Rule(words.path, (*words.names, copy)), *others)
  ours = "reader/masked_lm_head"
  return (
    *rules,
    *dialect.dense(f"{ours}/dense", f"{head}/transform/dense"),
    *dialect.layer_norm(f"{ours}/norm", f"{head}/transform/LayerNorm"),
    dialect.rule(f"{ours}/bias", head, "output_bias"),
  )


def span_head(
  dialect: Dialect, projection: str, norm: str, score: str
) -> Rules:
  """Returns the rules of a reader's span head, given their module names."""
  ours = "reader/span_head"
  return (
    *dialect.dense(f"{ours}/projection", projection),
    *dialect.layer_norm(f"{ours}/norm", norm),
    *dialect.dense(f"{ours}/score", score),
  )


def token_classifier(
  dialect: Dialect, config: BertConfig, theirs: str, *, classifier: str
) -> Rules:
  """Returns the rules of a `TokenClassifier`.

  Args:
    theirs: Prefix of `embeddings/…` there.
    classifier: Their name of the layer that gives the labels' logits.
  """
  return (
    *_encoder(dialect, config, "encoder", theirs),
    *dialect.dense("classifier", classifier),
  )


def _encoder(
  dialect: Dialect, config: BertConfig, ours: str, theirs: str
) -> Rules:
  """Returns the rules of a `BertEncoder`, that of the words first."""
  embeddings = f"{theirs}embeddings"
  rules = [
    dialect.rule(f"{ours}/{name}", embeddings, table)
    for name, table in _EMBEDDINGS.items()
  ]
  rules += dialect.layer_norm(
    f"{ours}/embedding_norm", f"{embeddings}/LayerNorm"
  )
  for i in range(config.num_layers):
    layer, other = f"{ours}/layer_{i}", f"{theirs}encoder/layer_{i}"
    for name, module in _DENSE_LAYERS.items():
      rules += dialect.dense(f"{layer}/{name}", f"{other}/{module}")
    for name, module in _LAYER_NORMS.items():
      rules += dialect.layer_norm(f"{layer}/{name}", f"{other}/{module}")
  return tuple(rules)
