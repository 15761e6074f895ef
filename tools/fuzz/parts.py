"""What is fuzzed: each part draws one case from a random state and judges what became of it.

A reader may refuse a case with one of the library's own errors, or read it; whatever else it raises
is a failure. A case is its part and its seed, so a seed repeats it. Parts with a reference compare
numbers.
"""

# ruff: noqa: E501 - tables of small configs

from __future__ import annotations

import bz2
import gzip
import http.client
import io
import json
import lzma
import random
import shutil
import struct
import sys
from abc import ABC, abstractmethod
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import torch

from suffice import AttentionSpec, preset
from suffice.data import table
from suffice.data.rows import read_rows
from suffice.errors import SufficeError
from suffice.export.gguf import write_model
from suffice.models import LMConfig, checkpoint, folder
from suffice.models.architectures import hugging_face
from suffice.models.gguf import read_gguf
from suffice.models.gguf_format import KINDS, Stored, open_gguf, write_gguf
from suffice.patterns import Causal
from suffice.positions import Rope
from suffice.quantise import quantise
from suffice.text import Characters
from suffice.text.corpus import load_tokenizer
from suffice.text.token_file import TokenFile
from suffice_studio import Folders, served
from tools.fuzz.damage import ODD, WORDS, bytes_of, data_of, json_of

LETTERS = "abcdefgh"
LARGEST = 1 << 16  # tokens of a vocabulary that a case computes with


class Part(ABC):
    """One reader under damaged input.

    Args:
        place: an empty folder of its own.
    """

    name: str

    def __init__(self, place: Path) -> None:
        self.place = place
        self.notes: set[str] = set()  # what is to be told besides failures

    @abstractmethod
    def case(self, pick: random.Random) -> None:
        """Draw a case and try it; raise what is no refusal."""

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Release what is held."""


def refused(error: BaseException) -> bool:
    """Return whether an error is a sentence of the library's."""
    return isinstance(error, SufficeError) and " " in str(error)


class Safetensors(Part):
    """A file of tensors and metadata with damaged bytes or a damaged header."""

    name = "safetensors"

    def __init__(self, place: Path) -> None:
        super().__init__(place)
        self.path = place / "a.safetensors"
        tensors = {"w": torch.randn(3, 4), "b": torch.arange(5), "h": torch.ones(2).half()}
        checkpoint.save(self.path, {**tensors, "tied": tensors["w"]}, {"config": {"a": [1, "x"]}})
        self.content = self.path.read_bytes()
        (size,) = struct.unpack("<Q", self.content[:8])
        self.header = json.loads(self.content[8 : 8 + size])
        self.numbers = self.content[8 + size :]
        self.expected = tensors

    def case(self, pick: random.Random) -> None:
        if pick.random() < 0.3:  # noqa: PLR2004
            made = bytes_of(pick, self.content)
        else:
            header = json_of(pick, self.header)
            made = struct.pack("<Q", len(header)) + header + self.numbers
        self.path.write_bytes(made)
        expected = {**self.expected, "tied": self.expected["w"]} if pick.random() < 0.5 else None  # noqa: PLR2004
        tensors, facts = checkpoint.load(self.path, expected)
        assert isinstance(facts, dict)
        for tensor in tensors.values():  # reads every byte
            tensor.double().sum()
        if expected is not None:
            assert {n: (t.shape, t.dtype) for n, t in tensors.items()} == {
                n: (t.shape, t.dtype) for n, t in expected.items()
            }


