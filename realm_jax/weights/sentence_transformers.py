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

from realm_jax.models.retriever import POOLINGS, Retriever
from realm_jax.storage.json_files import JsonValue
from realm_jax.weights import WeightsError, config, tables
from realm_jax.weights.config import ConfigFile
from realm_jax.weights.directory import CONFIG, README, Export, class_files
from realm_jax.weights.model import BoundModel
from realm_jax.weights.tables import RETRIEVER, Encoder, Projection

_MODULES = "modules.json"
_PROMPTS = "config_sentence_transformers.json"
_LENGTHS = "sentence_bert_config.json"
_PACKAGE = "sentence_transformers.models."
_TANH = "torch.nn.modules.activation.Tanh"
_IDENTITY = "torch.nn.modules.linear.Identity"
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
  """What the modules of a directory may differ in."""

  pooling: str
  projects: bool
  normalizes: bool

  def modules(
    self, hidden: int = 0, size: int | None = 0
  ) -> list[tuple[str, dict[str, JsonValue]]]:
    """Returns kind and config.json of each module, empty if it has none.

    `hidden` is BERT's size, and `size` the projection's.
    """
    mode = "mean" if self.pooling == "mean" else "cls"
    pooling: dict[str, JsonValue] = {
      "word_embedding_dimension": hidden,
      # As all versions read it.
      **{key: ours == mode for key, ours in _POOLING_KEYS.items()},
      "pooling_mode_max_tokens": False,
      "pooling_mode_mean_sqrt_len_tokens": False,
    }
    dense: dict[str, JsonValue] = {
      "in_features": hidden,
      "out_features": hidden,
      "bias": True,
      "activation_function": _TANH,
    }
    modules = [("Transformer", {}), ("Pooling", pooling)]
    if self.pooling == "pooler":
      modules.append(("Dense", dense))
    if self.projects:
      linear = {"out_features": size, "activation_function": _IDENTITY}
      modules += [("Dense", dense | linear), ("LayerNorm", {"dimension": size})]
    if self.normalizes:
      modules.append(("Normalize", {}))
    return modules

  def complete(
    self, encoder: Encoder, folders: Sequence[str], projection: Projection
  ) -> Encoder:
    """Names the modules after the encoder; `projection` has only sizes."""
    kinds = [kind for kind, _ in self.modules()]
    dense = [folders[i] for i, kind in enumerate(kinds) if kind == "Dense"]
    if self.pooling == "pooler":
      encoder = dataclasses.replace(encoder, pooler=f"{dense[0]}.linear")
    if self.projects:
      norm = folders[kinds.index("LayerNorm")]
      projection = projection._replace(
        dense=f"{dense[-1]}.linear", norm=f"{norm}.norm"
      )
      encoder = dataclasses.replace(encoder, projection=projection)
    return encoder


def _described(kind: str, module: Mapping[str, JsonValue]) -> str:
  """Returns a module's kind with what decides whether a tower can have it."""
  said = [
    _POOLING_KEYS.get(key, key)
    for key, value in module.items()
    if key.startswith("pooling_mode_") and value
  ]
  # Later versions write one name instead.
  for key in ("pooling_mode", "activation_function"):
    said += [str(module[key])] if key in module else []
  for key, value in _USUAL_DENSE.items():
    if kind == "Dense" and module.get(key) not in (None, value):
      said.append(f"{key}={module[key]}")
  return " ".join([kind, *dict.fromkeys(said)])


