// Numbers as people read them.

const modulo = (a, b) => ((a % b) + b) % b;

const BINARY = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
const UNITS = { b: 1 };
["k", "m", "g", "t"].forEach((letter, power) => {
  UNITS[`${letter}b`] = 1000 ** (power + 1);
  UNITS[`${letter}ib`] = 1024 ** (power + 1);
});

function bytes(value) {
  if (value === 0) return "0 B";
  const power = Math.min(BINARY.length - 1, Math.floor(Math.log2(value) / 10));
  if (power < 1) return `${Number(value.toPrecision(6)).toLocaleString("en")} B`;
  const scaled = value / 1024 ** power;
  const digits = scaled >= 100 ? 0 : scaled >= 10 ? 1 : 2;
  return `${scaled.toFixed(digits).replace(/\.0+$/, "")} ${BINARY[power]}`;
}

const exact = (value) => `${whole(Math.round(value))} B`;
const WHOLE = new Intl.NumberFormat("en");
const whole = (value) => WHOLE.format(value);
const percent = (share) => `${(100 * share).toFixed(share >= 0.1 ? 1 : 2)}%`;

function scaled(value) {
  const round = Number(value.toPrecision(3)); // first, so that 999.9M becomes 1B
  for (const [size, letter] of [[1e12, "T"], [1e9, "B"], [1e6, "M"], [1e3, "K"]]) {
    if (round >= size) return `${Number((round / size).toPrecision(3))}${letter}`;
  }
  return String(round);
}

const tokens = (value) =>
  value >= 1024 && value % 1024 === 0
    ? value % 1048576 === 0
      ? `${value / 1048576}M`
      : `${value / 1024}K`
    : whole(value);

// "8 GB" or "24GiB" as bytes; nothing = null.
function readBytes(words) {
  if (!words.trim()) return null;
  const found = /^\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*$/i.exec(words);
  const unit = found && UNITS[found[2].toLowerCase()];
  const size = unit ? Math.round(Number(found[1]) * unit) : 0;
  if (!(size > 0) || size > 2 ** 52) {
    throw new Error(`memory "${words}" is no size above 0 with its unit; give such as 8 GB or 24 GiB.`);
  }
  return size;
}
