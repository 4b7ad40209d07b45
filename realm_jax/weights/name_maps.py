"""Names of the modules of BERT, REALM and T5 in other systems.

A table is a list of pairs of modules, ours and theirs, which `read` and `write`
apply in either direction. Names have TensorFlow's spelling
(`encoder/layer_0/output/dense`), and PyTorch's follow by rules. The last word
of our name determines the parameters of a module.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np

from realm_jax.weights import WeightsError

System = Literal["tensorflow", "torch"]
Shape = tuple[int, ...]
Tensors = Mapping[str, np.ndarray]

# Parts of a model, and the modules of shared and of separate towers.
RETRIEVER, READER = PARTS = ("retriever", "reader")
SHARED_TOWER = "tower"
SEPARATE_TOWERS = {"query": "query_tower", "block": "block_tower"}
# Towers that --tower of export_weights chooses from.
CHOSEN_TOWERS = {**SEPARATE_TOWERS, "hop": "hop_tower"}
HEAD = "cls/predictions"
WORDS = "encoder/word_embeddings"

# Parameters of a module by the last word of its name: their names here, in
# TensorFlow and in PyTorch, which stores kernels as [out, in]. The first ports
# of BERT to PyTorch kept TensorFlow's names of LayerNorm's parameters. All
# other modules are linear layers.
_PARAMETERS: Mapping[str, Sequence[tuple[str, str, Sequence[str]]]] = {
  "norm": (
    ("/scale", "/gamma", ["weight", "gamma"]),
    ("/bias", "/beta", ["bias", "beta"]),
  ),
  "embeddings": (("", "", ["weight"]),),
  "bias": (("", "/output_bias", ["bias"]),),
  "": (("/kernel", "/kernel", ["weight"]), ("/bias", "/bias", ["bias"])),
}
_EMBEDDINGS = {
  WORDS: "embeddings/word_embeddings",
  "encoder/position_embeddings": "embeddings/position_embeddings",
  "encoder/type_embeddings": "embeddings/token_type_embeddings",
  "encoder/embedding_norm": "embeddings/LayerNorm",
}
_LAYER = {
  "attention/query": "attention/self/query",
  "attention/key": "attention/self/key",
  "attention/value": "attention/self/value",
  "attention/output": "attention/output/dense",
  "up": "intermediate/dense",
  "down": "output/dense",
  "attention_norm": "attention/output/LayerNorm",
  "output_norm": "output/LayerNorm",
}
# Names of T5's layers: of attention, and of feed-forward layers, gated or not.
_T5_ATTENTION = {"query": "q", "key": "k", "value": "v", "output": "o"}
_T5_FEED_FORWARD = {
  False: {"up": "wi", "down": "wo"},
  True: {"gate": "wi_0", "up": "wi_1", "down": "wo"},
}
_LINES_IN_AN_ERROR = 20
_OTHER_VOCABULARY = (
  ": is it another model's vocabulary? Row n is the piece on line n + 1 of "
  "vocab.txt. Where a line was removed, put one such as [unused_row_1] in its "
  "place; where the last rows are padding, add as many lines at the end of a "
  "copy"
)


class Module(NamedTuple):
  """A line of a table: the names of our module and of theirs.

  A table may have modules that a model lacks; their tensors are not used. If
  two lines have the same module of ours, the later one is a copy: an import
  checks that the tensors are equal, and an export does not write them. Their
  kernel and bias are ours times `factor`, a power of two, so that neither
  direction rounds.
  """

  ours: str
  theirs: str
  factor: float = 1.0


Table = Sequence[Module]


def below(table: Table, *, ours: str = "", theirs: str = "") -> list[Module]:
  """Returns a table with prefixes before all names."""
  return [
    m._replace(ours=ours + m.ours, theirs=theirs + m.theirs) for m in table
  ]


def bert(prefix: str, num_layers: int, around: Table = ()) -> list[Module]:
  """Returns the modules of a BERT, and those `around` it, such as a projection.

  `prefix` is the prefix of its embeddings and layers in the other system. One
  of the other modules may be a pooler in place of BERT's own.
  """
  names = _EMBEDDINGS | {
    f"encoder/layer_{i}/{ours}": f"encoder/layer_{i}/{theirs}"
    for i in range(num_layers)
    for ours, theirs in _LAYER.items()
  }
  names["pooler"] = "pooler/dense"
  table = [Module(ours, prefix + theirs) for ours, theirs in names.items()]
  others = {module.ours for module in around}
  return [*(m for m in table if m.ours not in others), *around]


def masked_lm_head(
  theirs: str = HEAD, *, has_tied_decoder: bool = True
) -> list[Module]:
  """Returns the modules of a masked-LM head.

  `has_tied_decoder` is whether the head's decoder, if any, is a copy of the
  word embeddings.
  """
  ours, decoder = "masked_lm_head", f"{theirs}/decoder"
  table = [
    Module(f"{ours}/dense", f"{theirs}/transform/dense"),
    Module(f"{ours}/norm", f"{theirs}/transform/LayerNorm"),
    Module(f"{ours}/bias", theirs),
  ]
  tied = [Module(WORDS, decoder), Module(f"{ours}/bias", decoder)]
  return table + (
    tied if has_tied_decoder else [Module(f"{ours}/decoder", decoder)]
  )


def t5(
  num_layers: int, num_decoder_layers: int, *, gated: bool, tied_head: bool
) -> list[Module]:
  """Returns the modules of a T5."""
  table = [Module("word_embeddings", "shared")]
  self_attention = {"attention": "SelfAttention"}
  both = self_attention | {"cross_attention": "EncDecAttention"}
  for stack, count, attentions in (
    ("encoder", num_layers, self_attention),
    ("decoder", num_decoder_layers, both),
  ):
    bias = "block/0/layer/0/SelfAttention/relative_attention_bias"
    names = {"position_embeddings": bias, "norm": "final_layer_norm"}
    for i in range(count):
      ours, theirs = f"block_{i}", f"block/{i}/layer"
      for j, (attention, their_attention) in enumerate(attentions.items()):
        names[f"{ours}/{attention}_norm"] = f"{theirs}/{j}/layer_norm"
        for name, letter in _T5_ATTENTION.items():
          place = f"{theirs}/{j}/{their_attention}/{letter}"
          names[f"{ours}/{attention}/{name}"] = place
      theirs += f"/{len(attentions)}"
      names[f"{ours}/mlp_norm"] = f"{theirs}/layer_norm"
      for name, their_name in _T5_FEED_FORWARD[gated].items():
        names[f"{ours}/{name}"] = f"{theirs}/DenseReluDense/{their_name}"
    table += [Module(f"{stack}/{o}", f"{stack}/{t}") for o, t in names.items()]
    table.append(Module("word_embeddings", f"{stack}/embed_tokens"))
  return [*table, Module("word_embeddings" if tied_head else "head", "lm_head")]


class MappedTensor(NamedTuple):
  """A parameter, and its tensor in another system.

  An import reads the first of the `names` that the input has, and an export
  writes the first name.
  """

  path: str
  names: Sequence[str]
  is_transposed: bool
  factor: float


def mapped_tensors(
  table: Iterable[Module], system: System
) -> Iterator[MappedTensor]:
  """Yields the parameters of a table with the names of their tensors."""
  for module in table:
    start = module.theirs.replace("encoder/layer_", "encoder/layer/")
    start = start.replace("/", ".")
    parameters = (
      p for end, p in _PARAMETERS.items() if module.ours.endswith(end)
    )
    for ours, in_tensorflow, in_torch in next(parameters):
      names = [module.theirs + in_tensorflow]
      if system == "torch":
        names = [f"{start}.{name}" for name in in_torch]
      is_transposed = system == "torch" and ours == "/kernel"
      yield MappedTensor(
        module.ours + ours, names, is_transposed, module.factor
      )


def show(name: str, shape: Shape) -> str:
  """Formats a name and a shape, as in `pooler.weight [8, 8]`."""
  return f"{name} {list(shape)}"


def read(
  tensors: Tensors,
  table: Table,
  shapes: Mapping[str, Shape],
  *,
  system: System,
  allowed: Mapping[str, str],
) -> tuple[dict[str, np.ndarray], list[str]]:
  """Reads all parameters that have a tensor, in float32 and by path.

  Every tensor and every parameter is accounted for.

  Args:
    tensors: Tensors of the input by name.
    table: Modules of the model and of the input.
    shapes: Shapes of all parameters of the model, by path.
    system: System whose spelling the names have.
    allowed: Reasons why tensors that are not in the table are unused, and why
      parameters without a tensor start from random values, by regular
      expressions for the whole name or path. Others are errors.

  Returns:
    The parameters, and a report with a line for each tensor and parameter.

  Raises:
    WeightsError: A tensor is left over or missing, has another shape or a type
      other than floats, is not finite, or differs from its copy.
  """

  def reason(name: str) -> str:
    fitting = (why for p, why in allowed.items() if re.fullmatch(p, name))
    return next(fitting, "")

  mapped, unused, fresh = _match(
    tensors, table, shapes, system=system, reason=reason
  )
  parameters, lines = {}, [f"mapped ({len(mapped)} parameters):"]
  for path, (first, *copies) in mapped.items():
    lines.append(f"  {show(path, shapes[path])} <- {first[0]}")
    parameters[path] = _parameter(tensors, *first)
    for name, entry in copies:
      same = np.array_equal(_parameter(tensors, name, entry), parameters[path])
      unused[name] = f"the same as {first[0]}" if same else reason(name)
      if not unused[name]:
        raise WeightsError(
          f"{name} and {first[0]} are one parameter here, but differ; pass "
          f"--ignore='{re.escape(name)}' to leave the former out"
        )
  lines.append(f"unused tensors of the input: {len(unused) or 'none'}")
  lines += [
    f"  {show(n, tensors[n].shape)}: {why}" for n, why in unused.items()
  ]
  lines.append(f"parameters of random values: {len(fresh) or 'none'}")
  lines += [f"  {show(p, shapes[p])}: {why}" for p, why in fresh.items()]
  return parameters, lines


def _match(
  tensors: Tensors,
  table: Table,
  shapes: Mapping[str, Shape],
  *,
  system: System,
  reason: Callable[[str], str],
) -> tuple[
  dict[str, list[tuple[str, MappedTensor]]], dict[str, str], dict[str, str]
]:
  """Finds the tensors of each parameter, and checks that all are accounted for.

  Returns:
    By path, the names of a parameter's tensors with their entries; and reasons
    for unused tensors, and for parameters without a tensor.
  """
  mapped: dict[str, list[tuple[str, MappedTensor]]] = {}
  unused = {name: reason(name) for name in tensors}
  fresh = dict.fromkeys(shapes, "not in the input")
  used, misshapen = set(), {}
  for entry in mapped_tensors(table, system):
    shape = shapes.get(entry.path)
    if shape is not None:
      fresh[entry.path] = reason(entry.path)
    for name in filter(tensors.__contains__, entry.names):
      if shape is None:
        unused[name] = (
          unused[name] or "of no use to the parts that are imported"
        )
        continue
      expected = shape[::-1] if entry.is_transposed else shape
      if tensors[name].shape == expected:
        used.add(name)
        mapped.setdefault(entry.path, []).append((name, entry))
      elif not reason(name):
        used.add(name)
        misshapen[entry.path] = (
          f"{show(name, tensors[name].shape)}, where {entry.path} wants "
          f"{list(expected)}"
          + (_OTHER_VOCABULARY if entry.path.endswith(WORDS) else "")
        )
  unused = {name: why for name, why in unused.items() if name not in used}
  known = mapped.keys() | misshapen.keys()
  fresh = {path: why for path, why in fresh.items() if path not in known}
  problems = [
    *(
      f"{show(name, tensors[name].shape)} has no place here"
      for name, why in unused.items()
      if not why
    ),
    *(
      f"{show(path, shapes[path])} has no tensor in the input"
      for path, why in fresh.items()
      if not why
    ),
    *misshapen.values(),
  ]
  if problems:
    more = len(problems) - _LINES_IN_AN_ERROR
    raise WeightsError(
      f"{len(problems)} tensors and parameters do not fit; is config.json from "
      "the same model? --ignore=REGEX, for whole names or paths, leaves out "
      "tensors, and starts parameters from random values:\n  "
      + "\n  ".join(problems[:_LINES_IN_AN_ERROR])
      + (f"\n  and {more} more" if more > 0 else "")
    )
  return mapped, unused, fresh


def write(
  parameters: Mapping[str, np.ndarray], table: Table
) -> dict[str, tuple[str, np.ndarray]]:
  """Returns PyTorch's name and tensor of each parameter in a table, by path."""
  named: dict[str, tuple[str, np.ndarray]] = {}
  for entry in mapped_tensors(table, "torch"):
    if entry.path in parameters and entry.path not in named:
      array = parameters[entry.path]
      array = array.T if entry.is_transposed else array
      array = np.ascontiguousarray(array * np.float32(entry.factor))
      named[entry.path] = entry.names[0], array
  return named


def _parameter(tensors: Tensors, name: str, entry: MappedTensor) -> np.ndarray:
  array = tensors[name]
  # NumPy does not know that bfloat16 is a float.
  if array.dtype.kind != "f" and array.dtype.name != "bfloat16":
    raise WeightsError(
      f"{name} holds {array.dtype}; want float32, float16 or bfloat16 "
      "(quantized weights must be dequantized first)"
    )
  array = array.astype(np.float32)
  if not np.isfinite(array).all():
    raise WeightsError(
      f"{name} holds NaN or infinite values; the file is damaged or its "
      "training had diverged"
    )
  array = array.T if entry.is_transposed else array
  return np.ascontiguousarray(array / np.float32(entry.factor))
