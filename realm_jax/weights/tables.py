"""Names that the modules of BERT and REALM have in other systems.

A table is a flat list of modules: ours, theirs, and its kind. Import and export
read the same table. Their names are spelled as TensorFlow spells them
(`encoder/layer_0/output/dense`), and PyTorch's follow by two rules.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from realm_jax.models.bert import BertConfig

Kind = Literal["dense", "norm", "embeddings", "bias"]
System = Literal["tensorflow", "torch"]
# Parts of a model, its towers, and the modules of shared and separate towers.
RETRIEVER, READER = PARTS = ("retriever", "reader")
TOWERS = ("query", "block")
SHARED_TOWER = ("tower",)
SEPARATE_TOWERS = ("query_tower", "block_tower")
HEAD = "cls/predictions"

# The parameters of each kind: their names here, in TensorFlow and in PyTorch.
# PyTorch holds kernels as [out, in], and the first ports of BERT to it kept
# TensorFlow's names of LayerNorm's parameters.
_PARAMETERS: Mapping[Kind, Sequence[tuple[str, str, Sequence[str]]]] = {
  "dense": (
    ("/kernel", "/kernel", ("weight",)),
    ("/bias", "/bias", ("bias",)),
  ),
  "norm": (
    ("/scale", "/gamma", ("weight", "gamma")),
    ("/bias", "/beta", ("bias", "beta")),
  ),
  "embeddings": (("", "", ("weight",)),),
  "bias": (("", "", ("bias",)),),
}
_EMBEDDINGS: Mapping[str, tuple[str, Kind]] = {
  "word_embeddings": ("word_embeddings", "embeddings"),
  "position_embeddings": ("position_embeddings", "embeddings"),
  "type_embeddings": ("token_type_embeddings", "embeddings"),
  "embedding_norm": ("LayerNorm", "norm"),
}
_LAYER: Mapping[str, tuple[str, Kind]] = {
  "attention/query": ("attention/self/query", "dense"),
  "attention/key": ("attention/self/key", "dense"),
  "attention/value": ("attention/self/value", "dense"),
  "attention/output": ("attention/output/dense", "dense"),
  "up": ("intermediate/dense", "dense"),
  "down": ("output/dense", "dense"),
  "attention_norm": ("attention/output/LayerNorm", "norm"),
  "output_norm": ("output/LayerNorm", "norm"),
}


class Module(NamedTuple):
  """A line of a table.

  A line whose parameters an earlier line has names copies of their tensors: an
  import checks that they are equal, and an export does not write them.

  Attributes:
    ours: Path of the module in our parameters.
    theirs: Name of the module in the other system.
    kind: Kind of its parameters.
    factor: Factor of their kernel and bias, a power of two, so that neither
      direction rounds.
  """

  ours: str
  theirs: str
  kind: Kind
  factor: float = 1.0


Table = Sequence[Module]


class Projection(NamedTuple):
  """REALM's projection in another system: names of its modules, and sizes."""

  dense: str
  norm: str
  size: int
  norm_eps: float
  factor: float = 1.0


class SpanHead(NamedTuple):
  """Names of the modules of the reader's span head in another system."""

  projection: str
  norm: str
  score: str


@dataclasses.dataclass(frozen=True)
class Encoder:
  """A BERT in another system, and the names of the modules around it.

  Attributes:
    config: Configuration without a vocabulary.
    prefix: Prefix of `embeddings/…` in the names of its tensors.
    pooler: Linear layer of its pooler, which need not be there.
    head: Masked-LM head; empty without one.
    has_tied_head: Whether the decoder of the head is a copy of the word
      embeddings; any other decoder is of no use here.
    projection: Projection of a retriever.
    span_head: Span head of a reader.
    parts: Parts of a model that it can become.
    only_queries: Whether it embeds queries only.
    twin: Copy of the tower that the input holds under other names.
  """

  config: BertConfig
  prefix: str
  pooler: str
  head: str = ""
  has_tied_head: bool = True
  projection: Projection | None = None
  span_head: SpanHead | None = None
  parts: Sequence[str] = PARTS
  only_queries: bool = False
  twin: "Encoder | None" = None

  def with_head(self, tensors: Iterable[str], system: System) -> "Encoder":
    """Returns the encoder without its head if that has no tensors."""
    start = start_of(self.head, system)
    has_head = any(name.startswith(start) for name in tensors)
    return self if has_head else dataclasses.replace(self, head="")

  @property
  def around(self) -> list[str]:
    """Names of the modules around the encoder."""
    names = [f"{self.prefix}pooler", self.pooler, self.head]
    if self.projection:
      names += [self.projection.dense, self.projection.norm]
    if self.span_head:
      head = self.span_head
      names += [head.projection, head.norm, head.score]
    return [name for name in names if name]


