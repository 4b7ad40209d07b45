"""Which tensor of another system each parameter of ours is.

A table of rules serves both directions, so import and export cannot drift. A
rule names one parameter by its path in our tree (`encoder/layer_0/up/kernel`)
and the tensor that holds it elsewhere. BERT's parts have the same names
everywhere but for spelling, which is a `Dialect`.
"""

import dataclasses

from realm_jax.models.bert import BertConfig


@dataclasses.dataclass(frozen=True)
class Rule:
  """One parameter, and its tensor in another system.

  Attributes:
    path: of the parameter: its keys joined by slashes.
    names: of the tensor. The first is written. Of several that a file has, the
      first is read, and the others are copies that must equal it.
    transpose: whether the tensor is the parameter's transpose.
  """

  path: str
  names: tuple[str, ...]
  transpose: bool = False


@dataclasses.dataclass(frozen=True)
class Dialect:
  """How a system spells the names of a module's tensors.

  Where a part has several spellings, the first is the one to write.
  """

  separator: str
  kernel: tuple[str, ...]
  bias: tuple[str, ...]
  scale: tuple[str, ...]
  shift: tuple[str, ...]
  # What follows an embedding table's name.
  table: str
  # Of the encoder's layer number i: `layer.{i}` or `layer_{i}`.
  layer: str
  decoder_bias: tuple[str, ...]
  # Where a second copy of the word embeddings may stand, below the head.
  decoder: tuple[str, ...]
  transposes_kernels: bool

  def spell(self, name: str) -> str:
    """A name written with slashes, in this system's spelling."""
    return name.replace("/", self.separator)


# torch's Linear holds [out, in]; BERT's first ports kept TensorFlow's names.
TORCH = Dialect(
  separator=".",
  kernel=("weight",),
  bias=("bias",),
  scale=("weight", "gamma"),
  shift=("bias", "beta"),
  table=".weight",
  layer="layer/{}",
  # The same parameter twice, of which a file may keep either name.
  decoder_bias=("bias", "decoder.bias"),
  decoder=("decoder.weight",),
  transposes_kernels=True,
)
TENSORFLOW = Dialect(
  separator="/",
  kernel=("kernel",),
  bias=("bias",),
  scale=("gamma",),
  shift=("beta",),
  table="",
  layer="layer_{}",
  decoder_bias=("output_bias",),
  decoder=(),
  transposes_kernels=False,
)


def _named(
  dialect: Dialect, module: str, parts: tuple[str, ...]
) -> tuple[str, ...]:
  return tuple(dialect.spell(f"{module}/{part}") for part in parts)


def dense(dialect: Dialect, ours: str, theirs: str) -> tuple[Rule, ...]:
  """The rules of a linear layer; `theirs` is written with slashes."""
  return (
    Rule(
      f"{ours}/kernel",
      _named(dialect, theirs, dialect.kernel),
      transpose=dialect.transposes_kernels,
    ),
    Rule(f"{ours}/bias", _named(dialect, theirs, dialect.bias)),
  )


def layer_norm(dialect: Dialect, ours: str, theirs: str) -> tuple[Rule, ...]:
  """The rules of a LayerNorm; `theirs` is written with slashes."""
  return (
    Rule(f"{ours}/scale", _named(dialect, theirs, dialect.scale)),
    Rule(f"{ours}/bias", _named(dialect, theirs, dialect.shift)),
  )


