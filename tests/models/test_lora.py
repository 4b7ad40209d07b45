"""Adapters of linear layers (Hu et al. 2021)."""

import numpy as np

from realm_jax.models.lora import LoraConfig, LoraDense

LORA = LoraConfig(2, 3.0, ("query", "up"), ("projection",))


def test_a_layer_computes_what_pefts_does():
  rng = np.random.default_rng(0)
  x, kernel, bias, a, b = (
    rng.normal(size=size).astype(np.float32)
    for size in ((5, 4), (4, 6), (6,), (4, 2), (2, 6))
  )
  params = {"kernel": kernel, "bias": bias, "lora_a": a, "lora_b": b}
  result = LoraDense(6, name="up", lora=LORA).apply({"params": params}, x)
  expected = x @ kernel + bias + (x @ a) @ b * 3.0 / 2
  np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)
