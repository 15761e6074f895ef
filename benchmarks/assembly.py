"""The hot loops of the native kernels as compiled, and whether any keeps sums in memory.

A loop that cannot hold its sums in registers stores and reloads them at every turn, which halves
its speed and is seen in no source. For each instruction set in the library this finds the innermost
loops of a kernel that do little but multiply and counts what they do to the stack: the densest is
shown, and the one that uses the stack most. Where Zig and an
llvm-objdump are installed, the kernels of ARM are compiled and read, too.

Run: python -m benchmarks.assembly [--library FILE] [--objdump PROGRAM] [--listing]
"""

from __future__ import annotations

import argparse
import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks import instructions
from benchmarks.report import CONSOLE
from suffice.ops.native.library import library

# the kernels whose loops take the time of a token and of a prompt, as their mangled names begin
KERNELS = {
    "float32 weights": r"rows_of_numbers\w*4FullELi4E",
    "float16 weights": r"rows_of_numbers\w*4HalfELi4E",
    "8-bit weights, 1 row": r"tile_of_codes\w*Codes8ELi1ELi[24]E",
    "4-bit weights, 1 row": r"tile_of_codes\w*Codes4ELi1ELi[24]E",
    "8-bit weights, 4 rows": r"tile_of_codes\w*Codes8ELi4ELi1E",
    "4-bit weights, 4 rows": r"tile_of_codes\w*Codes4ELi4ELi1E",
    "decode scores, float32": r"score_rows\w*4FullELi1E",
    "decode values, float32": r"value_tile\w*4FullELi1ELi[48]E",
    "decode scores, 8-bit codes": r"(?:score_few\w*ILi4E|score_four)",
    "decode values, 8-bit codes": r"sum_fours\w*ILi[24]E",
    "scores of whole sequences": r"product_tile",
}
LEAST = 4  # multiplications of a loop over vectors
DENSE = 0.15  # their least share in a loop that takes time
ARM_OBJDUMP = ("llvm-objdump", "--mattr=+v8.6a,+fullfp16")
MULTIPLIES = re.compile(
    r"\b(vfn?madd\w*|vpdpbusd\w*|vpmadd\w*|mulps|pmull\w*|pmuludq|fml[as]\w*|[us]*dot|[us]*mmla|smull\w*|smlal\w*)\b"
)
FUNCTION = re.compile(r"^[0-9a-f]+ <(.+)>:$")
LINE = re.compile(r"^\s*([0-9a-f]+):\s+(.*)$")
JUMP = re.compile(r"^(?:j\w+|b\.\w+|cbn?z\s+\w+,|tbn?z\s+\w+, #\w+,|b)\s+(?:0x)?([0-9a-f]+)\b")
CALL = re.compile(r"^(?:callq?|blr?)\s")
STACK = re.compile(r"\((?:%rsp|%rbp)|\[(?:sp|x29)")


@dataclass(frozen=True, kw_only=True)
class Loop:
    """An innermost loop.

    Args:
        lines: its instructions.
    """

    lines: tuple[str, ...]

    @property
    def multiplications(self) -> int:
        """Instructions that multiply vectors."""
        return sum(bool(MULTIPLIES.search(line)) for line in self.lines)

    @property
    def density(self) -> float:
        """Share of its instructions that multiply; 0 for what is no loop over vectors alone."""
        vectors = self.multiplications >= LEAST and not any(map(CALL.match, self.lines))
        return self.multiplications / len(self.lines) if vectors else 0.0

    @property
    def stack(self) -> int:
        """Instructions that read or write the stack with a vector."""
        return sum(
            bool(STACK.search(line) and re.search(r"%[xyz]mm|\bq\d+|\bv\d+", line))
            for line in self.lines
        )


def functions(file: str, *objdump: str) -> Iterator[tuple[str, list[tuple[int, str]]]]:
    """Give each function's name and its instructions with their addresses."""
    text = subprocess.run(
        [*objdump, "-d", "--no-show-raw-insn", file], check=True, capture_output=True, text=True
    ).stdout
    name, lines = "", []
    for row in text.splitlines():
        if match := FUNCTION.match(row):
            if lines:
                yield name, lines
            name, lines = match[1], []
        elif match := LINE.match(row):
            lines.append((int(match[1], 16), match[2].strip()))
    if lines:
        yield name, lines


def innermost(lines: list[tuple[int, str]]) -> Iterator[Loop]:
    """Give the loops of a function that contain no other."""
    places = {address: i for i, (address, _) in enumerate(lines)}
    spans = []
    for i, (address, text) in enumerate(lines):
        match = JUMP.match(text)
        if match and int(match[1], 16) <= address and int(match[1], 16) in places:
            spans.append((places[int(match[1], 16)], i))
    for begin, end in spans:
        if not any((b, e) != (begin, end) and begin <= b and e <= end for b, e in spans):
            yield Loop(lines=tuple(text for _, text in lines[begin : end + 1]))


def worst(loops: Sequence[Loop]) -> list[Loop]:
    """Return the loop that uses the stack most, if one does."""
    most = max(loops, key=lambda loop: loop.stack)
    return [most] if most.stack else []


def main(words: Sequence[str] | None = None) -> int:
    """Print the table; return 1 if a hot loop uses the stack."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--library", help="a library of kernels; the installed one by default")
    parser.add_argument("--objdump", default="objdump", help="one that knows the architecture")
    parser.add_argument("--listing", action="store_true", help="print the loops, too")
    options = parser.parse_args(words)
    files = [(options.library or library()._name, options.objdump)]
    if not options.library:
        if missing := instructions.absent(ARM_OBJDUMP[0]):
            CONSOLE.print(f"ARM is left out: there is no {', no '.join(missing)}.")
        else:
            files += [(str(file), *ARM_OBJDUMP) for file in instructions.objects()]
    hot: dict[tuple[str, str], list[Loop]] = {}
    for name, lines in (function for file in files for function in functions(*file)):
        for kernel, pattern in KERNELS.items():
            match = re.match(rf"_ZN?L?(\d+)(\w+?)(?:L?\d+)?{pattern}", name)
            if not match:
                continue
            isa = match[2][: int(match[1])]
            loops = (loop for loop in innermost(lines) if loop.density >= DENSE)
            hot.setdefault((isa, kernel), []).extend(loops)
    shown = [
        (isa, kernel, [max(loops, key=lambda loop: loop.density)] + worst(loops))
        for (isa, kernel), loops in sorted(hot.items())
        if loops
    ]
    for isa, kernel, loops in shown:
        for loop in dict.fromkeys(loops):
            CONSOLE.print(
                f"{isa:9} {kernel:26} {len(loop.lines):4} instructions, "
                f"{loop.multiplications:3} multiply, {loop.stack} touch the stack"
            )
            if options.listing:
                CONSOLE.print("\n".join(f"    {line}" for line in loop.lines), highlight=False)
    return int(any(loop.stack for _, _, loops in shown for loop in loops))


if __name__ == "__main__":
    raise SystemExit(main())
