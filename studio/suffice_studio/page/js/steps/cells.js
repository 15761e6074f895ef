// Numbers as coloured cells: vectors, matrices and bars of weights in one SVG.

const CELL = { high: 24, least: 21, most: 44, numbered: 25 };

// A number in at most five characters.
function short(value) {
  const size = Math.abs(value);
  const words = size === 0 ? "0" : size >= 99.5 ? size.toFixed(0) : size >= 9.95 ? size.toFixed(1) : size >= 0.1 ? size.toFixed(2) : size >= 0.0005 ? size.toFixed(3).replace("0.", ".") : "≈0";
  return value < 0 && words !== "≈0" ? `−${words}` : words;
}

const largest = (numbers) => Math.max(1e-9, ...numbers.flat(Infinity).map(Math.abs));

const writing = (x, y, words, kind) => drawing("text", { x, y, class: kind }, words);

/* One number at a place: blue above 0 and red below, the stronger the larger beside `most`. What
   counts less, from 1 to 0, is fainter. */
function cellOf(x, y, width, value, most, counts = 1) {
  const share = Math.sqrt(Math.min(1, Math.abs(value) / most));
  const group = drawing("g", { opacity: (0.25 + 0.75 * counts).toFixed(3) },
    drawing("title", {}, String(value)),
    drawing("rect", { x: x + 0.5, y: y + 1, width: width - 1, height: CELL.high - 2, rx: 2, class: value < 0 ? "below" : "above", "fill-opacity": (0.06 + 0.44 * share).toFixed(3) }));
  if (width >= CELL.numbered) group.append(writing(x + width / 2, y + 16, short(value), "number middle"));
  return group;
}

const rowOf = (x, y, width, values, most, counts) => values.map((value, n) => cellOf(x + n * width, y, width, value, most, counts));

const columnOf = (x, y, width, values, most) => values.map((value, n) => cellOf(x, y + n * CELL.high, width, value, most));

const matrixOf = (x, y, width, rows, most) => rows.flatMap((row, n) => rowOf(x, y + n * CELL.high, width, row, most));

// A weight as a bar from 0 with its number; below 0 it is red.
function barOf(x, y, width, value, most) {
  const long = (Math.min(1, Math.abs(value) / most) * (width - 40)).toFixed(1);
  return [
    drawing("rect", { x: x + 38, y: y + 6, width: Math.max(value ? 1 : 0, long), height: CELL.high - 12, rx: 2, class: value < 0 ? "bar-below" : "bar-above" }),
    writing(x + 33, y + 16, short(value), "number end"),
  ];
}
