"""Wordpieces with byte offsets, sentences, salient spans, masks, answers."""
