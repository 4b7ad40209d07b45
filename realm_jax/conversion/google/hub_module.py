"""TF-Hub modules of TensorFlow 1: their variables and assets.

MODULE/saved_model.pb
MODULE/variables/variables.{index,data-…}
MODULE/assets/vocab.txt
"""

from pathlib import Path

from google.protobuf.message import DecodeError
from tensorflow.core.protobuf import saved_model_pb2

from realm_jax.conversion.errors import ConversionError
from realm_jax.conversion.google.checkpoint import INDEX
from realm_jax.conversion.vocabulary import VOCABULARY_FILE

_GRAPH = "saved_model.pb"
_SIGNATURE = "tokenization_info"
_OUTPUT = "do_lower_case"


def variables(directory: Path) -> Path:
  """Returns the prefix of a module's checkpoint, which need not exist."""
  return directory / "variables" / "variables"


def vocabulary(directory: Path) -> Path:
  """Returns the path of a module's vocabulary, which need not exist."""
  return directory / "assets" / VOCABULARY_FILE


def is_module(directory: Path) -> bool:
  """Returns whether a directory has a module's variables."""
  prefix = variables(directory)
  return prefix.with_name(prefix.name + INDEX).is_file()


def lower_cases(directory: Path) -> bool | None:
  """Returns whether the module is uncased; None if it does not say.

  It is a constant of the module's graph, which is read and not run.

  Raises:
    ConversionError: If the graph cannot be read.
  """
  path = directory / _GRAPH
  if not path.is_file():
    return None
  saved = saved_model_pb2.SavedModel()
  try:
    saved.ParseFromString(path.read_bytes())
  except DecodeError as error:
    raise ConversionError(
      f"{path} is no saved model ({error}); copy the module again"
    ) from error
  for graph in saved.meta_graphs:
    signature = graph.signature_def.get(_SIGNATURE)
    if signature is None or _OUTPUT not in signature.outputs:
      continue
    nodes = {node.name: node for node in graph.graph_def.node}
    name = signature.outputs[_OUTPUT].name
    # A module that wraps another passes the constant on.
    for _ in range(len(nodes)):
      node = nodes.get(name.removeprefix("^").partition(":")[0])
      if node is None:
        break
      if node.op == "Const":
        values = node.attr["value"].tensor.bool_val
        return values[0] if values else None
      if node.op != "Identity" or not node.input:
        break
      name = node.input[0]
  return None
