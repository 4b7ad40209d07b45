"""BERT (Devlin et al. 2019): the encoder under every tower and the reader.

`config` has its sizes, `layers` what a layer is made of, `encoder` the layers
over their embeddings, and `masked_lm_head` the head that predicts words. Gin
files import this package and bind `bert.BertConfig`.
"""

from realm_jax.models.bert.config import BertConfig

__all__ = ["BertConfig"]
