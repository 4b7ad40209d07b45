"""Directories of Hugging Face: BERT, REALM, and taggers.

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
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import safetensors

from realm_jax.models.bert import BertConfig, TokenClassifier
from realm_jax.models.parameters import Params
from realm_jax.models.reader import Reader
from realm_jax.models.retriever import Retriever
from realm_jax.models.sequences import padded
from realm_jax.text.wordpieces import WordpieceVocabulary
from realm_jax.weights import WeightsError, reading, sentence_transformers
from realm_jax.weights.config import (
  ConfigFile,
  dropout_note,
  read_bert_config,
  read_cased_or_uncased,
  read_vocabulary,
)
from realm_jax.weights.model import flattened, nested
from realm_jax.weights.plan import (
  ImportConfig,
  Source,
  require_vocabulary_size,
)
from realm_jax.weights.tables import (
  HEAD,
  READER,
  RETRIEVER,
  Encoder,
  Module,
  Projection,
  SpanHead,
  encoder_table,
  places,
  tower_table,
)
from realm_jax.weights.unpickling import read_torch_file

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
BLOCK_VECTORS = "block_emb"
# Released open QA reads blocks of 288 tokens after 32 of the question.
OPEN_QA_JOINT_LENGTH = 288 + 32
_TORCH_WEIGHTS = "pytorch_model.bin"
_BLOCK_RECORDS = "block_records.npy"
_DTYPES: Mapping[str, Any] = {
  "F64": np.float64,
  "F32": np.float32,
  "F16": np.float16,
  "BF16": ml_dtypes.bfloat16,
  "I64": np.int64,
  "I32": np.int32,
  "I16": np.int16,
  "I8": np.int8,
  "U8": np.uint8,
  "BOOL": np.bool_,
}
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


def read_model_config(directory: Path) -> ConfigFile:
  """Reads config.json; raises `WeightsError` without such a directory."""
  if not directory.is_dir():
    raise WeightsError(
      f"{directory} is no local directory; want one with {CONFIG}, {WEIGHTS} "
      "and vocab.txt"
    )
  return ConfigFile.read(directory / CONFIG)


def open_tensors(directory: Path) -> dict[str, np.ndarray]:
  """Opens the weights of a directory, mapped where the format allows it.

  Raises:
    WeightsError: There are none, they are damaged, or in shards.
  """
  if (directory / WEIGHTS).exists():
    return open_safetensors(directory / WEIGHTS)
  if (directory / _TORCH_WEIGHTS).exists():
    return read_torch_file(directory / _TORCH_WEIGHTS)
  if any(directory.glob("*.index.json")):
    raise WeightsError(
      f"{directory} holds weights in shards; load the model with transformers "
      "and save it again, with safe_serialization=True and "
      'max_shard_size="20GB"'
    )
  names = ", ".join(sorted(p.name for p in directory.iterdir())) or "no files"
  raise WeightsError(f"{directory} holds no {WEIGHTS}; it has {names}")


def open_safetensors(path: Path) -> dict[str, np.ndarray]:
  """Maps the tensors of a file, by name and in their own dtypes.

  Raises:
    WeightsError: The file is damaged, or holds a type that numpy lacks.
  """
  try:
    # The library checks the header, and gives no place of a tensor.
    with safetensors.safe_open(path, framework="numpy"):
      data = np.memmap(path, np.uint8, mode="r")
  except (OSError, safetensors.SafetensorError) as error:
    raise WeightsError(
      f"{path} is not read ({error}); copy it again"
    ) from error
  start = 8 + int(data[:8].view("<u8")[0])
  header = json.loads(data[8:start].tobytes())
  header.pop("__metadata__", None)
  tensors = {}
  for name, it in header.items():
    if it["dtype"] not in _DTYPES:
      raise WeightsError(
        f"{name} of {path} holds {it['dtype']}, which numpy does not have; "
        "want F32, F16 or BF16"
      )
    first, limit = it["data_offsets"]
    values = data[start + first : start + limit].view(_DTYPES[it["dtype"]])
    tensors[name] = values.reshape(it["shape"])
  return tensors


def open_bert(config: ImportConfig, directory: Path, scope: str) -> Source:
  """Opens a BERT, with what modules.json says of its vectors."""
  sentence = sentence_transformers.read_model(directory)
  weights_dir = directory / sentence.folders[0] if sentence else directory
  file = read_model_config(weights_dir)
  kind = file.get("model_type", "bert")
  if kind not in _BERT_TYPES:
    raise WeightsError(
      f"{file.where} has model_type={kind!r}; --from=hf_bert wants BERT"
      + (" (--from=hf_realm is for this one)" if kind == "realm" else "")
    )
  if size := file.get("projection_dim"):
    raise WeightsError(
      f"{file.where} has projection_dim={size}; towers here have no projection "
      "without a LayerNorm"
    )
  tensors = _under(scope, open_tensors(weights_dir))
  prefix = _prefix(tensors, config.tensor_prefix, scope, str(weights_dir))
  encoder = Encoder(
    config=read_bert_config(file),
    prefix=prefix,
    pooler=f"{prefix}pooler/dense",
    # The head is beside `bert.`, not in it.
    head=prefix.removesuffix("bert.") + HEAD,
  ).with_head(tensors, "torch")
  notes, towers = dropout_note(file), {}
  if sentence:
    folders = [scope + folder for folder in sentence.folders]
    encoder = sentence.chain.complete(encoder, folders, sentence.projection)
    for folder in sentence.with_weights:
      of_module = open_tensors(directory / folder)
      tensors |= _under(f"{scope}{folder}.", of_module)
    towers = sentence.towers
    notes += sentence.notes
  return Source(
    tensors,
    "torch",
    [encoder],
    read_vocabulary(weights_dir),
    towers=towers,
    notes=notes,
  )


def _under(scope: str, tensors: Mapping[str, np.ndarray]) -> dict[str, Any]:
  return {scope + name: tensor for name, tensor in tensors.items()}


def _prefix(
  tensors: Mapping[str, Any], wanted: str | None, scope: str, where: str
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
    few = ", ".join([*tensors][:5]) or "nothing"
    raise WeightsError(
      f"{where} has no {wanted or ''}{_WORDS}, so it is no BERT; it has "
      f"{few}, …"
    )
  if len(found) > 1:
    raise WeightsError(
      f"{where} holds {len(found)} encoders, {', '.join(map(repr, found))}; "
      "choose one with --tensor_prefix, and let --ignore name the tensors of "
      "the others"
    )
  return found[0]


def open_realm(config: ImportConfig, directory: Path, scope: str) -> Source:
  """Opens one of transformers' classes of REALM."""
  file = read_model_config(directory)
  kind, named = file.get("model_type"), file.get("architectures")
  name = str(named[0]) if isinstance(named, list) and named else ""
  if kind != "realm" or name not in _REALM:
    raise WeightsError(
      f"{file.where} has model_type={kind!r} and architectures={named}; "
      f"--from=hf_realm wants 'realm' and one of {', '.join(_REALM)}"
    )
  bert = read_bert_config(file, default_activation="gelu_new")
  tensors = _under(scope, open_tensors(directory))
  size = file.size("retriever_proj_size", Retriever.projection_size)
  of_towers, of_reader = _REALM[name]
  encoders = [
    _realm_encoder(
      bert,
      prefix,
      parts=(RETRIEVER,),
      projection=Projection(
        f"{prefix}cls/dense",
        f"{prefix}cls/LayerNorm",
        size,
        # transformers has one epsilon for both.
        bert.layer_norm_eps,
      ),
      only_queries=prefix.startswith("query"),
    )
    for prefix in of_towers
    if any(tensor.startswith(prefix) for tensor in tensors)
  ]
  if len(encoders) == 2 and not config.separate_towers:
    encoders = _without_twin(tensors, *encoders)
  reader: dict[str, float] = {
    "span_size": file.size("span_hidden_size", Reader.span_size),
    "span_norm_eps": file.number("reader_layer_norm_eps", Reader.span_norm_eps),
    "max_answer_width": file.size("max_span_width", Reader.max_answer_width),
  }
  if of_reader is not None:
    span_head = None
    if name in _SPAN_READERS:
      outputs = f"{of_reader}qa_outputs"
      span_head = SpanHead(
        f"{outputs}/dense_intermediate",
        f"{outputs}/layer_normalization",
        f"{outputs}/dense_output",
      )
      length = file.size("reader_seq_len", OPEN_QA_JOINT_LENGTH)
      reader["joint_length"] = min(length, bert.max_positions)
    encoders.append(
      _realm_encoder(
        bert,
        of_reader,
        parts=(READER,),
        # The decoder of a reader that scores spans is its own, and untrained.
        has_tied_head=span_head is None,
        span_head=span_head,
      )
    )
  records = directory / _BLOCK_RECORDS
  return Source(
    tensors,
    "torch",
    encoders,
    read_vocabulary(directory),
    towers={"pooling": "pooler", "projection_size": size},
    reader=reader,
    notes=[f"class: {name}", *dropout_note(file)],
    block_vectors=tensors.get(BLOCK_VECTORS),
    block_records=records if records.is_file() else None,
  )


