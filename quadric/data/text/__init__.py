"""Text for translation: pairs of files, pieces of words, batches by length, BLEU."""

from quadric.data.text.corpus import TextData as TextData
from quadric.data.text.tokenizer import Tokenizer as Tokenizer
