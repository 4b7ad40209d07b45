"""Packaging: `make env` installs what the demo and the tests need.

constraints/ pins, for each Python, the set of versions that is tested together.
A requirement has a bound where a release has announced a break.
"""

from pathlib import Path

from setuptools import find_packages, setup

# What is asked for by `realm_jax[NAME]`, and by `realm_jax[all]`.
EXTRAS = {
  # Tasks, with which `train`, `evaluate` and `show_task` read their examples;
  # the index of runs that do not retrieve on their devices; vocabularies that
  # are trained, and Google's checkpoints.
  "train": [
    *("scann", "seqio", "tensorboard", "tensorflow", "tensorflow-datasets"),
    "tensorflow-text",
  ],
  # gs:// goes through gcsfs alone, wherever TensorFlow is installed or not.
  "gcs": ["aiohttp", "gcsfs"],
  "beam": ["apache-beam"],
  "demo": ["matplotlib"],
  # ModernBERT's vocabularies of byte-level pairs.
  "tokenizers": ["tokenizers"],
  # Weights by their names on Hugging Face's hub.
  "hub": ["huggingface_hub"],
  # TFDS needs both to download and prepare a data set, and asks for neither.
  "tfds": ["importlib-resources", "tensorflow", "tensorflow-datasets"],
  # A build for GPUs goes by another name, and serves as well.
  "faiss": ["faiss-cpu"],
  # The score of long answers.
  "rouge": ["rouge-score"],
  # Its wheels are for Linux.
  "symphonyqg": ["rabitqlib"],
  "launch": ["pyyaml", "xmanager"],
  # A served language model as the reader.
  "served": ["httpx", "tenacity"],
  # The page of realm_jax.serve.
  "serve": ["starlette", "uvicorn"],
  # Where Thai sentences end.
  "thai": ["pythainlp", "python-crfsuite"],
  # Where Chinese words end.
  "chinese": ["jieba"],
}

setup(
  name="realm_jax",
  version="0.1.0",
  description=(
    "Retrieval-augmented language model pre-training (REALM) in JAX, with the"
    " search index rebuilt while the model trains."
  ),
  long_description=Path(__file__).with_name("README.md").read_text("utf-8"),
  long_description_content_type="text/markdown",
  license="Apache-2.0",
  keywords="REALM retrieval-augmented language-model question-answering JAX",
  classifiers=[
    "Development Status :: 4 - Beta",
    "Environment :: Console",
    "Intended Audience :: Science/Research",
    "Operating System :: POSIX :: Linux",
    "Programming Language :: Python :: 3.11",
    "Programming Language :: Python :: 3.12",
    "Programming Language :: Python :: 3.13",
    "Topic :: Scientific/Engineering :: Artificial Intelligence",
  ],
  entry_points={"console_scripts": ["realm = realm_jax.__main__:main"]},
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
    "scipy",
    "sentencepiece",
    "sentencex",
    "zstandard",
  ],
  extras_require={
    **EXTRAS,
    "all": sorted({name for names in EXTRAS.values() for name in names}),
    "tpu": ["jax[tpu]"],
    "gpu": ["jax[cuda13]"],
    # What t5x, airio and jestimator need beyond the core. The three
    # themselves are in no registry, and ask for the heads of flax, optax,
    # clu and seqio and for another TFDS, which nothing here could run with:
    # `make t5x` adds them from their repositories without those demands.
    "t5x": ["cached-property", "chex", "clu", "fiddle", "grain"],
    # The site, which `make docs` builds.
    "docs": ["furo", "myst-parser", "sphinx"],
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