class Gguf(Part):
    """A .gguf of a model: damaged bytes, most in its head, or odd metadata or tensors."""

    name = "gguf"

    def __init__(self, place: Path) -> None:
        super().__init__(place)
        self.path = place / "m.gguf"
        sizes = {"vocabulary_size": 8, "length": 16, "d_model": 32, "depth": 1, "mlp_width": 32}
        swiglu = {"activation": "swiglu", "norm": "rms", "positions": "none", "bias": False}
        spec = AttentionSpec(d_model=32, num_heads=2, pattern=Causal(), position=Rope(), bias=False)
        lm = LMConfig(**sizes, **swiglu).build(spec)
        self.sound = []
        for kind in ("f32", "q8_0", "q4_0"):
            write_model(self.path, lm, Characters(LETTERS), kind=kind)
            content, file = self.path.read_bytes(), open_gguf(self.path)
            tensors = {
                name: Stored(shape=one.shape, kind=one.kind, blocks=file.blocks(name).copy())
                for name, one in file.tensors.items()
            }
            first = min(one.start for one in file.tensors.values())
            self.sound.append((content, first, file.metadata, tensors))

    def case(self, pick: random.Random) -> None:
        content, first, metadata, tensors = pick.choice(self.sound)
        how = pick.random()
        if how < 0.5:  # noqa: PLR2004
            self.path.write_bytes(bytes_of(pick, content[:first]) + content[first:])
        elif how < 0.6:  # noqa: PLR2004
            self.path.write_bytes(bytes_of(pick, content))
        else:
            self._write_odd(pick, dict(metadata), dict(tensors))
        lm, tokenizer, _ = read_gguf(self.path)
        tokens = torch.tensor([tokenizer.encode(LETTERS[:4])])
        if tokens.numel() and lm.config.vocabulary_size < LARGEST:
            lm(tokens[:, : lm.config.length])

    def _write_odd(self, pick: random.Random, metadata: dict, tensors: dict) -> None:
        if pick.random() < 0.7:  # noqa: PLR2004
            metadata = data_of(pick, metadata)
        else:
            name = pick.choice(list(tensors))
            one = tensors.pop(name)
            shape = list(one.shape)
            shape[pick.randrange(len(shape))] = pick.choice((0, 1, 31, 64, 1 << 40, (1 << 64) - 1))
            kind = pick.choice([*KINDS.values()])
            name = pick.choice((name, name + "x", "", "output.weight", "rope_freqs.weight"))
            tensors[name] = Stored(shape=tuple(shape), kind=kind, blocks=one.blocks)
        try:
            write_gguf(self.path, metadata, tensors.items())
        except (AttributeError, TypeError, ValueError, KeyError, struct.error, OverflowError):
            self.path.write_bytes(b"")  # no file can hold such metadata


class Models(Part):
    """The folder of a trained model: config.json, tokenizer and weights."""

    name = "models"

    def __init__(self, place: Path) -> None:
        super().__init__(place)
        sizes = {"vocabulary_size": 8, "length": 16, "d_model": 16, "depth": 2, "mlp_width": 24}
        self.sound = []
        for number, (mechanism, bits) in enumerate(
            (("gqa", None), ("standard", 8), ("performer", 4))
        ):
            lm = LMConfig(**sizes).build(preset(mechanism, 16, 2, causal=True)).eval()
            if bits is not None:
                quantise(lm, bits=bits)
            one = place / f"sound{number}"
            folder.save(one, lm, Characters(LETTERS))
            self.sound.append(one)

    def case(self, pick: random.Random) -> None:
        broken = self.place / "broken"
        shutil.rmtree(broken, ignore_errors=True)
        shutil.copytree(pick.choice(self.sound), broken)
        path = pick.choice([p for p in broken.iterdir() if p.suffix == ".json"])
        path.write_bytes(json_of(pick, json.loads(path.read_bytes())))
        read = folder.load(broken)
        ids = torch.tensor([[1, 2, 3]])
        with torch.no_grad():
            assert read[0](ids).shape[:2] == (1, 3)


class Transformers(Part):
    """The config.json of a model of transformers, of every architecture that is read."""

    name = "transformers"
    configs = (
        {"model_type": "gpt2", "n_embd": 8, "n_head": 2, "n_layer": 1, "n_positions": 16, "vocab_size": 11},
        {"model_type": "llama", "hidden_size": 8, "num_attention_heads": 2, "num_key_value_heads": 1,
         "num_hidden_layers": 1, "intermediate_size": 12, "vocab_size": 11, "rms_norm_eps": 1e-5,
         "max_position_embeddings": 16, "rope_theta": 10000.0, "hidden_act": "silu",
         "rope_scaling": {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 8}},
        {"model_type": "qwen2", "hidden_size": 8, "num_attention_heads": 2, "num_key_value_heads": 2,
         "num_hidden_layers": 1, "intermediate_size": 12, "vocab_size": 11, "rms_norm_eps": 1e-5,
         "max_position_embeddings": 16, "sliding_window": 4, "use_sliding_window": False},
        {"model_type": "bert", "hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1,
         "intermediate_size": 12, "vocab_size": 11, "max_position_embeddings": 16},
        {"model_type": "vit", "hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1,
         "intermediate_size": 12, "image_size": 8, "patch_size": 4, "num_channels": 1},
    )  # fmt: skip

    def case(self, pick: random.Random) -> None:
        (self.place / "config.json").write_bytes(json_of(pick, pick.choice(self.configs)))
        hugging_face.read(self.place, hugging_face.read_config(self.place))


