"""Models of sentence-transformers: a chain of modules, a folder for each.

A tower is this chain, of which every module but the first two is optional:

| module | is |
| --- | --- |
| Transformer | BERT |
| Pooling | [CLS], or the mean of all tokens |
| Dense, with tanh | BERT's pooler |
| Dense, LayerNorm | the projection |
| Normalize | vectors of length 1 |
"""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from realm_jax.files.json_file import JsonValue
from realm_jax.models.retriever import POOLINGS, Retriever
from realm_jax.weights import WeightsError, config, tables
from realm_jax.weights.config import ConfigFile
from realm_jax.weights.directory import CONFIG, README, Export, class_files
from realm_jax.weights.model import BoundModel
from realm_jax.weights.tables import RETRIEVER, Encoder, Projection

_MODULES = "modules.json"
_PROMPTS = "config_sentence_transformers.json"
_LENGTHS = "sentence_bert_config.json"
_PACKAGE = "sentence_transformers.models."
_ACTIVATIONS = {
  "torch.nn.modules.activation.Tanh": "tanh",
  "torch.nn.modules.linear.Identity": "identity",
}
_POOLING_KEYS = {
  "pooling_mode_cls_token": "cls",
  "pooling_mode_mean_tokens": "mean",
}
# The names that models have given to the prompts of queries and of blocks.
_PROMPT_NAMES = {
  "query_prefix": ("query",),
  "block_prefix": ("document", "passage", "corpus"),
}
# Settings of a retriever that the library has no place for. It does not read
# their file; an import does. The values are what a directory without it means.
_SETTINGS = "realm_jax.json"
_DEFAULTS: Mapping[str, Any] = {
  "title_separator": False,
  "token_types": False,
  "score_scale": None,
  # The epsilon of torch's LayerNorm, which this LayerNorm has no setting for.
  "projection_norm_eps": 1e-5,
  "projection_scale": 1.0,
}
_MAX_EPS_DIFFERENCE = 2e-10
# What a Dense must say, if it says it: it has a bias and nothing else.
_USUAL_DENSE = {
  "bias": True,
  "module_input_name": "sentence_embedding",
  "module_output_name": "sentence_embedding",
  "use_residual": False,
}


class Chain(NamedTuple):
  """The modules that make vectors, as far as they may differ."""

  pooling: str
  projects: bool
  normalizes: bool

  @property
  def modules(self) -> tuple[str, ...]:
    """Kinds of the modules, with their mode or activation."""
    return (
      "Transformer",
      f"Pooling {'mean' if self.pooling == 'mean' else 'cls'}",
      *(["Dense tanh"] if self.pooling == "pooler" else []),
      *(["Dense identity", "LayerNorm"] if self.projects else []),
      *(["Normalize"] if self.normalizes else []),
    )

  def complete(
    self, encoder: Encoder, folders: Sequence[str], projection: Projection
  ) -> Encoder:
    """Names the modules after the encoder; of the projection only sizes."""
    folder = dict(zip(self.modules, folders, strict=True))
    if self.pooling == "pooler":
      encoder = dataclasses.replace(
        encoder, pooler=f"{folder['Dense tanh']}.linear"
      )
    if self.projects:
      projection = projection._replace(
        dense=f"{folder['Dense identity']}.linear",
        norm=f"{folder['LayerNorm']}.norm",
      )
      encoder = dataclasses.replace(encoder, projection=projection)
    return encoder


_CHAINS = {
  chain.modules: chain
  for chain in itertools.starmap(
    Chain, itertools.product(POOLINGS, (False, True), (False, True))
  )
}


class SentenceModel(NamedTuple):
  """What the files of a directory say.

  Attributes:
    chain: Modules that make vectors.
    folders: Folder of each module.
    projection: Sizes of the projection.
    towers: Fields of `ImportConfig`.
    notes: Lines for the report.
  """

  chain: Chain
  folders: Sequence[str]
  projection: Projection
  towers: Mapping[str, Any]
  notes: list[str]

  @property
  def with_weights(self) -> list[str]:
    """Folders of the modules after BERT that have weights."""
    kinds = zip(self.chain.modules, self.folders, strict=True)
    return [f for kind, f in kinds if kind.startswith(("Dense", "LayerNorm"))]


