"""A recipe of a model so small that libtpu compiles it in seconds."""

from realm_jax.inputs.config import DataConfig
from realm_jax.precompilation import run
from realm_jax.training.config import TrainConfig
from realm_jax.training.optimizer import OptimizerConfig
from tests.training import tiny


def recipe(batch_size: int, **settings) -> run.Recipe:
  """Pre-training, of 1,000 blocks, with other settings of the run."""
  retriever, reader = tiny.models()
  return run.Recipe(
    TrainConfig(
      model_dir="(not given)",
      data=DataConfig(
        corpus_dir="(not given)",
        task="inverse_cloze",
        batch_size=batch_size,
        query_length=tiny.QUERY,
        block_length=tiny.BLOCK,
      ),
      stage=tiny.OF_STAGE["pretraining"],
      retriever=retriever,
      reader=reader,
      optimizer=OptimizerConfig(learning_rate=1e-4),
      num_steps=10,
      **settings,
    ),
    num_blocks=1000,
  )