def encoder(
  dialect: Dialect, config: BertConfig, *, ours: str, theirs: str
) -> tuple[Rule, ...]:
  """The rules of a `BertEncoder`.

  Args:
    dialect: how the other system spells names.
    config: says how many layers there are.
    ours: the path of the encoder's parameters.
    theirs: what precedes `embeddings/…` and `encoder/…` there: `bert/` or
      nothing.
  """

  def table(name: str, other: str) -> Rule:
    spelt = dialect.spell(f"{theirs}embeddings/{other}") + dialect.table
    return Rule(f"{ours}/{name}", (spelt,))

  rules = [
    table("word_embeddings", "word_embeddings"),
    table("position_embeddings", "position_embeddings"),
    table("type_embeddings", "token_type_embeddings"),
    *layer_norm(
      dialect, f"{ours}/embedding_norm", f"{theirs}embeddings/LayerNorm"
    ),
  ]
  for i in range(config.num_layers):
    layer = f"{ours}/layer_{i}"
    other = f"{theirs}encoder/{dialect.layer.format(i)}"
    for name, module in (
      ("attention/query", "attention/self/query"),
      ("attention/key", "attention/self/key"),
      ("attention/value", "attention/self/value"),
      ("attention/output", "attention/output/dense"),
      ("up", "intermediate/dense"),
      ("down", "output/dense"),
    ):
      rules += dense(dialect, f"{layer}/{name}", f"{other}/{module}")
    for name, module in (
      ("attention_norm", "attention/output/LayerNorm"),
      ("output_norm", "output/LayerNorm"),
    ):
      rules += layer_norm(dialect, f"{layer}/{name}", f"{other}/{module}")
  return tuple(rules)


def masked_lm_head(
  dialect: Dialect, *, ours: str, theirs: str
) -> tuple[Rule, ...]:
  """The rules of a `MaskedLmHead`; its decoder is the word embeddings.

  Args:
    dialect: how the other system spells names.
    ours: the path of the head's parameters.
    theirs: the head's name there: `cls/predictions`.
  """
  return (
    *dense(dialect, f"{ours}/dense", f"{theirs}/transform/dense"),
    *layer_norm(dialect, f"{ours}/norm", f"{theirs}/transform/LayerNorm"),
    Rule(f"{ours}/bias", _named(dialect, theirs, dialect.decoder_bias)),
  )


def tied(
  dialect: Dialect, rules: tuple[Rule, ...], *, encoder: str, head: str
) -> tuple[Rule, ...]:
  """The rules, where the decoder of a head is a copy of the word embeddings.

  Args:
    dialect: how the other system spells names.
    rules: of an encoder, and of whatever else.
    encoder: its path, ours.
    head: the head's name there: `cls/predictions`.
  """
  path = f"{encoder}/word_embeddings"
  copies = _named(dialect, head, dialect.decoder)
  return tuple(
    dataclasses.replace(rule, names=rule.names + copies)
    if rule.path == path
    else rule
    for rule in rules
  )


def bert_tower(
  dialect: Dialect,
  config: BertConfig,
  *,
  pooling: str,
  ours: str,
  theirs: str,
) -> tuple[Rule, ...]:
  """The rules of a tower without projection: an encoder, perhaps a pooler.

  Args:
    dialect: how the other system spells names.
    config: the encoder.
    pooling: of the tower.
    ours: its path.
    theirs: what precedes `embeddings/…` and `pooler/…` there.
  """
  rules = encoder(dialect, config, ours=f"{ours}/encoder", theirs=theirs)
  if pooling == "pooler":
    rules += dense(dialect, f"{ours}/pooler", f"{theirs}pooler/dense")
  return rules


def masked_lm(
  dialect: Dialect, config: BertConfig, *, ours: str, theirs: str, head: str
) -> tuple[Rule, ...]:
  """The rules of a reader's encoder and masked-LM head, tied to each other.

  Args:
    dialect: how the other system spells names.
    config: the encoder.
    ours: the reader's path.
    theirs: what precedes `embeddings/…` there.
    head: the head's name there: `cls/predictions`.
  """
  rules = encoder(dialect, config, ours=f"{ours}/encoder", theirs=theirs)
  return tied(
    dialect, rules, encoder=f"{ours}/encoder", head=head
  ) + masked_lm_head(dialect, ours=f"{ours}/masked_lm_head", theirs=head)
