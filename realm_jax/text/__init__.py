"""Text: wordpieces, sentences, salient spans, masks and answers."""
