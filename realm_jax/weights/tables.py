"""Names that the modules of BERT and REALM have in other systems.

A table is a flat list of modules: ours, theirs, and its kind. Import and export
read the same table. Their names are spelled as TensorFlow spells them
(`encoder/layer_0/output/dense`), and PyTorch's follow by rules.
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
    ("/kernel", "kernel", ["weight"]),
    ("/bias", "bias", ["bias"]),
  ),
  "norm": (
    ("/scale", "gamma", ["weight", "gamma"]),
    ("/bias", "beta", ["bias", "beta"]),
  ),
  "embeddings": (("", "", ["weight"]),),
  "bias": (("", "", ["bias"]),),
}
_ENCODER: Mapping[str, tuple[str, Kind]] = {
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
  """A line of a table: our module, theirs, and the kind of its parameters.

  Where two lines have one module of ours, the later one names copies of its
  tensors: an import checks that they are equal, and an export does not write
  them. Their kernel and bias are ours times `factor`, a power of two, so that
  neither direction rounds.
  """

  ours: str
  theirs: str
  kind: Kind
  factor: float = 1.0


Table = Iterable[Module]


class Projection(NamedTuple):
  """REALM's projection in another system: names of its modules, and sizes."""

  dense: str
  norm: str
  size: int
  norm_eps: float
  factor: float = 1.0


class SpanHead(NamedTuple):
  """The reader's span head in another system: names of its modules."""

  projection: str
  norm: str
  score: str


@dataclasses.dataclass(frozen=True)
class Encoder:
  """A BERT in another system, and the names of the modules around it.

  Attributes:
    config: Configuration without a vocabulary.
    prefix: Prefix of `embeddings/…` in the names of its tensors.
    pooler: Linear layer of its pooler, by default BERT's own; it need not be
      there.
    head: Masked-LM head; empty without one.
    has_tied_head: Whether the decoder of the head is a copy of the word
      embeddings; any other decoder is of no use here.
    projection: Projection of a retriever.
    span_head: Span head of a reader.
    parts: Parts of a model that it can become.
    only_queries: Whether it embeds queries only.
  """

  config: BertConfig
  prefix: str
  pooler: str = ""
  head: str = ""
  has_tied_head: bool = True
  projection: Projection | None = None
  span_head: SpanHead | None = None
  parts: Sequence[str] = PARTS
  only_queries: bool = False

  def __post_init__(self) -> None:
    if not self.pooler:
      object.__setattr__(self, "pooler", f"{self.prefix}pooler/dense")

  @property
  def around(self) -> list[str]:
    """Names of the modules around the encoder."""
    names = [f"{self.prefix}pooler", self.pooler, self.head]
    names += self.projection[:2] if self.projection else ()
    names += self.span_head or ()
    names += () if self.has_tied_head else (f"{self.head}/decoder",)
    return [name for name in names if name]


def encoder(ours: str, theirs: Encoder) -> Iterator[Module]:
  """Yields the modules of a `BertEncoder`, its word embeddings first."""
  for name, (module, kind) in _ENCODER.items():
    yield Module(f"{ours}/{name}", f"{theirs.prefix}embeddings/{module}", kind)
  for i in range(theirs.config.num_layers):
    for name, (module, kind) in _LAYER.items():
      layer = f"{theirs.prefix}encoder/layer_{i}"
      yield Module(f"{ours}/layer_{i}/{name}", f"{layer}/{module}", kind)


def tower(ours: str, theirs: Encoder, pooling: str) -> Iterator[Module]:
  """Yields the modules of a tower; `ours` is its name in the retriever."""
  path = f"{RETRIEVER}/{ours}"
  yield from encoder(f"{path}/encoder", theirs)
  if pooling == "pooler":
    yield Module(f"{path}/pooler", theirs.pooler, "dense")
  if it := theirs.projection:
    yield Module(f"{path}/projection", it.dense, "dense", it.factor)
    yield Module(f"{path}/projection_norm", it.norm, "norm")


def reader(theirs: Encoder) -> Iterator[Module]:
  """Yields the modules of a reader, as far as they are there."""
  yield from encoder("reader/encoder", theirs)
  if head := theirs.head:
    ours = "reader/masked_lm_head"
    yield Module(f"{ours}/dense", f"{head}/transform/dense", "dense")
    yield Module(f"{ours}/norm", f"{head}/transform/LayerNorm", "norm")
    yield Module(f"{ours}/bias", f"{head}/output_bias", "bias")
    if theirs.has_tied_head:
      words, decoder = "reader/encoder/word_embeddings", f"{head}/decoder"
      yield Module(words, decoder, "embeddings")
      yield Module(f"{ours}/bias", decoder, "bias")
  if it := theirs.span_head:
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
      start, path = start_of(module.theirs, system), module.ours + ours
      if system == "torch":
        names = [start + name for name in torch_names]
        yield Place(path, names, ours == "/kernel", module.factor)
      else:
        name = f"{start}{tf_name}".rstrip("/")
        yield Place(path, [name], False, module.factor)


def start_of(module: str, system: System) -> str:
  """Returns how the names of a module's tensors begin."""
  if system == "tensorflow":
    return f"{module}/"
  module = module.removesuffix("/output_bias")
  module = module.replace("encoder/layer_", "encoder/layer/")
  return f"{module}/".replace("/", ".")


def has(tensors: Iterable[str], module: str, system: System) -> bool:
  """Returns whether any of the named tensors is of a module."""
  start = start_of(module, system)
  return any(name.startswith(start) for name in tensors)
