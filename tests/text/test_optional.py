"""The tokenizers library is optional: characters, corpora and token files work without it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SESSION = """
import sys
sys.modules["tokenizers"] = None
from suffice.text import Characters, TokenFile, corpus, load_tokenizer
text = corpus(sys.argv[1])
Characters.of([*text.train, *text.validation]).save(sys.argv[2])
file = TokenFile.write(sys.argv[2] + "/t.bin", text.train, load_tokenizer(sys.argv[2]))
print(len(file), "rich" in sys.modules)
"""


def test_all_but_byte_pairs_works_without_the_library(tmp_path: Path):
    (tmp_path / "a.txt").write_text("some letters")
    words = ["-W", "error", "-c", SESSION, str(tmp_path / "a.txt"), str(tmp_path)]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["10", "False"], done.stderr