class Specs(Part):
    """Random specs over all axes beside the papers' formulas in float64, in loops of their own."""

    name = "specs"

    def __init__(self, place: Path) -> None:
        super().__init__(place)
        from tools.fuzz.specs import check

        self.check, self.threads = check, torch.get_num_threads()
        torch.set_num_threads(1)  # what is small is slower with more

    def case(self, pick: random.Random) -> None:
        from tools.fuzz.formula import NoFormula

        try:
            self.check(pick)
        except NoFormula as value:
            self.notes.add(f"not covered: {value!s:.200}")

    def close(self) -> None:
        torch.set_num_threads(self.threads)


PACK = {"": lambda c: c, ".gz": gzip.compress, ".xz": lzma.compress, ".bz2": bz2.compress}


class Tables(Part):
    """A table of one's own: CSV, TSV and lines of JSON, plain and compressed."""

    name = "tables"

    def case(self, pick: random.Random) -> None:
        labels = [pick.choice(WORDS) for _ in range(pick.randint(1, 3))]
        rows = [(pick.choice(WORDS) + pick.choice(LETTERS), pick.choice(labels)) for _ in range(30)]
        kind, pack = pick.choice((".csv", ".tsv", ".jsonl")), pick.choice(("", "", ".gz", ".xz"))
        if kind == ".jsonl":
            lines = [json.dumps({"text": text, "label": label}) for text, label in rows]
        else:
            mark = "," if kind == ".csv" else "\t"
            lines = [f"text{mark}label", *(f"{text}{mark}{label}" for text, label in rows)]
        content = "\n".join(lines).encode(errors="surrogatepass")
        if pick.random() < 0.7:  # noqa: PLR2004
            content = bytes_of(pick, content)
        packed = PACK[pack](content)
        if pick.random() < 0.2:  # noqa: PLR2004
            packed = bytes_of(pick, packed)
        path = self.place / f"t{kind}{pack}"
        path.write_bytes(packed)
        if pick.random() < 0.5:  # noqa: PLR2004
            names, all_rows = read_rows(str(path))
            assert all(set(row) <= {*names, *row} for _, row in all_rows)
        else:
            table.read_files(str(path), "text,label", test=pick.choice((0.1, "0.2", str(path))))


class Tokens(Part):
    """A file of tokens, its documents and its facts."""

    name = "tokens"

    def __init__(self, place: Path) -> None:
        super().__init__(place)
        TokenFile.write(place / "t.bin", ["abcab", "cd", "efgh" * 5], Characters(LETTERS))
        self.files = {path: path.read_bytes() for path in place.iterdir()}

    def case(self, pick: random.Random) -> None:
        broken = pick.choice(list(self.files))
        for path, content in self.files.items():
            path.write_bytes(content)
        if broken.suffix == ".json" and pick.random() < 0.8:  # noqa: PLR2004
            broken.write_bytes(json_of(pick, json.loads(self.files[broken])))
        else:
            broken.write_bytes(bytes_of(pick, self.files[broken]))
        file = TokenFile(self.place / "t.bin")
        length = pick.randint(1, 6)
        for rows in file.windows(length, 2):
            assert 2 <= rows.shape[1] <= length + 1  # noqa: PLR2004
        if len(file) > length:
            file.take(file.places(3, length, seed=0, step=1), length)


class Tokenizers(Part):
    """The tokenizer of a model's folder."""

    name = "tokenizers"

    def __init__(self, place: Path) -> None:
        super().__init__(place)
        Characters(LETTERS).save(place)
        self.files = {path: path.read_bytes() for path in place.iterdir()}

    def case(self, pick: random.Random) -> None:
        for path, content in self.files.items():
            path.write_bytes(content)
        broken = pick.choice(list(self.files))
        broken.write_bytes(json_of(pick, json.loads(self.files[broken])))
        read = load_tokenizer(self.place)
        assert read.decode(read.encode("ab")) is not None


