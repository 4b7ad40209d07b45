"""Starts a MODEL_DIR from weights of another system.

    python -m realm_jax.import_weights --from=hf_bert \\
      --input=all-MiniLM-L6-v2 --output_dir=runs/minilm

writes checkpoint 0, the vocabulary (`vocab.txt`, for `build_corpus --vocab`)
and the model's gin file (`model.gin`, to give as --gin_file in place of
gin/models/bert_base.gin), and prints which parameter came from which tensor,
which tensors were left unused, and which parameters start from random values.
A tensor without a place, a parameter without a tensor and a shape that does
not fit are errors, unless --allow_left and --allow_fresh name them.

The MODEL_DIR goes to build_index and evaluate as it is, and to train as
INITIAL_CHECKPOINT or INITIAL_READER.

--from=hf_bert: a directory with BERT's config.json, its weights
(model.safetensors, whole or in shards) and vocab.txt or tokenizer.json: BERT,
MiniLM, Contriever, E5, BGE and the like. Where it has the modules.json of
sentence-transformers, vectors are made as that says; otherwise flags choose:

    Contriever   --pooling=mean --notitle_separator --notoken_types
    E5           --query_prefix='query: ' --block_prefix='passage: '
    DPR          --input=QUESTION_ENCODER --block_input=CONTEXT_ENCODER \\
                 --pooling=cls --parts=retriever

--from=hf_realm: a directory of transformers' REALM; config.json names its
class. RealmEmbedder and RealmScorer give a retriever, RealmKnowledgeAugEncoder
and RealmReader a reader, RealmForOpenQA both.

A gin file may bind the arguments of `conversion.importing.import_weights` in
place of the optional flags; what the command line says goes first.
"""

from collections.abc import Sequence
from typing import Any

from absl import flags

from realm_jax import configuration
from realm_jax.conversion import importing
from realm_jax.conversion.plan import PARTS
from realm_jax.models.retriever import POOLINGS

_FROM = flags.DEFINE_enum(
  "from", None, importing.KINDS, "What the input is.", required=True
)
_INPUT = flags.DEFINE_string(
  "input", None, "The directory to read, on this machine.", required=True
)
_OUTPUT_DIR = flags.DEFINE_string(
  "output_dir", None, "The MODEL_DIR to make.", required=True
)
_BLOCK_INPUT = flags.DEFINE_string(
  "block_input", None, "A second directory, for a block tower of its own."
)
_PARTS = flags.DEFINE_list(
  "parts",
  None,
  f"Which of {', '.join(PARTS)} to import; without it, what the input has.",
)
_POOLING = flags.DEFINE_enum(
  "pooling",
  None,
  POOLINGS,
  "How hidden states become a vector; without modules.json, the pooler if the "
  "weights have one, or else cls.",
)
_PROJECTION_SIZE = flags.DEFINE_integer(
  "projection_size", None, "Adds a projection, which starts afresh."
)
_NORMALIZE = flags.DEFINE_bool(
  "normalize", None, "Whether vectors have length 1."
)
_SCORE_SCALE = flags.DEFINE_float(
  "score_scale",
  1.0,
  "Multiplies inner products; training normalised vectors needs more than 1.",
)
_QUERY_PREFIX = flags.DEFINE_string(
  "query_prefix", None, "Text that the model wants before a query."
)
_BLOCK_PREFIX = flags.DEFINE_string(
  "block_prefix", None, "Text that the model wants before a block."
)
_TITLE_SEPARATOR = flags.DEFINE_bool(
  "title_separator",
  None,
  "Whether a [SEP] stands between title and body: yes, as in REALM, but for "
  "sentence-transformers.",
)
_TOKEN_TYPES = flags.DEFINE_bool(
  "token_types",
  None,
  "Whether tokens after the first [SEP] are of type 1: yes, as in REALM, but "
  "for sentence-transformers.",
)
_SEPARATE_TOWERS = flags.DEFINE_bool(
  "separate_towers", False, "Start two towers from the same weights."
)
_TENSOR_PREFIX = flags.DEFINE_string(
  "tensor_prefix",
  None,
  "What precedes `embeddings.word_embeddings.weight`, where the input holds "
  "several encoders.",
)
_ALLOW_LEFT = flags.DEFINE_multi_string(
  "allow_left",
  [],
  "A regular expression for whole names of tensors that may stay unused; "
  "repeatable.",
)
_ALLOW_FRESH = flags.DEFINE_multi_string(
  "allow_fresh",
  [],
  "A regular expression for whole paths of parameters that may start from "
  "random values; repeatable.",
)
_SEED = flags.DEFINE_integer("seed", 0, "Of what starts afresh.")


def _given_arguments() -> dict[str, Any]:
  """What the command line says, which goes before what gin files say."""
  arguments: dict[str, flags.FlagHolder[Any]] = {
    "kind": _FROM,
    "input_dir": _INPUT,
    "output_dir": _OUTPUT_DIR,
    "block_input": _BLOCK_INPUT,
    "parts": _PARTS,
    "pooling": _POOLING,
    "projection_size": _PROJECTION_SIZE,
    "normalize": _NORMALIZE,
    "score_scale": _SCORE_SCALE,
    "query_prefix": _QUERY_PREFIX,
    "block_prefix": _BLOCK_PREFIX,
    "title_separator": _TITLE_SEPARATOR,
    "token_types": _TOKEN_TYPES,
    "separate_towers": _SEPARATE_TOWERS,
    "tensor_prefix": _TENSOR_PREFIX,
    "allow_left": _ALLOW_LEFT,
    "allow_fresh": _ALLOW_FRESH,
    "seed": _SEED,
  }
  return {name: flag.value for name, flag in arguments.items() if flag.present}


def main(argv: Sequence[str]) -> None:
  """Imports, and prints what happened."""
  del argv
  given = _given_arguments()
  if flags.FLAGS.gin_file or flags.FLAGS.gin_bindings:
    report = configuration.call(importing.import_weights, **given)
  else:
    report = importing.import_weights(**given)
  print(report)
  print(f"model: {_OUTPUT_DIR.value}")


if __name__ == "__main__":
  configuration.run(main)
