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

const MAP = { side: 520, left: 86, top: 70, right: 76, bottom: 14 };

// Room for the labels and for the map, as wide as the page lets it be.
function mapLayout(labels) {
  const short = labels.every((label) => label.length <= 2);
  const [left, top] = short ? [44, 38] : [MAP.left, MAP.top];
  return { ...MAP, left, top, side: Math.max(160, Math.min(MAP.side, innerWidth - 110 - left - MAP.right)) };
}

/* The map of one head with the labels of its axes and a scale: pointed(row, column, ...) is called
   where the pointer is. Returns the node, and the map as a file and as rows. */
function mapView(answer, pointed, labels) {
  const values = unpacked(answer.values, "float");
  const most = Math.max(Math.abs(answer.low), Math.abs(answer.high)) || 1;
  const image = mapImage(values, answer.rows, answer.columns, most);
  const layout = mapLayout(labels);
  const { left, top, right, bottom } = layout;
  const cell = Math.max(1, Math.min(28, (layout.side / Math.max(answer.rows, answer.columns))));
  const [wide, high] = [cell * answer.columns, cell * answer.rows];
  const size = [left + wide + right, top + Math.max(high, 120) + bottom];
  const svg = drawing("svg", { viewBox: `0 0 ${size[0]} ${size[1]}`, id: "map", tabindex: 0, role: "img", class: "chart map",
    "aria-label": `Map of ${answer.rows} queries and ${answer.columns} keys, from ${answer.low.toFixed(3)} to ${answer.high.toFixed(3)}` });
  svg.append(
    drawing("image", { href: image.toDataURL(), x: left, y: top, width: wide, height: high, preserveAspectRatio: "none", "image-rendering": "pixelated" }),
    drawing("text", { x: left + wide / 2, y: 13, class: "name middle" }, "keys"),
    drawing("text", { x: 12, y: top + high / 2, class: "name middle", transform: `rotate(-90 12 ${top + high / 2})` }, "queries"),
    ...axisLabels(answer.columns === labels.length ? labels : Array.from({ length: answer.columns }, (_, n) => `sum ${n}`), cell, true, layout),
    ...axisLabels(labels.slice(0, answer.rows), cell, false, layout),
    ...mapScale(left + wide + 18, top, answer, most),
  );
  const frame = drawing("rect", { x: left, y: top, width: cell, height: cell, class: "frame", fill: "none" });
  svg.append(frame);
  const at = { row: answer.rows - 1, column: 0 };
  const tellPair = () => {
    frame.setAttribute("x", left + cell * at.column);
    frame.setAttribute("y", top + cell * at.row);
    pointed(at.row, at.column, values[at.row * answer.columns + at.column], answer.sums[at.row], values);
  };
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const [x, y] = [((event.clientX - box.left) / box.width) * size[0], ((event.clientY - box.top) / box.height) * size[1]];
    if (x < left || y < top || x >= left + wide || y >= top + high) return;
    at.column = Math.floor((x - left) / cell);
    at.row = Math.floor((y - top) / cell);
    tellPair();
  });
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (!step) return;
    event.preventDefault();
    at.row = Math.max(0, Math.min(answer.rows - 1, at.row + step[0]));
    at.column = Math.max(0, Math.min(answer.columns - 1, at.column + step[1]));
    tellPair();
  });
  tellPair();
  const rows = () => [["", ...labels.slice(0, answer.columns)], ...labels.slice(0, answer.rows).map((label, row) => [label, ...values.subarray(row * answer.columns, (row + 1) * answer.columns)])];
  return { node: element("div", { class: "scroll map-box" }, svg), map: { file: (title) => svgFile(svg, title), rows } };
}

const LONGEST_AXIS_LABEL = 10; // characters

// As many labels as there is room for.
function axisLabels(labels, cell, across, layout) {
  const step = Math.ceil(12 / cell);
  const upright = labels.every((label) => label.length <= 2) && cell >= 10;
  return labels.flatMap((label, n) => {
    if (n % step) return [];
    const middle = (across ? layout.left : layout.top) + cell * (n + 0.5);
    const words = label.trim() ? (label.length > LONGEST_AXIS_LABEL ? `${label.slice(0, LONGEST_AXIS_LABEL - 1)}…` : label) : "·";
    const place = across && upright ? { x: middle, y: layout.top - 7, class: "tick middle" } : across
      ? { x: middle + 4, y: layout.top - 6, transform: `rotate(-60 ${middle + 4} ${layout.top - 6})`, class: "tick" }
      : { x: layout.left - 6, y: middle + 4, class: "tick end" };
    return [drawing("text", place, words)];
  });
}

// The colours and the weights they stand for.
function mapScale(x, y, answer, most) {
  const [steps, side] = [40, 3];
  const low = Math.min(0, answer.low);
  const found = [];
  for (let n = 0; n < steps; n += 1) {
    const value = low + ((answer.high - low) * (steps - 1 - n)) / (steps - 1);
    const share = Math.sign(value) * Math.sqrt(Math.abs(value) / most);
    found.push(drawing("rect", { x, y: y + side * n, width: 12, height: side + 0.5, fill: `rgb(${ink(share).map(Math.round).join(",")})` }));
  }
  const tick = (at, value) => drawing("text", { x: x + 17, y: y + 4 + at * side * steps, class: "tick" }, String(Number(value.toPrecision(2))));
  const middle = low + (answer.high - low) / 2;
  return [...found, tick(0.03, answer.high), tick(0.5, middle), tick(1, low)];
}
