"""Text for language models: tokenizers, corpora, token files and packed rows."""

from suffice.text.bpe import BPE, gpt2, llama
from suffice.text.corpus import CORPORA, choose_tokenizer, corpus, load_tokenizer, text
from suffice.text.documents import Corpus, Documents
from suffice.text.token_file import TokenFile
from suffice.text.tokenizer import Tokenizer
from suffice.text.words import Characters, Words

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
    "text",
]
