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
