"""Text for language models: tokenizers, corpora, tokens on disk, and rows packed of documents."""

from suffice.text.bpe import BPE
from suffice.text.characters import Characters
from suffice.text.chosen import choose_tokenizer
from suffice.text.corpus import CORPORA, corpus
from suffice.text.documents import Corpus, Documents
from suffice.text.gpt2 import gpt2
from suffice.text.llama import llama
from suffice.text.load import load_tokenizer
from suffice.text.packing import pack
from suffice.text.task import text
from suffice.text.token_file import TokenFile
from suffice.text.tokenizer import Tokenizer

__all__ = [
    "BPE",
    "CORPORA",
    "Characters",
    "Corpus",
    "Documents",
    "TokenFile",
    "Tokenizer",
    "choose_tokenizer",
    "corpus",
    "gpt2",
    "llama",
    "load_tokenizer",
    "pack",
    "text",
]
