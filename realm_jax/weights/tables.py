"""Names that the modules of BERT and REALM have in other systems.

A table is a flat list of modules: ours, theirs, and the kind of their
parameters. Imports and exports read the same tables. Their names are spelled as
TensorFlow spells them (`encoder/layer_0/output/dense`), and PyTorch's follow by
rules.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

Kind = Literal["dense", "norm", "embeddings", "bias"]
System = Literal["tensorflow", "torch"]
# Parts of a model, and the modules of shared and of separate towers.
RETRIEVER, READER = PARTS = ("retriever", "reader")
SHARED_TOWER = "tower"
SEPARATE_TOWERS = {"query": "query_tower", "block": "block_tower"}
HEAD = "cls/predictions"

# The parameters of each kind: their names here, in TensorFlow and in PyTorch.
# PyTorch holds kernels as [out, in], and the first ports of BERT to it kept
# TensorFlow's names of LayerNorm's parameters.
_PARAMETERS: Mapping[Kind, Sequence[tuple[str, str, Sequence[str]]]] = {
  "dense": (
    ("/kernel", "/kernel", ["weight"]),
    ("/bias", "/bias", ["bias"]),
  ),
  "norm": (
    ("/scale", "/gamma", ["weight", "gamma"]),
    ("/bias", "/beta", ["bias", "beta"]),
  ),
  "embeddings": (("", "", ["weight"]),),
  "bias": (("", "", ["bias"]),),
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
  """A line of a table: our module, theirs, and the kind of its parameters.

  A table may name modules that a model lacks; their tensors are not used. Where
  two lines have one module of ours, the later one names copies of its tensors:
  an import checks that they are equal, and an export does not write them. Their
  kernel and bias are ours times `factor`, a power of two, so that neither
  direction rounds.
  """

  ours: str
  theirs: str
  kind: Kind
  factor: float = 1.0


Table = Sequence[Module]


def below(table: Table, *, ours: str = "", theirs: str = "") -> list[Module]:
  """Returns a table with prefixes before all names."""
  return [
    m._replace(ours=ours + m.ours, theirs=theirs + m.theirs) for m in table
  ]


def bert(
  prefix: str,
  num_layers: int,
  *,
  pooler: str | None = None,
  projection: tuple[str, str] | None = None,
  factor: float = 1.0,
  span_head: tuple[str, str, str] | None = None,
) -> list[Module]:
  """Returns the modules of a BERT and those around it, by our names.

  Args:
    prefix: Prefix of the names of its embeddings and layers.
    num_layers: Number of its layers.
    pooler: Linear layer of the pooler; None is BERT's own.
    projection: Linear layer and LayerNorm of REALM's projection, if any.
    factor: Factor of the projection's linear layer there.
    span_head: First layer, LayerNorm and last layer of a span head, if any.
  """
  table = [
    *(
      Module(f"encoder/{name}", f"{prefix}embeddings/{theirs}", kind)
      for name, (theirs, kind) in _EMBEDDINGS.items()
    ),
    *(
      Module(
        f"encoder/layer_{i}/{name}", f"{prefix}encoder/layer_{i}/{theirs}", kind
      )
      for i in range(num_layers)
      for name, (theirs, kind) in _LAYER.items()
    ),
    Module("pooler", pooler or f"{prefix}pooler/dense", "dense"),
  ]
  if projection is not None:
    dense, norm = projection
    table.append(Module("projection", dense, "dense", factor))
    table.append(Module("projection_norm", norm, "norm"))
  if span_head is not None:
    dense, norm, score = span_head
    table += [
      Module("span_head/projection", dense, "dense"),
      Module("span_head/norm", norm, "norm"),
      Module("span_head/score", score, "dense"),
    ]
  return table


def masked_lm_head(
  theirs: str = HEAD, *, has_tied_decoder: bool = True
) -> list[Module]:
  """Returns the modules of a masked-LM head.

  `has_tied_decoder` tells whether the head's decoder, if it is there, is a copy
  of the word embeddings.
  """
  ours, decoder = "masked_lm_head", f"{theirs}/decoder"
  table = [
    Module(f"{ours}/dense", f"{theirs}/transform/dense", "dense"),
    Module(f"{ours}/norm", f"{theirs}/transform/LayerNorm", "norm"),
    Module(f"{ours}/bias", f"{theirs}/output_bias", "bias"),
  ]
  if has_tied_decoder:
    table.append(Module("encoder/word_embeddings", decoder, "embeddings"))
    table.append(Module(f"{ours}/bias", decoder, "bias"))
  else:
    table.append(Module(f"{ours}/decoder", decoder, "dense"))
  return table


class Place(NamedTuple):
  """A parameter, and its tensor in another system.

  An import reads the first of the `names` that there is, and an export writes
  the first of all.
  """

  path: str
  names: Sequence[str]
  is_transposed: bool
  factor: float


def places(table: Iterable[Module], system: System) -> Iterator[Place]:
  """Yields the parameters of a table with the names of their tensors."""
  for module in table:
    start = module.theirs.removesuffix("/output_bias")
    start = start.replace("encoder/layer_", "encoder/layer/").replace("/", ".")
    for ours, in_tensorflow, in_torch in _PARAMETERS[module.kind]:
      names = [module.theirs + in_tensorflow]
      if system == "torch":
        names = [f"{start}.{name}" for name in in_torch]
      is_transposed = system == "torch" and ours == "/kernel"
      yield Place(module.ours + ours, names, is_transposed, module.factor)
