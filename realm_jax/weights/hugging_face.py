"""Models in directories of Hugging Face: BERT, REALM, and taggers.

| class | becomes |
| --- | --- |
| BertModel and its heads, DPR's encoders | retriever and reader |
| RealmEmbedder, RealmScorer | the retriever |
| RealmKnowledgeAugEncoder | the reader, with its masked-LM head |
| RealmReader | the reader, with its span head |
| RealmForOpenQA | both, and `block_emb` holds the vectors of blocks |
| BertForTokenClassification | a tagger, which gets no MODEL_DIR |
"""

import dataclasses
import functools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from realm_jax.models.bert import TokenClassifier
from realm_jax.models.parameters import Params
from realm_jax.models.reader import Reader
from realm_jax.models.retriever import Retriever
from realm_jax.models.sequences import padded
from realm_jax.text.wordpieces import WordpieceVocabulary
from realm_jax.weights import (
  WeightsError,
  config,
  reading,
  sentence_transformers,
  tables,
)
from realm_jax.weights.config import ConfigFile
from realm_jax.weights.directory import (
  CONFIG,
  WEIGHTS,
  has_tensors,
  open_tensors,
)
from realm_jax.weights.formats import ImportConfig
from realm_jax.weights.model import flattened, nested
from realm_jax.weights.plan import Source, require_vocabulary_size
from realm_jax.weights.tables import READER, RETRIEVER, Encoder

BLOCK_VECTORS = "block_emb"
# Released open QA reads blocks of 288 tokens after 32 of the question.
OPEN_QA_JOINT_LENGTH = 288 + 32
# DPR's question and context encoders are BERT under another name.
_BERT_TYPES = ("bert", "dpr")
_WORDS = "embeddings.word_embeddings.weight"
# Prefixes of the parts of each class of REALM: its towers, and its reader.
_REALM: Mapping[str, tuple[Sequence[str], str | None]] = {
  "RealmEmbedder": ([""], None),
  "RealmScorer": (["embedder.", "query_embedder."], None),
  "RealmKnowledgeAugEncoder": ([], ""),
  "RealmReader": ([], ""),
  "RealmForOpenQA": (["embedder."], "reader."),
}
_SPAN_READERS = ("RealmReader", "RealmForOpenQA")
_TAGGER = "BertForTokenClassification"


def _read_config(directory: Path) -> ConfigFile:
  if not directory.is_dir():
    raise WeightsError(
      f"{directory} is no local directory; want one with {CONFIG}, {WEIGHTS} "
      "and vocab.txt"
    )
  return ConfigFile.read(directory / CONFIG)


def open_bert(choices: ImportConfig, directory: Path, scope: str) -> Source:
  """Opens a BERT, with what modules.json says of its vectors."""
  sentence = sentence_transformers.read_model(directory)
  weights_dir = directory / sentence.folders[0] if sentence else directory
  file = _read_config(weights_dir)
  kind = file.get("model_type", "bert")
  if kind not in _BERT_TYPES or file.get("projection_dim"):
    raise WeightsError(
      f"{file.where} has model_type={kind!r} and projection_dim="
      f"{file.get('projection_dim')}; --from=hf_bert wants BERT without a "
      "projection (--from=hf_realm is for REALM)"
    )
  tensors = _under(scope, open_tensors(weights_dir))
  prefix = _prefix(tensors, choices.tensor_prefix, scope, weights_dir)
  # The head is beside `bert.`, not in it.
  head = prefix.removesuffix("bert.") + tables.HEAD
  encoder = Encoder(
    config.read_bert_config(file),
    prefix,
    head=head if tables.has(tensors, head, "torch") else "",
  )
  if sentence:
    folders = [scope + folder for folder in sentence.folders]
    encoder = sentence.chain.complete(encoder, folders, sentence.projection)
    for folder in sentence.folders[1:]:
      if has_tensors(directory / folder):
        of_module = open_tensors(directory / folder)
        tensors |= _under(f"{scope}{folder}.", of_module)
  return Source(
    tensors,
    "torch",
    [encoder],
    config.read_vocabulary(weights_dir),
    towers=sentence.towers if sentence else {},
    notes=sentence.notes if sentence else [],
  )


def _under(scope: str, tensors: Mapping[str, np.ndarray]) -> dict[str, Any]:
  return {scope + name: tensor for name, tensor in tensors.items()}


def _prefix(
  tensors: Mapping[str, Any], wanted: str | None, scope: str, where: Path
) -> str:
  """Returns the prefix of `embeddings.…` in the names of the tensors."""
  found = [
    name.removesuffix(_WORDS)
    for name in tensors
    if f".{name}".endswith(f".{_WORDS}")
  ]
  if wanted is not None:
    found = [prefix for prefix in found if prefix == scope + wanted]
  if not found:
    raise WeightsError(
      f"{where} has no {wanted or ''}{_WORDS}, so it is no BERT; it has "
      f"{', '.join([*tensors][:5]) or 'nothing'}, …"
    )
  if len(found) > 1:
    raise WeightsError(
      f"{where} holds {len(found)} encoders, {', '.join(map(repr, found))}; "
      "choose one with --tensor_prefix, and let --ignore name the tensors of "
      "the others"
    )
  return found[0]