def read_model(directory: Path) -> SentenceModel | None:
  """Reads the files of a directory; returns None if they are not there.

  Raises:
    WeightsError: They say what a tower here cannot do.
  """
  path = directory / _MODULES
  if not path.exists():
    return None
  modules = config.read_json(path)
  try:
    kinds = [module["type"].rpartition(".")[2] for module in modules]
    folders = [str(module["path"]) for module in modules]
  except (TypeError, KeyError, AttributeError) as error:
    raise WeightsError(
      f"{path} is no list of modules with type and path"
    ) from error
  configs = [
    ConfigFile.read(directory / folder / CONFIG, optional=True)
    for folder in folders
  ]
  found = tuple(map(_described, kinds, configs))
  if found not in _CHAINS:
    raise WeightsError(
      f"{path} chains {', '.join(found)}; a tower here is Transformer, Pooling "
      "(cls or mean), perhaps a Dense with tanh after cls, perhaps a Dense "
      "without activation and its LayerNorm, and perhaps Normalize"
    )
  chain = _CHAINS[found]
  settings = _read_settings(directory / _SETTINGS)
  prompts = _read_prompts(directory / _PROMPTS)
  by_kind = dict(zip(found, configs, strict=True))
  includes = by_kind[found[1]].get("include_prompt")
  if chain.pooling == "mean" and includes is False and any(prompts.values()):
    raise WeightsError(
      f"{by_kind[found[1]].where} leaves the prompt out of the mean "
      "(include_prompt=false); the mean here is over all tokens"
    )
  size = by_kind["Dense identity"].size("out_features") if chain.projects else 0
  projection = Projection(
    *("", "", size),
    settings.pop("projection_norm_eps"),
    settings.pop("projection_scale"),
  )
  towers = {
    "pooling": chain.pooling,
    "normalize": chain.normalizes,
    **prompts,
    # By default it reads `[CLS] text [SEP]`, all of it of type 0.
    **settings,
  }
  said = ", ".join(f"{n}={v!r}" for n, v in towers.items() if v is not None)
  notes = [f"sentence-transformers' files say {said}"]
  lengths = ConfigFile.read(directory / _LENGTHS, optional=True)
  if lengths.get("max_seq_length") is not None:
    notes.append(
      f"sentence-transformers reads the first {lengths.size('max_seq_length')} "
      "tokens of a text; longer blocks are more than it was trained on"
    )
  return SentenceModel(chain, folders, projection, towers, notes)


def _described(kind: str, config: ConfigFile) -> str:
  """Returns a module as `Chain.modules` describes it."""
  if kind == "Pooling":
    modes = [
      _POOLING_KEYS.get(key, key)
      for key, value in config.entries.items()
      if key.startswith("pooling_mode_") and value
    ]
    # Later versions write one name instead.
    if isinstance(mode := config.get("pooling_mode"), str):
      modes = [_POOLING_KEYS.get(mode, mode)]
    return f"Pooling {' and '.join(modes)}"
  if kind != "Dense":
    return kind
  for key, value in _USUAL_DENSE.items():
    if config.get(key) not in (None, value):
      raise config.error(key, repr(value))
  activation = str(config.get("activation_function"))
  return f"Dense {_ACTIVATIONS.get(activation, activation)}"


def _read_settings(path: Path) -> dict[str, Any]:
  config = ConfigFile.read(path, optional=True)
  if unknown := config.entries.keys() - _DEFAULTS:
    raise WeightsError(
      f"{path} has {', '.join(sorted(unknown))}; want {', '.join(_DEFAULTS)}: "
      "a later version may have written it"
    )
  settings: dict[str, Any] = {**_DEFAULTS, **config.entries}
  for name in config.entries:
    if not isinstance(_DEFAULTS[name], bool):
      settings[name] = config.number(name)
    elif not isinstance(settings[name], bool):
      raise config.error(name, "true or false")
  if settings["projection_scale"] <= 0:
    raise config.error("projection_scale", "a number above 0")
  return settings


def _read_prompts(path: Path) -> dict[str, str]:
  """Reads the prompts of queries and of blocks."""
  config = ConfigFile.read(path, optional=True)
  prompts: Any = config.get("prompts") or {}
  if not isinstance(prompts, dict) or {*map(type, prompts.values())} - {str}:
    raise config.error(
      "prompts", 'texts by name, such as {"query": "query: "}, or no prompts'
    )
  default = config.get("default_prompt_name")
  usual = prompts.get(default, "") if isinstance(default, str) else ""
  return {
    field: next((prompts[n] for n in names if n in prompts), usual)
    for field, names in _PROMPT_NAMES.items()
  }


# --- Writing ------------------------------------------------------------------


