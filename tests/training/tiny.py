"""Components and batches of each stage that compile in a second or two."""

import dataclasses
import functools

import jax
import numpy as np
import optax
from flax import linen as nn

from realm_jax.corpus.build import build_corpus
from realm_jax.corpus.store import Corpus
from realm_jax.inputs.batch import Batch
from realm_jax.models.bert import BertConfig
from realm_jax.models.components import Components
from realm_jax.models.cross_encoder import CrossEncoder
from realm_jax.models.generative_reader import GenerativeReader
from realm_jax.models.parameters import parameter_shardings
from realm_jax.models.reader import BertReader
from realm_jax.models.retriever import BertRetriever
from realm_jax.models.t5 import T5Config
from realm_jax.objectives.contrastive import BlockHashes
from realm_jax.partitioning import sharding
from realm_jax.partitioning.mesh import make_mesh
from realm_jax.training.encoder_inputs import Candidates, PackingLayout
from realm_jax.training.stages.contrastive import Contrastive, ContrastiveBatch
from realm_jax.training.stages.inverse_cloze import InverseCloze
from realm_jax.training.stages.masked_words import MaskTargets
from realm_jax.training.stages.open_qa import OpenQa, OpenQaBatch
from realm_jax.training.stages.pretraining import Pretraining, PretrainingBatch
from realm_jax.training.stages.reading import Reading, ReadingBatch
from realm_jax.training.stages.reranking import Distilled, Reranking
from realm_jax.training.stages.stage import Encoders
from realm_jax.training.state import TrainState, create_state
from realm_jax.training.step import TrainStep
from tests.json_lines import write_lines

SEP, CLS, VOCABULARY = 3, 2, 40
QUERY, BLOCK, JOINT, WIDTH = 6, 10, 14, 2
BATCH, CANDIDATES, SEARCHED, MASKS = 8, 3, 5, 2
# Of the texts of poets, and the length of their blocks.
PIECES = (
  "[PAD] [UNK] [CLS] [SEP] [MASK] . met ali ##ce bob the young poet who ?"
)
BODY = 12
OF_STAGE = {
  "inverse_cloze": InverseCloze(),
  "contrastive": Contrastive(num_negatives=CANDIDATES - 1, symmetric=True),
  "distilled": Distilled(num_negatives=CANDIDATES - 1, vector_sizes=(2,)),
  "reranking": Reranking(num_negatives=CANDIDATES - 1),
  "pretraining": Pretraining(num_candidates=CANDIDATES),
  "open_qa": OpenQa(num_read=CANDIDATES),
  "reading": Reading(),
}


def corpus_of(
  folder, texts, *, pieces=PIECES, block_length=BODY, name="corpus"
):
  """A corpus of texts, whose ids are their numbers."""
  (folder / "vocab.txt").write_text("\n".join(pieces.split()))
  rows = [
    {"id": number, "title": "", "text": text}
    for number, text in enumerate(texts)
  ]
  build_corpus(
    [str(write_lines(folder / f"{name}.jsonl", rows))],
    folder / name,
    vocab=str(folder / "vocab.txt"),
    block_length=block_length,
  )
  return Corpus.open(folder / name)


def asked(corpus, answer, *, count=1, position=0):
  """A question, `count` times; its answer is a string, or a pattern with ^."""
  words, is_pattern = corpus.vocabulary, answer.startswith("^")
  query = [words.cls_id, *words.encode("who met"), words.sep_id, 0]
  tokens = [0] if is_pattern else [*words.encode(answer), 0]
  host = {
    "question": b"who met",
    "answers": [answer.encode(), b""],
    "answer_tokens": [tokens, [0] * len(tokens)],
    "answer_kind": b"regex" if is_pattern else b"string",
  }
  positions = position + np.arange(count)
  return Batch(
    {"query": np.array([query] * count, np.int32)},
    {name: np.array([value] * count) for name, value in host.items()},
    positions,
    positions + 1,
  )


def writing_components():
  """A retriever, and a reader that writes from the corpus's wordpieces."""
  t5 = T5Config(
    hidden_size=8, num_layers=1, num_heads=2, head_size=4, end_id=SEP
  )
  reader = GenerativeReader(
    *(t5, None), prompt="{query}", input_length=24, target_length=8
  )
  return Components({**components(), "reader": reader})


def components(*, dropout_rate=0.0):
  """A retriever with separate towers, and a reader."""
  bert = BertConfig(
    vocab_size=VOCABULARY,
    separator_id=SEP,
    hidden_size=8,
    num_layers=1,
    num_heads=2,
    intermediate_size=16,
    max_positions=16,
    dropout_rate=dropout_rate,
  )
  retriever = BertRetriever(
    bert,
    projection_size=4,
    shared_towers=False,
    projection_dropout_rate=dropout_rate,
  )
  reader = BertReader(
    bert, joint_length=JOINT, span_size=4, max_answer_width=WIDTH
  )
  reranker = CrossEncoder(bert, joint_length=JOINT)
  return Components(
    {"retriever": retriever, "reader": reader, "reranker": reranker}
  )


def adapted(lora):
  """The components with LoRA, or None, and three layers."""
  made = {}
  for name, module in components().items():
    bert = dataclasses.replace(module.bert, num_layers=3, lora=lora)
    made[name] = module.clone(bert=bert)
  return Components(made)