def _realm_encoder(bert: BertConfig, prefix: str, **settings: Any) -> Encoder:
  return Encoder(
    bert,
    f"{prefix}realm.",
    f"{prefix}realm.pooler/dense",
    f"{prefix}{HEAD}",
    **settings,
  )


def _without_twin(
  tensors: Mapping[str, np.ndarray], block: Encoder, query: Encoder
) -> list[Encoder]:
  """Returns one encoder if two are equal where both have tensors.

  A scorer without a separate query embedder has its embedder twice.
  """
  one, other = (
    [*places([*tower_table("", encoder, "pooler")], "torch")]
    for encoder in (block, query)
  )
  for first, second in zip(one, other, strict=True):
    held = [n for n in (*first.names, *second.names) if n in tensors]
    if any(not np.array_equal(tensors[held[0]], tensors[n]) for n in held[1:]):
      return [block, query]
  return [dataclasses.replace(block, twin=query)]


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
  config = read_model_config(directory)
  named = config.get("architectures")
  if not isinstance(named, list) or named[:1] != [_TAGGER]:
    raise WeightsError(
      f"{config.where} has architectures={named}; want [{_TAGGER!r}], BERT "
      "that was fine-tuned to tag tokens"
    )
  labels = _labels(config)
  vocabulary = read_cased_or_uncased(directory)
  tensors = open_tensors(directory)
  encoder = Encoder(read_bert_config(config), "bert.", "bert.pooler/dense")
  require_vocabulary_size(tensors, encoder, "torch", len(vocabulary.pieces))
  bert = encoder.config.for_vocabulary(
    vocab_size=vocabulary.vocab_size, separator_id=vocabulary.sep_id
  )
  module = TokenClassifier(bert, num_labels=len(labels))
  # Traced without arguments, it uses no device: see `tagging.bert_tagger`.
  shapes = jax.eval_shape(
    lambda: module.init(jax.random.key(0), padded(jnp.ones((1, 3), jnp.int32)))
  )
  parameters, _ = reading.read(
    tensors,
    [
      *encoder_table("encoder", encoder),
      Module("classifier", "classifier", "dense"),
    ],
    {
      path: tuple(leaf.shape)
      for path, leaf in flattened(shapes["params"]).items()
    },
    system="torch",
    unused={
      # What older versions of transformers wrote, too.
      r"bert\.pooler\..*": "token classification has no pooler",
      r"bert\.embeddings\.(position|token_type)_ids": "computed, not stored",
    },
    fresh={},
  )
  return LabelledModel(module, nested(parameters), vocabulary, labels)


def _labels(config: ConfigFile) -> tuple[str, ...]:
  """Returns the labels of `id2label` in the order of their ids."""
  by_id = {
    int(key): label
    for key, label in config.section("id2label").entries.items()
    if isinstance(label, str) and re.fullmatch(r"\d+", key)
  }
  if not by_id or sorted(by_id) != list(range(len(by_id))):
    raise config.error(
      "id2label", 'a label for each id from 0, such as {"0": "O", "1": "B-PER"}'
    )
  return tuple(by_id[index] for index in range(len(by_id)))