def open_realm(choices: ImportConfig, directory: Path, scope: str) -> Source:
  """Opens one of transformers' classes of REALM."""
  file = _read_config(directory)
  kind, named = file.get("model_type"), file.get("architectures")
  name = str(named[0]) if isinstance(named, list) and named else ""
  if kind != "realm" or name not in _REALM:
    raise WeightsError(
      f"{file.where} has model_type={kind!r} and architectures={named}; "
      f"--from=hf_realm wants 'realm' and one of {', '.join(_REALM)}"
    )
  of_towers, of_reader = _REALM[name]
  bert = config.read_bert_config(file, default_activation="gelu_new")
  size = file.size("retriever_proj_size", Retriever.projection_size)
  fields: dict[str, float] = {
    "span_size": file.size("span_hidden_size", Reader.span_size),
    "span_norm_eps": file.number("reader_layer_norm_eps", Reader.span_norm_eps),
    "max_answer_width": file.size("max_span_width", Reader.max_answer_width),
  }
  tensors = _under(scope, open_tensors(directory))

  def encoder(prefix: str, **settings: Any) -> Encoder:
    head = prefix + tables.HEAD
    return Encoder(bert, f"{prefix}realm.", head=head, **settings)

  encoders = []
  for prefix in of_towers:
    if any(name.startswith(prefix) for name in tensors):
      dense, norm = f"{prefix}cls/dense", f"{prefix}cls/LayerNorm"
      # transformers has one epsilon for both.
      it = tables.Projection(dense, norm, size, bert.layer_norm_eps)
      is_query = prefix.startswith("query")
      encoders.append(
        encoder(prefix, parts=[RETRIEVER], projection=it, only_queries=is_query)
      )
  if len(encoders) == 2 and not choices.separate_towers:
    block, query = _REALM["RealmScorer"][0]
    twins = {
      name.replace(query, block, 1): tensor
      for name, tensor in tensors.items()
      if name.startswith(query)
    }
    # A scorer without a query embedder of its own may have its embedder twice.
    if all(np.array_equal(t, tensors.get(n, t)) for n, t in twins.items()):
      tensors = twins | tensors
      encoders[1] = dataclasses.replace(encoders[1], parts=[])
  if of_reader is not None:
    span_head = None
    if name in _SPAN_READERS:
      outputs = f"{of_reader}qa_outputs"
      modules = ("dense_intermediate", "layer_normalization", "dense_output")
      span_head = tables.SpanHead(*(f"{outputs}/{name}" for name in modules))
      length = file.size("reader_seq_len", OPEN_QA_JOINT_LENGTH)
      fields["joint_length"] = min(length, bert.max_positions)
    # The decoder of a reader that scores spans is its own, and untrained.
    is_tied = span_head is None
    encoders.append(
      encoder(
        of_reader, parts=[READER], has_tied_head=is_tied, span_head=span_head
      )
    )
  records = directory / "block_records.npy"
  return Source(
    tensors,
    "torch",
    encoders,
    config.read_vocabulary(directory),
    towers={"pooling": "pooler", "projection_size": size},
    reader=fields,
    notes=[f"class: {name}"],
    block_vectors=tensors.get(BLOCK_VECTORS),
    block_records=records if records.is_file() else None,
  )


class LabelledModel(NamedTuple):
  """A token classifier with its parameters, vocabulary and labels.

  `labels` are in the order of the logits, such as `O`, `B-PER`, `I-PER`.
  """

  module: TokenClassifier
  params: Params
  vocabulary: WordpieceVocabulary
  labels: tuple[str, ...]


def read_token_classifier(directory: Path) -> LabelledModel:
  """Reads the directory of a `BertForTokenClassification`.

  Raises:
    WeightsError: The directory holds no such model, or its files do not fit
      each other.
    VocabularyError: The vocabulary cannot be used.
  """
  file = _read_config(directory)
  named = file.get("architectures")
  if not isinstance(named, list) or named[:1] != [_TAGGER]:
    raise file.error("architectures", f"[{_TAGGER!r}], BERT that tags tokens")
  labels = _labels(file)
  vocabulary = config.read_cased_or_uncased(directory)
  tensors = open_tensors(directory)
  encoder = Encoder(config.read_bert_config(file), "bert.")
  require_vocabulary_size(tensors, encoder, "torch", len(vocabulary.pieces))
  module = TokenClassifier(
    encoder.config.for_vocabulary(
      vocab_size=vocabulary.vocab_size, separator_id=vocabulary.sep_id
    ),
    num_labels=len(labels),
  )
  tokens = functools.partial(jnp.ones, (1, 3), jnp.int32)
  # Traced without arguments, it uses no device: see `realm_jax.tagging`.
  variables = jax.eval_shape(
    lambda: module.init(jax.random.key(0), padded(tokens()))
  )
  flat = flattened(variables["params"])
  classifier = tables.Module("classifier", "classifier", "dense")
  parameters, _ = reading.read(
    tensors,
    [*tables.encoder("encoder", encoder), classifier],
    {path: tuple(leaf.shape) for path, leaf in flat.items()},
    system="torch",
    # What older versions of transformers wrote, too.
    allowed=dict.fromkeys(
      (r"bert\.pooler\..*", r"bert\.embeddings\.(position|token_type)_ids"),
      "of no use",
    ),
  )
  return LabelledModel(module, nested(parameters), vocabulary, labels)


def _labels(file: ConfigFile) -> tuple[str, ...]:
  """Returns the labels of `id2label` in the order of their ids."""
  by_id = {
    int(key): label
    for key, label in file.section("id2label").entries.items()
    if isinstance(label, str) and re.fullmatch(r"\d+", key)
  }
  if not by_id or sorted(by_id) != list(range(len(by_id))):
    raise file.error(
      "id2label", 'a label for each id from 0, such as {"0": "O", "1": "B-PER"}'
    )
  return tuple(by_id[index] for index in range(len(by_id)))
