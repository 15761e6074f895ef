"""Text for language models: tokenizers, corpora, token files and packed rows."""

from suffice.text.bpe import BPE, gpt2, llama
from suffice.text.characters import Characters
from suffice.text.corpus import CORPORA, corpus
from suffice.text.documents import Corpus, Documents
from suffice.text.load import choose_tokenizer, load_tokenizer, pack, text
from suffice.text.token_file import TokenFile
from suffice.text.tokenizer import Tokenizer
from suffice.text.words import Words

__all__ = [
    "BPE",
    "CORPORA",
    "Characters",
    "Corpus",
    "Documents",
    "TokenFile",
    "Tokenizer",
    "Words",
    "choose_tokenizer",
    "corpus",
    "gpt2",
    "llama",
    "load_tokenizer",
    "pack",
    "text",
]
