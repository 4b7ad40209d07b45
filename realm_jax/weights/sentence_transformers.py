"""Models of sentence-transformers: a chain of modules, a folder for each.

A tower is this chain; all modules except the first two are optional:

| module | is |
| --- | --- |
| Transformer | BERT |
| Pooling | [CLS], or the mean of all tokens |
| Dense, with tanh | BERT's pooler |
| Dense, LayerNorm | the projection |
| Normalize | vectors of length 1 |
"""

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from realm_jax.models.modernbert import ModernBertConfig
from realm_jax.models.retriever import POOLINGS, BertRetriever
from realm_jax.settings import PositiveFloat, PositiveInt
from realm_jax.storage.json_files import JsonValue
from realm_jax.text.vocabulary_files import TOKENIZER_CONFIG
from realm_jax.weights import WeightsError, modernbert, name_maps
from realm_jax.weights.hf_files import (
  CONFIG,
  Export,
  JsonFile,
)
from realm_jax.weights.mapped_weights import BoundModel
from realm_jax.weights.name_maps import RETRIEVER, Module, Table

_MODULES = "modules.json"
_PROMPTS = "config_sentence_transformers.json"
_LENGTHS = "sentence_bert_config.json"
_README = "README.md"
# The library's names of poolings.
_POOLINGS = {"mean": "mean", "last": "lasttoken"}
_PACKAGE = "sentence_transformers.models."
_TANH = "torch.nn.modules.activation.Tanh"
_IDENTITY = "torch.nn.modules.linear.Identity"
# Names that models use for the prompts of queries and of blocks.
_PROMPT_NAMES = {
  "query_prefix": ("query",),
  "block_prefix": ("document", "passage", "corpus"),
}
# File for settings of a retriever that the library does not have. The library
# ignores the file; an import reads it.
_SETTINGS = "realm_jax.json"
# The epsilon of torch's LayerNorm, which the library cannot change.
_NORM_EPS = 1e-5
_MAX_EPS_DIFFERENCE = 2e-10
# Settings that a Dense must have, if it states them: only a bias.
_USUAL_DENSE = {
  "bias": True,
  "module_input_name": "sentence_embedding",
  "module_output_name": "sentence_embedding",
  "use_residual": False,
}


def _chain(
  pooling: str, *, has_projection: bool, normalize: bool
) -> list[tuple[str, str]]:
  """Returns a tower's modules, in the form of `_described`, with our names.

  Our name is empty for BERT, and for a module without weights.
  """
  chain = [("Transformer", "")]
  chain.append((f"Pooling {_POOLINGS.get(pooling, 'cls')}", ""))
  if pooling == "pooler":
    chain.append((f"Dense {_TANH}", "pooler"))
  if has_projection:
    chain.append((f"Dense {_IDENTITY}", "projection"))
    chain.append(("LayerNorm", "projection_norm"))
  if normalize:
    chain.append(("Normalize", ""))
  return chain


def _described(kind: str, module: Mapping[str, Any]) -> str:
  """Returns a module's kind, with the settings that must match a tower's."""
  settings = [str(module.get("activation_function", ""))] * (kind == "Dense")
  if kind == "Pooling":
    modes = [
      re.sub("pooling_mode_|_tokens?$", "", key)
      for key, value in module.items()
      if key.startswith("pooling_mode_") and value
    ]
    # Later versions write a single name instead.
    settings = [*dict.fromkeys([*modes, str(module.get("pooling_mode", ""))])]
  return " ".join([kind, *settings]).rstrip()


def _around(
  chain: Iterable[tuple[str, str]], folders: Iterable[str], factor: float
) -> list[Module]:
  """Returns the modules with weights after BERT (see `_projection_factor`)."""
  return [
    Module(
      ours,
      f"{folder}/{'norm' if ours == 'projection_norm' else 'linear'}",
      factor if ours == "projection" else 1.0,
    )
    for (_, ours), folder in zip(chain, folders, strict=True)
    if ours
  ]


class SentenceModel(NamedTuple):
  """Contents of a directory's files; by default, there are none.

  Attributes:
    folders: Folder of each module.
    around: Modules with weights, other than BERT.
    fields: Fields of `BertRetriever`.
  """

  folders: Sequence[str] = ("",)
  around: Table = ()
  fields: Mapping[str, Any] = {}


