"""Names that BERT's parameters have in other systems.

A table of rules serves both directions, so import and export cannot drift
apart. A rule gives a parameter's path in our tree (`encoder/layer_0/up/kernel`)
and the names of the tensor that holds it elsewhere. BERT's modules have the
same names in all systems. Only the spelling differs, which is a `Dialect`.
"""

import dataclasses

from realm_jax.models.bert import BertConfig

# Our modules in a layer of the encoder, and theirs.
_DENSE_LAYERS = (
  ("attention/query", "attention/self/query"),
  ("attention/key", "attention/self/key"),
  ("attention/value", "attention/self/value"),
  ("attention/output", "attention/output/dense"),
  ("up", "intermediate/dense"),
  ("down", "output/dense"),
)
_LAYER_NORMS = (
  ("attention_norm", "attention/output/LayerNorm"),
  ("output_norm", "output/LayerNorm"),
)


@dataclasses.dataclass(frozen=True)
class Rule:
  """One parameter and its tensor in another system.

  Attributes:
    path: Path of the parameter: its keys joined by slashes.
    names: Names of the tensor. An export writes the first. An import reads the
      first that the file has, and any others there must be equal copies.
    transpose: Whether the tensor is the parameter's transpose.
  """

  path: str
  names: tuple[str, ...]
  transpose: bool = False


@dataclasses.dataclass(frozen=True)
class Dialect:
  """A system's spelling of the tensors of a module.

  Modules are given by their names with slashes (`encoder/layer_0/output`).
  Where a tensor has several spellings, an export writes the first.

  Attributes:
    separator: Character between the parts of a name.
    kernel: Names of a linear layer's matrix.
    scale: Names of a LayerNorm's scale.
    shift: Names of a LayerNorm's bias.
    table: End of an embedding table's name.
    layer: Name of the encoder's layer with number {}.
    decoder_bias: Names of the bias of a masked-LM head's decoder.
    decoder: Names of a copy of the word embeddings in a masked-LM head.
    transposes_kernels: Whether matrices are [out, in].
  """

  separator: str
  kernel: tuple[str, ...]
  scale: tuple[str, ...]
  shift: tuple[str, ...]
  table: str
  layer: str
  decoder_bias: tuple[str, ...]
  decoder: tuple[str, ...]
  transposes_kernels: bool

  def spell(self, name: str) -> str:
    """Returns a name that is given with slashes in this spelling."""
    return name.replace("/", self.separator)

  def spell_all(self, module: str, tensors: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the names of a module's tensors."""
    return tuple(self.spell(f"{module}/{tensor}") for tensor in tensors)

  def dense(self, ours: str, theirs: str) -> tuple[Rule, ...]:
    """Returns the rules of a linear layer."""
    kernel = self.spell_all(theirs, self.kernel)
    return (
      Rule(f"{ours}/kernel", kernel, transpose=self.transposes_kernels),
      Rule(f"{ours}/bias", self.spell_all(theirs, ("bias",))),
    )

  def layer_norm(self, ours: str, theirs: str) -> tuple[Rule, ...]:
    """Returns the rules of a LayerNorm."""
    return (
      Rule(f"{ours}/scale", self.spell_all(theirs, self.scale)),
      Rule(f"{ours}/bias", self.spell_all(theirs, self.shift)),
    )


# torch's Linear holds [out, in], and BERT's first ports kept the names that
# LayerNorm's tensors have in TensorFlow.
TORCH = Dialect(
  separator=".",
  kernel=("weight",),
  scale=("weight", "gamma"),
  shift=("bias", "beta"),
  table=".weight",
  layer="layer/{}",
  # Two names of one parameter, of which a file may keep either.
  decoder_bias=("bias", "decoder.bias"),
  decoder=("decoder.weight",),
  transposes_kernels=True,
)
TENSORFLOW = Dialect(
  separator="/",
  kernel=("kernel",),
  scale=("gamma",),
  shift=("beta",),
  table="",
  layer="layer_{}",
  decoder_bias=("output_bias",),
  decoder=(),
  transposes_kernels=False,
)


def encoder(
  dialect: Dialect, config: BertConfig, *, ours: str, theirs: str
) -> tuple[Rule, ...]:
  """Returns the rules of a `BertEncoder`.

  Args:
    dialect: Spelling of the other system.
    config: Configuration that gives the number of layers.
    ours: Path of the encoder's parameters.
    theirs: Prefix of `embeddings/…` and `encoder/…` there: `bert/` or nothing.
  """
  rules = [
    Rule(
      f"{ours}/{name}",
      (dialect.spell(f"{theirs}embeddings/{other}") + dialect.table,),
    )
    for name, other in (
      ("word_embeddings", "word_embeddings"),
      ("position_embeddings", "position_embeddings"),
      ("type_embeddings", "token_type_embeddings"),
    )
  ]
  rules += dialect.layer_norm(
    f"{ours}/embedding_norm", f"{theirs}embeddings/LayerNorm"
  )
  for i in range(config.num_layers):
    layer = f"{ours}/layer_{i}"
    other = f"{theirs}encoder/{dialect.layer.format(i)}"
    for name, module in _DENSE_LAYERS:
      rules += dialect.dense(f"{layer}/{name}", f"{other}/{module}")
    for name, module in _LAYER_NORMS:
      rules += dialect.layer_norm(f"{layer}/{name}", f"{other}/{module}")
  return tuple(rules)


def masked_lm_head(
  dialect: Dialect, *, ours: str, theirs: str
) -> tuple[Rule, ...]:
  """Returns the rules of a `MaskedLmHead`, without its decoder's matrix.

  Args:
    dialect: Spelling of the other system.
    ours: Path of the head's parameters.
    theirs: Name of the head there: `cls/predictions`.
  """
  return (
    *dialect.dense(f"{ours}/dense", f"{theirs}/transform/dense"),
    *dialect.layer_norm(f"{ours}/norm", f"{theirs}/transform/LayerNorm"),
    Rule(f"{ours}/bias", dialect.spell_all(theirs, dialect.decoder_bias)),
  )


def bert_tower(
  dialect: Dialect, config: BertConfig, *, pooling: str, ours: str, theirs: str
) -> tuple[Rule, ...]:
  """Returns the rules of a tower's encoder, and of its pooler if it has one.

  Args:
    dialect: Spelling of the other system.
    config: Configuration of the encoder.
    pooling: Pooling of the tower.
    ours: Path of the tower.
    theirs: Prefix of `embeddings/…` and `pooler/…` there.
  """
  rules = encoder(dialect, config, ours=f"{ours}/encoder", theirs=theirs)
  if pooling == "pooler":
    rules += dialect.dense(f"{ours}/pooler", f"{theirs}pooler/dense")
  return rules


def masked_lm(
  dialect: Dialect, config: BertConfig, *, ours: str, theirs: str, head: str
) -> tuple[Rule, ...]:
  """Returns the rules of an encoder and a masked-LM head that is tied to it.

  Args:
    dialect: Spelling of the other system.
    config: Configuration of the encoder.
    ours: Path of the reader.
    theirs: Prefix of `embeddings/…` there.
    head: Name of the head there: `cls/predictions`.
  """
  path = f"{ours}/encoder"
  copies = dialect.spell_all(head, dialect.decoder)
  rules = tuple(
    dataclasses.replace(rule, names=rule.names + copies)
    if rule.path == f"{path}/word_embeddings"
    else rule
    for rule in encoder(dialect, config, ours=path, theirs=theirs)
  )
  return rules + masked_lm_head(
    dialect, ours=f"{ours}/masked_lm_head", theirs=head
  )