def encoder_table(ours: str, encoder: Encoder) -> Iterator[Module]:
  """Yields the modules of a `BertEncoder`."""
  for name, (theirs, kind) in _EMBEDDINGS.items():
    yield Module(f"{ours}/{name}", f"{encoder.prefix}embeddings/{theirs}", kind)
  for i in range(encoder.config.num_layers):
    for name, (theirs, kind) in _LAYER.items():
      layer = f"{encoder.prefix}encoder/layer_{i}"
      yield Module(f"{ours}/layer_{i}/{name}", f"{layer}/{theirs}", kind)


def tower_table(ours: str, encoder: Encoder, pooling: str) -> Iterator[Module]:
  """Yields the modules of a tower; `ours` is its name in the retriever."""
  path = f"{RETRIEVER}/{ours}"
  yield from encoder_table(f"{path}/encoder", encoder)
  if pooling == "pooler":
    yield Module(f"{path}/pooler", encoder.pooler, "dense")
  if it := encoder.projection:
    yield Module(f"{path}/projection", it.dense, "dense", it.factor)
    yield Module(f"{path}/projection_norm", it.norm, "norm")
  if encoder.twin:
    yield from tower_table(ours, encoder.twin, pooling)


def reader_table(encoder: Encoder) -> Iterator[Module]:
  """Yields the modules of a reader, as far as the encoder has them."""
  yield from encoder_table("reader/encoder", encoder)
  if head := encoder.head:
    ours = "reader/masked_lm_head"
    yield Module(f"{ours}/dense", f"{head}/transform/dense", "dense")
    yield Module(f"{ours}/norm", f"{head}/transform/LayerNorm", "norm")
    yield Module(f"{ours}/bias", f"{head}/output_bias", "bias")
    if encoder.has_tied_head:
      decoder = f"{head}/decoder"
      yield Module("reader/encoder/word_embeddings", decoder, "embeddings")
      yield Module(f"{ours}/bias", decoder, "bias")
  if it := encoder.span_head:
    ours = "reader/span_head"
    yield Module(f"{ours}/projection", it.projection, "dense")
    yield Module(f"{ours}/norm", it.norm, "norm")
    yield Module(f"{ours}/score", it.score, "dense")


class Place(NamedTuple):
  """A parameter, and its tensor in another system.

  An import reads the first of the `names` that there is, and an export writes
  the first of all.
  """

  path: str
  names: Sequence[str]
  is_transposed: bool
  factor: float


def places(table: Table, system: System) -> Iterator[Place]:
  """Yields the parameters of a table with the names of their tensors."""
  for module in table:
    for ours, tf_name, torch_names in _PARAMETERS[module.kind]:
      names, is_transposed = (module.theirs + tf_name,), False
      if system == "torch":
        start = start_of(module.theirs, system)
        names = tuple(start + leaf for leaf in torch_names)
        is_transposed = ours == "/kernel"
      yield Place(module.ours + ours, names, is_transposed, module.factor)


def start_of(module: str, system: System) -> str:
  """Returns how the names of a module's tensors begin, up to the separator."""
  if system == "tensorflow":
    return f"{module}/"
  module = module.removesuffix("/output_bias")
  module = module.replace("encoder/layer_", "encoder/layer/")
  return f"{module}.".replace("/", ".")