def read_model(directory: Path) -> SentenceModel:
  """Reads the files of a directory."""
  path = directory / _MODULES
  if not path.exists():
    return SentenceModel()
  modules = JsonFile(path, kind=list[dict[str, Any]]).entries
  kinds = [str(m.get("type")).rpartition(".")[2] for m in modules]
  folders = [str(m.get("path", "")) for m in modules]
  files = [JsonFile(directory / f / CONFIG, optional=True) for f in folders]
  description = ", ".join(
    map(_described, kinds, [file.entries for file in files])
  )
  for pooling, has_projection, normalize in itertools.product(
    POOLINGS, (False, True), (False, True)
  ):
    chain = _chain(pooling, has_projection=has_projection, normalize=normalize)
    if description == ", ".join(said for said, _ in chain):
      break
  else:
    raise WeightsError(
      f"{path} chains {description}; a tower here is a Transformer, Pooling by "
      "cls or mean, and then perhaps a Dense with tanh (after cls), a Dense "
      "without activation and a LayerNorm, and Normalize"
    )
  for file, kind in zip(files, kinds, strict=True):
    for key, value in _USUAL_DENSE.items() if kind == "Dense" else ():
      file.get(key, (None, value))
  file = JsonFile(directory / _PROMPTS, optional=True)
  prompts = file.get("prompts", dict[str, str] | None) or {}
  usual = prompts.get(file.get("default_prompt_name", str | None), "")
  prefixes = {
    field: next((prompts[n] for n in names if n in prompts), usual)
    for field, names in _PROMPT_NAMES.items()
  }
  if pooling == "mean" and any(prefixes.values()):
    files[1].get("include_prompt", (True,), True)
  settings = JsonFile(directory / _SETTINGS, optional=True)
  fields: dict[str, Any] = {
    "pooling": pooling,
    "normalize": normalize,
    **prefixes,
    # By default the library reads `[CLS] text [SEP]`, all of type 0.
    "title_separator": settings.get("title_separator", bool, False),
    "token_types": settings.get("token_types", bool, False),
    "score_scale": settings.get("score_scale", PositiveFloat, 1.0),
  }
  if has_projection:
    dense = files[kinds.index("LayerNorm") - 1]
    fields["projection_size"] = dense.get("out_features", PositiveInt)
    fields["projection_norm_eps"] = settings.get(
      "projection_norm_eps", PositiveFloat, _NORM_EPS
    )
  factor = settings.get("projection_scale", PositiveFloat, 1.0)
  return SentenceModel(folders, _around(chain, folders, factor), fields)


# --- Writing ------------------------------------------------------------------


def export_tower(model: BoundModel, tower: str | None) -> Export:
  """Plans the export of a tower, `query`, `block`, `hop` or the only one.

  Each tower has its own directory, which loads with every version of the
  library, unlike a Router, and can be imported again.
  """
  retriever = model.retriever
  bert, size = retriever.bert, retriever.projection_size
  eps = _NORM_EPS if size is None else retriever.projection_norm_eps
  factor = _projection_factor(eps)

  chain = _chain(
    retriever.pooling,
    has_projection=size is not None,
    normalize=retriever.normalize,
  )
  kinds = [said.partition(" ")[0] for said, _ in chain]
  folders = ["", *(f"{i}_{kind}" for i, kind in enumerate(kinds) if i)]
  is_mean, is_last = (retriever.pooling == name for name in ("mean", "last"))
  contents: dict[str, JsonValue] = {
    chain[1][0]: {
      "word_embedding_dimension": bert.hidden_size,
      # All versions read this form.
      "pooling_mode_cls_token": not is_mean and not is_last,
      "pooling_mode_mean_tokens": is_mean,
      "pooling_mode_max_tokens": False,
      "pooling_mode_mean_sqrt_len_tokens": False,
      **({"pooling_mode_lasttoken": True} if is_last else {}),
    },
    "LayerNorm": {"dimension": size},
    **{
      f"Dense {activation}": {
        "in_features": bert.hidden_size,
        "out_features": width,
        "bias": True,
        "activation_function": activation,
      }
      for width, activation in ((bert.hidden_size, _TANH), (size, _IDENTITY))
    },
  }
  around = _around(chain, folders, factor)
  ours = name_maps.CHOSEN_TOWERS[tower] if tower else name_maps.SHARED_TOWER
  encoder = modernbert.export_encoder(
    bert, model.vocabulary, path=f"{RETRIEVER}/{ours}", around=around
  )
  prompts = _prompts(model)
  has_types = not isinstance(bert, ModernBertConfig)
  # If types are among these names, the second text of a pair has type 1.
  types = ["token_type_ids"] if retriever.token_types and has_types else []
  names: JsonValue = ["input_ids", *types, "attention_mask"]
  files: dict[str, JsonValue] = {
    **encoder.files,
    TOKENIZER_CONFIG: {
      **encoder.files[TOKENIZER_CONFIG],
      "model_input_names": names,
    },
    _MODULES: [
      {"idx": i, "name": str(i), "path": folder, "type": _PACKAGE + kind}
      for i, (kind, folder) in enumerate(zip(kinds, folders, strict=True))
    ],
    _PROMPTS: {
      "prompts": {**prompts},
      "default_prompt_name": None,
      "similarity_fn_name": "dot",
    },
    _LENGTHS: {
      "max_seq_length": bert.max_positions,
      "do_lower_case": False,
      # BERT's own pooler is not in the weights; without this setting, the
      # library would warn about random values. ModernBERT has no pooler.
      "model_args": {"add_pooling_layer": False} if has_types else {},
    },
    _SETTINGS: {
      "title_separator": retriever.title_separator,
      "token_types": retriever.token_types,
      "score_scale": retriever.score_scale,
      "projection_norm_eps": eps,
      "projection_scale": factor,
    },
    _README: _readme(retriever, prompts, tower),
    **{
      f"{folder}/{CONFIG}": contents[said]
      for folder, (said, _) in zip(folders, chain, strict=True)
      if said in contents
    },
  }
  return encoder._replace(
    files=files,
    folders=folders[1:],
    notes=[
      f"how texts are given to the model: {_README}",
      f"score_scale={retriever.score_scale:g}, which sentence-transformers "
      f"does not read, is in {_SETTINGS}; the projection is written times "
      f"{factor:g}, as its LayerNorm has the epsilon {_NORM_EPS:g}",
    ],
  )