def plan_export(model: BoundModel, ours: str, tower: str | None) -> Export:
  """Plans the export of a retriever's tower.

  Args:
    model: Model whose retriever is exported.
    ours: Name of the tower's module.
    tower: Tower, `query` or `block`; None is both, if they are one. Each makes
      a directory of its own: they load with every version of the library,
      unlike a Router, and an import reads them back.

  Raises:
    WeightsError: The library cannot express the retriever.
  """
  retriever = model.retriever
  bert, size = retriever.bert, retriever.projection_size
  chain = Chain(retriever.pooling, size is not None, retriever.normalize)
  kinds = [kind.partition(" ")[0] for kind in chain.modules]
  folders = ["", *(f"{i}_{kind}" for i, kind in enumerate(kinds) if i)]
  eps = retriever.projection_norm_eps
  if size is None:
    eps = _DEFAULTS["projection_norm_eps"]
  projection = Projection("", "", size or 0, eps, _projection_scale(eps))
  settings = {
    "title_separator": retriever.title_separator,
    "token_types": retriever.token_types,
    "score_scale": retriever.score_scale,
    "projection_norm_eps": eps,
    "projection_scale": projection.factor,
  }
  prompts = _prompts(model)
  # Where types are among these names, the body of a pair has the type 1.
  types = ["token_type_ids"] if retriever.token_types else []
  tokenizer: Any = config.tokenizer_config(bert.max_positions)
  names = ["input_ids", *types, "attention_mask"]
  files: dict[str, JsonValue] = {
    **class_files(bert, "BertModel"),
    config.TOKENIZER: {**tokenizer, "model_input_names": names},
    _MODULES: [
      {"idx": i, "name": str(i), "path": folder, "type": _PACKAGE + kind}
      for i, (kind, folder) in enumerate(zip(kinds, folders, strict=True))
    ],
    _PROMPTS: {
      "prompts": prompts,
      "default_prompt_name": None,
      "similarity_fn_name": "dot",
    },
    _LENGTHS: {
      "max_seq_length": bert.max_positions,
      "do_lower_case": False,
      # BERT's own pooler is not in the weights. With it, the library would warn
      # of random values.
      "model_args": {"add_pooling_layer": False},
    },
    _SETTINGS: settings,
  }
  for kind, folder in zip(chain.modules[1:], folders[1:], strict=True):
    content = _module_config(kind, retriever)
    files[f"{folder}/{CONFIG}" if content else f"{folder}/"] = content
  notes = [f"how texts are given to the model: {README}"]
  if projection.factor != 1.0:
    notes.append(
      f"the projection is written times {projection.factor:g}, so that the "
      "LayerNorm of sentence-transformers, of epsilon 1e-5, stands for one of "
      f"{retriever.projection_norm_eps:g}"
    )
  if retriever.score_scale != 1.0:
    notes.append(
      f"score_scale={retriever.score_scale:g} is in {_SETTINGS}, which "
      "sentence-transformers does not read: its similarity ranks alike, and is "
      "smaller by this factor"
    )
  encoder = chain.complete(Encoder(bert, ""), folders, projection)
  return Export(
    RETRIEVER,
    [*tables.tower(ours, encoder, retriever.pooling)],
    files,
    notes,
    _readme(retriever, prompts, tower),
    folders[2:],
  )


def _module_config(kind: str, retriever: Retriever) -> JsonValue:
  """Returns the config.json of a module; None if it has none."""
  hidden, size = retriever.bert.hidden_size, retriever.projection_size
  name, _, mode = kind.partition(" ")
  if name == "Pooling":
    # As all versions read it.
    modes = {key: ours == mode for key, ours in _POOLING_KEYS.items()}
    return {
      "word_embedding_dimension": hidden,
      **modes,
      "pooling_mode_max_tokens": False,
      "pooling_mode_mean_sqrt_len_tokens": False,
    }
  if name == "Dense":
    activations = {ours: theirs for theirs, ours in _ACTIVATIONS.items()}
    return {
      "in_features": hidden,
      "out_features": hidden if mode == "tanh" else size,
      "bias": True,
      "activation_function": activations[mode],
    }
  return {"dimension": size} if name == "LayerNorm" else None


def _projection_scale(norm_eps: float) -> float:
  """Returns the factor by which the projection before a LayerNorm is written.

  LayerNorm (v − mean) / √(var + ε) is the same of c · v with c² · ε. Its ε is
  1e-5 in sentence-transformers, so weights that are c times as large give it an
  effective ε of 1e-5 / c². c is the least power of two with which this is the
  retriever's to 2e-10: a power of two rounds no weight, and a small one leaves
  room in float16. Where the elements of a vector have a variance of 1e-4, the
  remaining difference of ε changes the vector by a millionth.

  Raises:
    WeightsError: No such factor exists.
  """
  theirs = _DEFAULTS["projection_norm_eps"]
  for scale in (2.0**exponent for exponent in range(9)):
    if abs(theirs / scale**2 - norm_eps) <= _MAX_EPS_DIFFERENCE:
      return scale
  raise WeightsError(
    f"the retriever has projection_norm_eps={norm_eps}; a LayerNorm of "
    f"sentence-transformers can stand for {theirs}, its own, and for less than "
    f"{_MAX_EPS_DIFFERENCE}"
  )


