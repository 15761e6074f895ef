// Maps as pictures: a colour for each weight, read by pointing.

function unpacked(words, kind) {
  const bytes_ = Uint8Array.from(atob(words), (letter) => letter.charCodeAt(0));
  return kind === "byte" ? bytes_ : new Float32Array(bytes_.buffer);
}

const STOPS = {
  light: [[246, 247, 249], [167, 201, 232], [46, 120, 186], [15, 47, 92]],
  dark: [[24, 28, 35], [30, 74, 120], [86, 158, 224], [222, 240, 255]],
};
const NEGATIVE = { light: [178, 58, 18], dark: [255, 138, 102] };

const isDark = () => matchMedia("(prefers-color-scheme: dark)").matches;

// The colour of a share from 0 to 1; what is negative turns red.
function ink(share) {
  const theme = isDark() ? "dark" : "light";
  const stops = STOPS[theme];
  if (share < 0) {
    const part = Math.min(1, -share);
    return stops[0].map((from, n) => from + (NEGATIVE[theme][n] - from) * part);
  }
  const at = Math.min(1, share) * (stops.length - 1);
  const low = Math.min(stops.length - 2, Math.floor(at));
  return stops[low].map((from, n) => from + (stops[low + 1][n] - from) * (at - low));
}

function mapImage(values, rows, columns, most) {
  const canvas = element("canvas", {});
  canvas.width = columns;
  canvas.height = rows;
  const pen = canvas.getContext("2d");
  const data = pen.createImageData(columns, rows);
  values.forEach((value, n) => data.data.set([...ink(Math.sign(value) * Math.sqrt(Math.abs(value) / most)), 255], 4 * n));
  pen.putImageData(data, 0, 0);
  return canvas;
}

function thumbnail(thumb, label, chosen, choose) {
  const canvas = mapImage(unpacked(thumb.values, "byte"), thumb.rows, thumb.columns, 255);
  return element("button", { type: "button", class: "thumb", "aria-pressed": String(chosen), "aria-label": label, title: label, on: { click: choose } }, canvas);
}

const MAP = { side: 520, left: 86, top: 70, right: 76, bottom: 26 };
const COMPARED = { side: 300, least: 120, left: 66, right: 70 }; // of one of several maps

/* Room for the labels and for each of `count` maps, as wide as the page lets it be: next to each
   other where they fit, else below each other. */
function mapLayout(labels, count) {
  const several = count > 1;
  const short = labels.every((label) => label.length <= 2);
  const top = short ? 38 : MAP.top;
  const left = short ? 44 : (several ? COMPARED : MAP).left;
  const { right } = several ? COMPARED : MAP;
  const [alone, shared] = [innerWidth - 110, (innerWidth - 460) / count].map((room) => room - left - right);
  const across = several && shared >= COMPARED.least ? count : 1;
  const side = Math.min(several ? COMPARED.side : MAP.side, across > 1 ? shared : alone);
  return { ...MAP, left, top, right, side: Math.max(COMPARED.least, side), across };
}

/* Maps of one head, each with its title, the labels of its axes and its scale. pointed(row, column)
   is called where the pointer is. Returns the node, a function that chooses a row, and the maps as a
   file and as rows. */
function mapView(maps, labels, { generated, start, pointed }) {
  const layout = mapLayout(labels, maps.length);
  const { left, top, right, bottom } = layout;
  const { rows, columns } = maps[0];
  const cell = Math.max(1, Math.min(28, (layout.side / Math.max(rows, columns))));
  const [wide, high] = [cell * columns, cell * rows];
  const [boxWide, boxHigh] = [left + wide + right, top + Math.max(high, 120) + bottom];
  const size = [boxWide * layout.across, boxHigh * Math.ceil(maps.length / layout.across)];
  const corner = (n) => [boxWide * (n % layout.across), boxHigh * Math.floor(n / layout.across)];
  const svg = drawing("svg", { viewBox: `0 0 ${size[0]} ${size[1]}`, id: "map", tabindex: 0, role: "img", class: "chart map",
    "aria-label": `${maps.length > 1 ? "Maps" : "Map"} of ${rows} queries and ${columns} keys, from ${maps[0].low.toFixed(3)} to ${maps[0].high.toFixed(3)}` });
  svg.style.maxWidth = `min(100%, ${size[0]}px)`;
  const frames = maps.map((map, n) => {
    const frame = drawing("rect", { x: left, y: top, width: cell, height: cell, class: "frame", fill: "none" });
    svg.append(drawing("g", { transform: `translate(${corner(n)})` }, mapParts(map, labels, { ...layout, cell, wide, high, generated }), frame));
    return frame;
  });
  const at = { row: start, column: 0 };
  const move = (row, column = at.column) => {
    [at.row, at.column] = [row, column];
    for (const frame of frames) {
      frame.setAttribute("x", left + cell * column);
      frame.setAttribute("y", top + cell * row);
    }
    pointed(row, column);
  };
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const x = (((event.clientX - box.left) / box.width) * size[0]) % boxWide - left;
    const y = (((event.clientY - box.top) / box.height) * size[1]) % boxHigh - top;
    if (x >= 0 && y >= 0 && x < wide && y < high) move(Math.floor(y / cell), Math.floor(x / cell));
  });
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (!step) return;
    event.preventDefault();
    move(Math.max(0, Math.min(rows - 1, at.row + step[0])), Math.max(0, Math.min(columns - 1, at.column + step[1])));
  });
  const table = ({ title, values }) => [[title, ...keyLabels(labels, columns)], ...labels.slice(0, rows).map((label, row) => [label, ...values.subarray(row * columns, (row + 1) * columns)])];
  return { node: element("div", { class: "scroll map-box" }, svg), move, map: { file: (title) => svgFile(svg, title), rows: () => maps.flatMap(table) } };
}

