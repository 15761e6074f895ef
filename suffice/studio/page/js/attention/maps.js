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

/* The map of one head: pointed(row, column) is called where the pointer is. */
function mapView(answer, pointed) {
  const values = unpacked(answer.values, "float");
  const most = Math.max(Math.abs(answer.low), Math.abs(answer.high)) || 1;
  const image = mapImage(values, answer.rows, answer.columns, most);
  image.id = "map";
  image.tabIndex = 0;
  image.setAttribute("role", "img");
  image.setAttribute("aria-label", `Map of ${answer.rows} queries and ${answer.columns} keys, from ${answer.low.toFixed(3)} to ${answer.high.toFixed(3)}`);
  const at = { row: answer.rows - 1, column: 0 };
  const tellPair = () => pointed(at.row, at.column, values[at.row * answer.columns + at.column], answer.sums[at.row], values);
  image.addEventListener("pointermove", (event) => {
    const box = image.getBoundingClientRect();
    at.column = Math.max(0, Math.min(answer.columns - 1, Math.floor(((event.clientX - box.left) / box.width) * answer.columns)));
    at.row = Math.max(0, Math.min(answer.rows - 1, Math.floor(((event.clientY - box.top) / box.height) * answer.rows)));
    tellPair();
  });
  image.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (!step) return;
    event.preventDefault();
    at.row = Math.max(0, Math.min(answer.rows - 1, at.row + step[0]));
    at.column = Math.max(0, Math.min(answer.columns - 1, at.column + step[1]));
    tellPair();
  });
  tellPair();
  return image;
}
