"""The wordpieces of a demo world."""

from etils import epath

from realm_jax.demo_world.world import World
from realm_jax.text.wordpieces import train_vocabulary, write_pieces

_SIZE = 8000


def write_vocabulary(path: epath.PathLike, world: World) -> None:
  """Writes a vocabulary for the articles and the training questions."""
  texts = [question.text for question in world.questions["train"]]
  for document in world.documents:
    texts += [document.title, document.text(world.facts)]
  write_pieces(path, train_vocabulary(texts, _SIZE))