def _prompts(model: BoundModel) -> dict[str, JsonValue]:
  """Returns the prefixes as texts that give the same tokens again."""
  texts: dict[str, JsonValue] = {}
  for field, (name, *_) in _PROMPT_NAMES.items():
    ids = tuple(getattr(model.retriever, field))
    # The space separates the prompt from the word that follows.
    text = f"{model.vocabulary.decode(ids)} " if ids else ""
    if tuple(model.vocabulary.encode(text) if text else ()) != ids:
      raise WeightsError(
        f"the {name} prefix {ids} is not what this vocabulary makes of any "
        "text; it cannot be a prompt of sentence-transformers"
      )
    texts[name] = text
  return texts


_CARD = """---
library_name: sentence-transformers
pipeline_tag: sentence-similarity
tags:
- sentence-transformers
- feature-extraction
- realm
---
# Retriever of a retrieval-augmented language model

Queries and documents become vectors of {size} dimensions{length}. \
The relevance of document z to query x is {factor}⟨v(x), v(z)⟩, the inner \
product, which `model.similarity` computes{without}. The directory was \
written by realm_jax.
{of_tower}
## Usage

```python
from sentence_transformers import SentenceTransformer

{load}
queries = ["{query}who built the bridge?"]
documents = [{document}]
x = {query_model}.encode(queries)
z = {block_model}.encode(documents)
print({query_model}.similarity(x, z))
```

## Texts

- A query is read as `[CLS] {query}query [SEP]`.
- A document is read as `[CLS] {block}title{texts}
{prompts}- A text is cut after {positions} tokens. Models of this kind are \
trained on passages of at most 288 wordpieces; split longer documents, and \
give the title with each passage.
"""
_OF_TOWER = """
This is the {tower} tower, which embeds {embeds}. The {other} tower, which \
embeds {other_embeds}, has a directory of its own, which `--tower={other}` \
writes.
"""
_PAIR = """ [SEP] body [SEP]`; {types}. Give it as the pair `(title, body)`, \
and a document without a title as `("", body)`: the tokenizer makes these \
tokens of a pair."""
_ONE_TEXT = """ body [SEP]`: give title and body as one text, with a space \
between them."""
_WITH_PROMPTS = """- The words before queries and titles are the prompts \
`query` and `document`. The example writes them out. `encode_query` and \
`encode_document`, which later versions of the library have, add them.
"""


def _readme(
  retriever: Retriever, prompts: Mapping[str, JsonValue], tower: str | None
) -> str:
  """Returns the text of README.md: how others give the model their texts."""
  scale, block = retriever.score_scale, prompts["document"]
  body = "The bridge was built by the railway."
  document, texts = f'"{block}Bridge {body}"', _ONE_TEXT
  if retriever.title_separator:
    types = "all tokens are of type 0"
    if retriever.token_types:
      types = "up to the first `[SEP]` the token type is 0, and after it 1"
    document, texts = f'("{block}Bridge", "{body}")', _PAIR.format(types=types)
  query_model = block_model = "model"
  load, of_tower = 'model = SentenceTransformer("DIRECTORY")', ""
  if tower is not None:
    query_model, block_model = "query_tower", "block_tower"
    load = "\n".join(
      f'{name} = SentenceTransformer("{name.upper()}_DIRECTORY")'
      for name in (query_model, block_model)
    )
    embeds = {"query": "queries", "block": "documents"}
    other = "block" if tower == "query" else "query"
    of_tower = _OF_TOWER.format(
      tower=tower, embeds=embeds[tower], other=other, other_embeds=embeds[other]
    )
  return _CARD.format(
    size=retriever.vector_size,
    length=" of length 1" if retriever.normalize else "",
    factor="" if scale == 1.0 else f"{scale:g} · ",
    without="" if scale == 1.0 else f" without the factor {scale:g}",
    of_tower=of_tower,
    load=load,
    query=prompts["query"],
    document=document,
    query_model=query_model,
    block_model=block_model,
    block=block,
    texts=texts,
    prompts=_WITH_PROMPTS if any(prompts.values()) else "",
    positions=retriever.bert.max_positions,
  )