def _projection_factor(norm_eps: float) -> float:
  """Returns the factor for the weights of the projection before a LayerNorm.

  LayerNorm (v − mean) / √(var + ε) is the same for c · v with c² · ε. In
  sentence-transformers ε is 1e-5, so multiplying the weights by c makes the
  effective ε 1e-5 / c². c is the smallest power of two, so that no weight is
  rounded, for which this equals the retriever's ε to 2e-10. If the elements of
  a vector have a variance of 1e-4, the remaining error is a millionth.
  """
  for factor in (2.0**exponent for exponent in range(9)):
    if abs(_NORM_EPS / factor**2 - norm_eps) <= _MAX_EPS_DIFFERENCE:
      return factor
  raise WeightsError(
    f"the retriever has projection_norm_eps={norm_eps}; a LayerNorm of "
    f"sentence-transformers can only express {_NORM_EPS}, its own value, or "
    f"values below {_MAX_EPS_DIFFERENCE}"
  )


def _prompts(model: BoundModel) -> dict[str, str]:
  """Returns the prefixes as texts that have the same tokens."""
  texts = {}
  for field, (name, *_) in _PROMPT_NAMES.items():
    ids = tuple(getattr(model.retriever, field))
    # The space separates the prompt from the next word.
    text = f"{model.vocabulary.decode(ids)} " if ids else ""
    if (
      tuple(model.vocabulary.encode(text, follows=True) if text else ()) != ids
    ):
      raise WeightsError(
        f"no text has the tokens of the {name} prefix {ids} in this "
        "vocabulary; it cannot be a prompt of sentence-transformers"
      )
    texts[name] = text
  return texts


_README_TEXT = """---
library_name: sentence-transformers
pipeline_tag: sentence-similarity
---
# Retriever of a retrieval-augmented language model

Written by realm_jax{tower}. The relevance of document z to query x is \
{scale:g} · ⟨v(x), v(z)⟩, and `model.similarity` computes the inner product.

```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("DIRECTORY")
x = model.encode(["{query}who built the bridge?"])
z = model.encode([{document}])
print(model.similarity(x, z))
```

A query is read as `[CLS] {query}query [SEP]`, and a document as \
`[CLS] {block}title{separator} body [SEP]`, {types}. Give title and body as in \
the example, and `""` for no title. The words before them are the prompts \
`query` and `document`, which `encode_query` and `encode_document` of later \
versions add. A text is cut after {positions} tokens.
"""


def _readme(
  retriever: BertRetriever, prompts: Mapping[str, str], tower: str | None
) -> str:
  """Returns the text of README.md, with instructions for using the model."""
  block, body = prompts["document"], "The bridge was built by the railway."
  separator, types = "", "all of type 0"
  document = f'"{block}Bridge {body}"'
  if retriever.title_separator:
    separator, document = " [SEP]", f'("{block}Bridge", "{body}")'
  if retriever.token_types:
    types = "of type 0, and 1 after the first `[SEP]`"
  return _README_TEXT.format(
    tower=f", the {tower} tower of two" if tower else "",
    scale=retriever.score_scale,
    query=prompts["query"],
    block=block,
    document=document,
    separator=separator,
    types=types,
    positions=retriever.bert.max_positions,
  )