_CHAINS = {
  tuple(itertools.starmap(_described, chain.modules())): chain
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
  notes: Sequence[str]


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
  # BERT's own configuration is read with its weights.
  files = [
    ConfigFile.read(directory / folder / CONFIG, optional=True)
    for folder in folders
  ]
  entries = [{}, *(file.entries for file in files[1:])]
  found = tuple(map(_described, kinds, entries))
  if found not in _CHAINS:
    known = "; ".join(", ".join(chain) for chain in _CHAINS)
    raise WeightsError(
      f"{path} chains {', '.join(found)}; a tower here is one of {known}"
    )
  chain = _CHAINS[found]
  prompts = _read_prompts(directory / _PROMPTS)
  is_mean = chain.pooling == "mean" and any(prompts.values())
  if is_mean and files[1].get("include_prompt") is False:
    raise files[1].error("include_prompt", "true, the mean of all tokens")
  settings = _read_settings(directory / _SETTINGS)
  towers = {
    "pooling": chain.pooling,
    "normalize": chain.normalizes,
    **prompts,
    # By default it reads `[CLS] text [SEP]`, all of it of type 0.
    **{name: settings[name] for name in [*_DEFAULTS][:3]},
  }
  said = ", ".join(f"{n}={v!r}" for n, v in towers.items() if v is not None)
  notes = [f"sentence-transformers' files say {said}"]
  lengths = ConfigFile.read(directory / _LENGTHS, optional=True)
  if (length := lengths.get("max_seq_length")) is not None:
    notes.append(
      f"sentence-transformers reads the first {length} tokens of a text; "
      "longer blocks are more than it was trained on"
    )
  norm = kinds.index("LayerNorm") if chain.projects else 0
  projection = Projection(
    dense="",
    norm="",
    size=files[norm - 1].size("out_features") if chain.projects else 0,
    norm_eps=settings["projection_norm_eps"],
    factor=settings["projection_scale"],
  )
  return SentenceModel(chain, folders, projection, towers, notes)


def _read_settings(path: Path) -> dict[str, Any]:
  file = ConfigFile.read(path, optional=True)
  for name, value in file.entries.items():
    if name not in _DEFAULTS:
      raise file.error(name, f"{', '.join(_DEFAULTS)} alone")
    is_switch = isinstance(_DEFAULTS[name], bool)
    if is_switch != isinstance(value, bool):
      raise file.error(name, "true or false" if is_switch else "a number")
    if not is_switch and file.number(name) <= 0:
      raise file.error(name, "a number above 0")
  return {**_DEFAULTS, **file.entries}


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
  modules = chain.modules(bert.hidden_size, size)
  kinds = [kind for kind, _ in modules]
  folders = ["", *(f"{i}_{kind}" for i, kind in enumerate(kinds) if i)]
  eps = retriever.projection_norm_eps
  if size is None:
    eps = _DEFAULTS["projection_norm_eps"]
  projection = Projection("", "", size or 0, eps, _projection_scale(eps))
  prompts = _prompts(model)
  # Where types are among these names, the body of a pair has the type 1.
  types = ["token_type_ids"] if retriever.token_types else []
  names: JsonValue = ["input_ids", *types, "attention_mask"]
  files: dict[str, JsonValue] = {
    **class_files(bert, "BertModel"),
    config.TOKENIZER: {
      **config.tokenizer_config(bert.max_positions),
      "model_input_names": names,
    },
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
    _SETTINGS: {
      "title_separator": retriever.title_separator,
      "token_types": retriever.token_types,
      "score_scale": retriever.score_scale,
      "projection_norm_eps": eps,
      "projection_scale": projection.factor,
    },
  }
  for (_, content), folder in zip(modules[1:], folders[1:], strict=True):
    files[f"{folder}/{CONFIG if content else ''}"] = content or None
  return Export(
    RETRIEVER,
    [
      *tables.tower(
        ours,
        chain.complete(Encoder(bert, ""), folders, projection),
        retriever.pooling,
      )
    ],
    files,
    [
      f"how texts are given to the model: {README}",
      f"score_scale={retriever.score_scale:g}, which sentence-transformers "
      f"does not read, is in {_SETTINGS}; the projection is written times "
      f"{projection.factor:g}, as its LayerNorm has the epsilon 1e-5",
    ],
    _readme(retriever, prompts, tower),
    folders[2:],
  )


def _projection_scale(norm_eps: float) -> float:
  """Returns the factor by which the projection before a LayerNorm is written.

  LayerNorm (v − mean) / √(var + ε) is the same of c · v with c² · ε. Its ε is
  1e-5 in sentence-transformers, so weights that are c times as large give it an
  effective ε of 1e-5 / c². c is the least power of two, which rounds no weight,
  with which this is the retriever's to 2e-10. Where the elements of a vector
  have a variance of 1e-4, what remains changes the vector by a millionth.

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


_README = """---
library_name: sentence-transformers
pipeline_tag: sentence-similarity
---
# Retriever of a retrieval-augmented language model

Written by realm_jax. The relevance of document z to query x is {scale:g} · \
⟨v(x), v(z)⟩, and `model.similarity` computes the inner product. {towers}

```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("DIRECTORY")
x = model.encode(["{query}who built the bridge?"])
z = model.encode([{document}])
print(model.similarity(x, z))
```

- A query is read as `[CLS] {query}query [SEP]`, and a document as \
`[CLS] {block}title{separator} body [SEP]`, {types}. Give title and body as \
in the example, and a document without a title with `""` for it.
- Words before queries and titles are the prompts `query` and `document`, \
which `encode_query` and `encode_document` of later versions add.
- A text is cut after {positions} tokens. Models of this kind are trained on \
passages of at most 288 wordpieces; give the title with each passage.
"""


def _readme(
  retriever: Retriever, prompts: Mapping[str, JsonValue], tower: str | None
) -> str:
  """Returns the text of README.md: how others give the model their texts."""
  block, body = prompts["document"], "The bridge was built by the railway."
  document, separator = f'"{block}Bridge {body}"', ""
  if retriever.title_separator:
    document, separator = f'("{block}Bridge", "{body}")', " [SEP]"
  types = "of type 0, and 1 after the first `[SEP]`"
  towers = "The model embeds queries and documents."
  if tower is not None:
    towers = f"This is the {tower} tower; the other has a directory of its own."
  return _README.format(
    scale=retriever.score_scale,
    towers=towers,
    query=prompts["query"],
    block=block,
    document=document,
    separator=separator,
    types=types if retriever.token_types else "all of type 0",
    positions=retriever.bert.max_positions,
  )
