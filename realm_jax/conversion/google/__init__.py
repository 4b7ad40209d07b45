"""Google's BERT, and the released REALM and ORQA."""