const keyLabels = (labels, columns) => (columns === labels.length ? labels : Array.from({ length: columns }, (_, n) => `sum ${n}`));

// One map: its picture, axes, scale, and a line before the tokens that were generated.
function mapParts(map, labels, layout) {
  const { left, top, cell, wide, high, generated } = layout;
  const image = mapImage(map.values, map.rows, map.columns, map.most);
  const first = cell * (map.rows - generated);
  return [
    drawing("image", { href: image.toDataURL(), x: left, y: top, width: wide, height: high, preserveAspectRatio: "none", "image-rendering": "pixelated" }),
    map.title && drawing("text", { x: left, y: top + high + 18, class: "row-name" }, map.title.length > 40 ? `…${map.title.slice(-39)}` : map.title),
    drawing("text", { x: left + wide / 2, y: 13, class: "name middle" }, "keys"),
    drawing("text", { x: 12, y: top + high / 2, class: "name middle", transform: `rotate(-90 12 ${top + high / 2})` }, "queries"),
    ...axisLabels(keyLabels(labels, map.columns), true, layout),
    ...axisLabels(labels.slice(0, map.rows), false, layout),
    generated > 0 && drawing("path", { d: `M${left},${top + first}h${wide}M${left + first},${top}v${high}`, class: "generated", fill: "none" }),
    ...mapScale(left + wide + 18, top, map),
  ];
}

const axisName = (label, left) => {
  const patch = /^row (\d+), column (\d+)$/.exec(label);
  const longest = left < MAP.left ? 8 : 10; // characters
  const words = patch ? `${patch[1]}, ${patch[2]}` : label;
  return words.length > longest ? `${words.slice(0, longest - 1)}…` : words;
};

// As many labels as there is room for.
function axisLabels(labels, across, layout) {
  const { cell, generated } = layout;
  const step = Math.ceil(12 / cell);
  const upright = labels.every((label) => label.length <= 2) && cell >= 10;
  return labels.flatMap((label, n) => {
    if (n % step) return [];
    const middle = (across ? layout.left : layout.top) + cell * (n + 0.5);
    const words = label.trim() ? axisName(label, layout.left) : "·";
    const place = across && upright ? { x: middle, y: layout.top - 7, class: "tick middle" } : across
      ? { x: middle + 4, y: layout.top - 6, transform: `rotate(-60 ${middle + 4} ${layout.top - 6})`, class: "tick" }
      : { x: layout.left - 6, y: middle + 4, class: "tick end" };
    if (n >= labels.length - generated) place.class += " of-model";
    return [drawing("text", place, words)];
  });
}

// The colours and the weights they stand for.
function mapScale(x, y, { low: least, high, most }) {
  const [steps, side] = [40, 3];
  const low = Math.min(0, least);
  const found = [];
  for (let n = 0; n < steps; n += 1) {
    const value = low + ((high - low) * (steps - 1 - n)) / (steps - 1);
    const share = Math.sign(value) * Math.sqrt(Math.abs(value) / most);
    found.push(drawing("rect", { x, y: y + side * n, width: 12, height: side + 0.5, fill: `rgb(${ink(share).map(Math.round).join(",")})` }));
  }
  const tick = (at, value) => drawing("text", { x: x + 17, y: y + 4 + at * side * steps, class: "tick" }, String(Number(value.toPrecision(2))));
  const middle = low + (high - low) / 2;
  return [...found, tick(0.03, high), tick(0.5, middle), tick(1, low)];
}