class Requests(Part):
    """The studio's server: requests of all kinds over one socket after the other."""

    name = "requests"
    bodies: tuple[tuple[str, Any], ...] = (
        ("comparisons", {}),
        ("comparison", {"root": "package", "name": "digits", "cost": "flops", "margin": 0.01}),
        ("checkpoints", {}),
        ("calculator", {"architecture": {"d_model": 64, "layers": 2, "num_heads": 4}}),
        ("pattern", {"expression": "Window(4) & Causal()", "queries": 8, "keys": 8}),
        ("steps", {"mechanism": "gla", "causal": True, "text": "a b c d"}),
    )

    def __init__(self, place: Path) -> None:
        super().__init__(place)
        self.unexpected: list[BaseException] = []
        self.serving = served(Folders(), log=self.unexpected.append)
        self.studio = self.serving.__enter__()
        from suffice_studio.server import answers

        self.names = sorted(answers(Folders()))

    def case(self, pick: random.Random) -> None:
        name, body = pick.choice(self.bodies)
        if name not in self.names or pick.random() < 0.3:  # noqa: PLR2004
            name = pick.choice(self.names)
        path = (
            f"/api/{name}" if pick.random() < 0.9 else pick.choice(("/", "/api/", "/x", "//", "*"))
        )  # noqa: PLR2004
        content = json_of(pick, body)
        headers = {"Content-Type": "application/json", "Content-Length": str(len(content))}
        if pick.random() < 0.2:  # noqa: PLR2004
            names = ("Content-Length", "Content-Type", "Origin", "Host", "Transfer-Encoding")
            latin = [word for word in WORDS if word.isprintable() and word.isascii()]
            headers[pick.choice(names)] = pick.choice((*latin, "-1", "1", "0", "\u00b2", "chunked"))
        line = http.client.HTTPConnection("127.0.0.1", self.studio.port, timeout=20)
        try:
            line.putrequest(pick.choice(("POST", "POST", "POST", "GET", "PUT")), path,
                            skip_host="Host" in headers)  # fmt: skip
            for header, value in headers.items():
                line.putheader(header, value)
            line.endheaders(content)
            if line.sock is not None:
                line.sock.shutdown(1)  # nothing follows: a server that waits for more may stop
            got = line.getresponse()
            assert got.status < 500 or got.status == 501, (got.status, got.read()[:200])  # noqa: PLR2004
            got.read()
        except (http.client.RemoteDisconnected, OSError):
            pass  # closed without an answer, as for a length that is longer than the body
        finally:
            line.close()
        if self.unexpected:
            raise self.unexpected.pop()

    def close(self) -> None:
        self.serving.__exit__(None, None, None)


class Commands(Part):
    """Command lines of every verb with options and values that do not fit, in this process."""

    name = "commands"
    quick = ("list", "show", "advise", "predict", "convert", "quantise", "evaluate",
             "generate", "export", "run", "bench", "heal", "search")  # fmt: skip
    values = (*(str(value) for value in ODD if isinstance(value, (int, float, str))),
              "standard", "efficient", "window:4", "gqa:2", "80GB", "1%", "missing.csv")  # fmt: skip

    def __init__(self, place: Path) -> None:
        super().__init__(place)
        import typer

        from suffice.cli import _load

        self.options = {}
        for verb in self.quick:
            command = _load(verb)
            assert isinstance(command, typer.core.TyperCommand)
            self.options[verb] = [
                option for one in command.params for option in getattr(one, "opts", ())
                if option.startswith("--") and option != "--help"
            ]  # fmt: skip

    def case(self, pick: random.Random) -> None:
        from suffice.cli import main

        verb = pick.choice(self.quick)
        words = [pick.choice(self.values) for _ in range(pick.choice((0, 1, 1, 2)))]
        for _ in range(pick.choice((1, 2, 3))):
            words += [pick.choice(self.options[verb]), pick.choice(self.values)]
        out, error = io.StringIO(), io.StringIO()
        before, sys.argv = sys.argv, ["suffice", verb, *words]
        try:
            with redirect_stdout(out), redirect_stderr(error):
                main()
            code: object = 0
        except SystemExit as end:
            code = end.code
        finally:
            sys.argv = before
        assert code in (None, 0, 2), (sys.argv, code, error.getvalue()[-300:])
        assert "Traceback" not in error.getvalue(), error.getvalue()[-2000:]


PARTS: dict[str, type[Part]] = {
    part.name: part
    for part in (
        Safetensors, Gguf, Models, Transformers, Specs, Tables, Tokens, Tokenizers, Requests,
        Commands,
    )
}  # fmt: skip