def adapted_state(lora, optimizer, mesh, seed=None):
  """A state of contrastive training of these; it is abstract without a seed."""
  made = adapted(lora)
  create = functools.partial(OF_STAGE["contrastive"].init, made, QUERY, BLOCK)
  return create_state(create, optimizer, made, seed=seed, mesh=mesh)


def init(stage, key):
  """Parameters by component, in flax's boxes."""
  return OF_STAGE[stage].init(components(), QUERY, BLOCK, key)


def state(stage, optimizer, mesh):
  """A state with values drawn by numpy, on its devices, and its shardings.

  `create_state` makes the same, but compiles for seconds.
  """

  def boxed():
    params = init(stage, jax.random.key(0))
    return TrainState(np.zeros((), np.int32), params, optimizer.init(params))

  shapes = jax.eval_shape(boxed)
  zeros = jax.tree.map(
    lambda leaf: np.zeros(leaf.shape, leaf.dtype), nn.unbox(shapes)
  )
  values = zeros._replace(params=parameters(stage))
  shardings = parameter_shardings(shapes, mesh, sharding.LOGICAL_AXIS_RULES)
  return jax.device_put(values, shardings), shardings


def parameters(stage):
  """Parameters by component, `drawn`."""
  return drawn(functools.partial(init, stage))


def drawn(init):
  """Parameters with values drawn by numpy: nothing compiles."""
  shapes = jax.eval_shape(init, jax.random.key(0))
  rng = np.random.default_rng(0)

  def draw(path, leaf):
    # Scales of LayerNorm lie around 1.
    center = 1.0 if getattr(path[-1], "key", None) == "scale" else 0.0
    return rng.normal(center, 0.3, leaf.shape).astype(np.float32)

  return jax.tree_util.tree_map_with_path(draw, nn.unbox(shapes))


def step(stage, mesh, *, dropout_rate, optimizer=None, seed=0, **settings):
  """A step of a stage, by its name or as it is, without packing."""
  return TrainStep(
    OF_STAGE[stage] if isinstance(stage, str) else stage,
    components(dropout_rate=dropout_rate),
    PackingLayout(mesh),
    optimizer or optax.sgd(1.0),
    seed,
    **settings,
  )


def weighted(params, batch, *, reader_key=None, **settings):
  """What pre-training with other settings makes of a batch.

  With a key, the reader drops half of what is hidden.
  """
  stage = dataclasses.replace(OF_STAGE["pretraining"], **settings)
  of_dropout = {} if reader_key is None else {"reader": reader_key}
  made = components(dropout_rate=0.5 if of_dropout else 0.0)
  encoders = Encoders(made, params, of_dropout)
  for name in stage.frozen:
    encoders = encoders.frozen(name)
  layout = PackingLayout(make_mesh(devices=jax.devices()[:1]))
  return layout.with_inputs(
    functools.partial(stage.inputs, made),
    batch,
    lambda rows: stage.loss(encoders, batch, rows),
  )


def batch(stage):
  """A global batch of numpy's arrays; examples have different lengths."""
  rng = np.random.default_rng(0)

  def texts(*shape, segments):
    rows = np.zeros(shape, np.int32).reshape(-1, shape[-1])
    for row in rows:
      used = rng.integers(segments + 2, len(row) + 1)
      row[:used] = rng.integers(5, VOCABULARY, used)
      row[0], row[used - 1] = CLS, SEP
      if segments == 2:
        row[rng.integers(1, used - 2)] = SEP
    return rows.reshape(shape)

  query = texts(BATCH, QUERY, segments=1)
  if isinstance(OF_STAGE[stage], Contrastive):
    count = OF_STAGE[stage].num_candidates
    blocks = texts(BATCH, count, BLOCK, segments=2)
    hashes = rng.integers(100, size=(BATCH, count, 2)).astype(np.uint32)
    known = BlockHashes(hashes, hashes[:, :1], rng.random((BATCH, count)) < 0.9)
    removed = rng.random(BATCH) < 0.7 if stage == "inverse_cloze" else None
    return ContrastiveBatch(query, blocks, known, removed)
  tokens = texts(BATCH, CANDIDATES, BLOCK, segments=2)
  if stage in ("pretraining", "reading"):
    masks = MaskTargets(
      np.full((BATCH, MASKS), [1, 0], np.int32),
      rng.integers(5, VOCABULARY, (BATCH, MASKS)).astype(np.int32),
      np.full((BATCH, MASKS), [1.0, 0.0], np.float32),
    )
    if stage == "reading":
      return ReadingBatch(query, tokens[:, :1], masks)
    candidates = Candidates.of(tokens)
    return PretrainingBatch(query, candidates, masks)
  return OpenQaBatch(
    query=query,
    retrieved=rng.normal(size=(BATCH, SEARCHED, 4)).astype(np.float32),
    blocks=tokens,
    has_answer=rng.random((BATCH, SEARCHED)) < 0.4,
    is_answer=rng.random((BATCH, CANDIDATES, BLOCK, WIDTH)) < 0.2,
  )


def batch_with_answers():
  """A batch of pre-training that masks what its second blocks begin with."""
  made = batch("pretraining")
  tokens, token_ids = made.candidates.tokens, made.masks.token_ids.copy()
  body = 1 + np.argmax(tokens[:, 1] == SEP, axis=1)
  token_ids[:, 0] = tokens[np.arange(BATCH), 1, body]
  return made._replace(masks=made.masks._replace(token_ids=token_ids))
