"""Packaging: `make env` installs what the demo and the tests need.

constraints/ pins, for each Python, the set of versions that is tested together.
A requirement has a bound where a release has announced a break.
"""

from setuptools import find_packages, setup

setup(
  name="realm_jax",
  version="0.1.0",
  description=(
    "Retrieval-augmented language model pre-training (REALM) in JAX, with the"
    " search index rebuilt while the model trains."
  ),
  license="Apache-2.0",
  # Links lead from the package to `tasks` and `launch`, which are at the top of
  # a clone; a wheel has their files.
  packages=[
    *find_packages(include=["realm_jax", "realm_jax.*"]),
    "realm_jax.recipes",
  ],
  # `gin` at the top is gin-config's, once this is installed.
  package_dir={"realm_jax.recipes": "gin"},
  package_data={
    "realm_jax.recipes": ["**/*.gin"],
    "realm_jax.serving": ["page/*"],
  },
  python_requires=">=3.11,<3.14",
  install_requires=[
    "absl-py",
    "ahocorasick-rs",
    "bm25s",
    "etils[epath]",
    # jax's cache of compilations needs it where its size is limited.
    "filelock",
    "flax",
    "fsspec",
    "gin-config",
    "google-crc32c",
    "jax",
    "jaxtyping",
    "ml_dtypes",
    "numpy",
    "optax",
    # 1.0 moves the V1 interface to the top level; the project uses V0.
    "orbax-checkpoint<1",
    # Regular expressions whose steps are counted.
    "pcre2",
    "protobuf",
    # Parquet, and the shards of Hugging Face's datasets.
    "pyarrow",
    "regex",
    "safetensors",
    "scann",
    "scipy",
    "sentencex",
    "seqio",
    "tensorboard",
    "tensorflow",
    "tensorflow-datasets",
    "tensorflow-text",
    "zstandard",
  ],
  extras_require={
    "tpu": ["jax[tpu]"],
    "gpu": ["jax[cuda13]"],
    # gs:// goes through gcsfs alone, wherever TensorFlow is installed or not.
    "gcs": ["aiohttp", "gcsfs"],
    "beam": ["apache-beam"],
    "demo": ["matplotlib"],
    # Weights by their names on Hugging Face's hub.
    "hub": ["huggingface_hub"],
    # TFDS needs it to download and prepare a data set, and does not ask for it.
    "tfds": ["importlib-resources"],
    # A build for GPUs goes by another name, and serves as well.
    "faiss": ["faiss-cpu"],
    "launch": ["pyyaml", "xmanager"],
    # The page of realm_jax.serve.
    "serve": ["starlette", "uvicorn"],
    # Where Thai sentences end.
    "thai": ["pythainlp", "python-crfsuite"],
    # Where Chinese words end.
    "chinese": ["jieba"],
    # What t5x, airio and jestimator need beyond the core. The three
    # themselves are in no registry, and ask for the heads of flax, optax,
    # clu and seqio and for another TFDS, which nothing here could run with:
    # `make t5x` adds them from their repositories without those demands.
    "t5x": ["cached-property", "chex", "clu", "fiddle", "grain"],
    "dev": [
      "beartype",
      # The tests' object store, and what reads it: the extra `gcs`.
      "gcp-storage-emulator",
      "gcsfs",
      "hypothesis",
      # The schema of Kubernetes' JobSet, as models.
      "kubeflow-trainer-api",
      "pyrefly",
      "pytest",
      "pytest-xdist",
      "ruff",
    ],
  },
)
