// Lines over one axis, as SVG: labelled, scaled to its place, readable without colours.

const DASHES = ["", "7 3", "2 3", "9 3 2 3", "5 2", "1 3", "12 4", "4 2 1 2"];
const MOST_DOTS = 24;
const CHART = { width: 760, height: 340, left: 74, right: 16, top: 14, bottom: 42 };

// As wide as there is room for, so that its letters stay readable.
const chartWidth = () => Math.max(340, Math.min(CHART.width, innerWidth - 70));

// A scale from values to pixels; log = by powers.
function scale(low, high, from, to, log) {
  const [a, b] = log ? [Math.log2(low), Math.log2(high)] : [low, high];
  const span = b - a || 1;
  return (value) => from + (((log ? Math.log2(value) : value) - a) / span) * (to - from);
}

function powersBetween(low, high, most) {
  const first = Math.ceil(Math.log2(low) - 1e-9);
  const last = Math.floor(Math.log2(high) + 1e-9);
  const step = Math.max(1, Math.ceil((last - first) / most));
  const found = [];
  for (let power = first; power <= last; power += step) found.push(2 ** power);
  return found;
}

function roundTicks(low, high, most) {
  const rough = (high - low || Math.abs(high) || 1) / most;
  const ten = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((n) => n * ten).find((n) => n >= rough * 0.999);
  const found = [];
  for (let n = Math.ceil(low / step - 1e-9); n * step <= high + step * 1e-6; n += 1) {
    found.push(Number((n * step).toPrecision(12)));
  }
  return found;
}

function axis(c, x, y, { xTicks, yTicks, xName, yName, xFormat, yFormat }) {
  const bottom = c.height - c.bottom;
  const right = c.width - c.right;
  return [
    yTicks.map((value) => [
      drawing("line", { x1: c.left, x2: right, y1: y(value), y2: y(value), class: "grid" }),
      drawing("text", { x: c.left - 8, y: y(value) + 4, class: "tick end" }, yFormat(value)),
    ]),
    xTicks.map((value) => [
      drawing("line", { x1: x(value), x2: x(value), y1: bottom, y2: bottom + 4, class: "axis" }),
      drawing("text", { x: x(value), y: bottom + 17, class: "tick middle" }, xFormat(value)),
    ]),
    drawing("line", { x1: c.left, x2: right, y1: bottom, y2: bottom, class: "axis" }),
    drawing("text", { x: (c.left + right) / 2, y: c.height - 6, class: "name middle" }, xName),
    drawing("text", { x: 6, y: 14, class: "name" }, yName),
  ];
}

// Points [[x, y], ...]; a gap where y is null.
function path(points, x, y) {
  let pen = "M";
  let path = "";
  for (const [a, b] of points) {
    if (b === null) pen = "M";
    else {
      path += `${pen}${x(a).toFixed(1)} ${y(b).toFixed(1)}`;
      pen = "L";
    }
  }
  return path;
}

/* A chart of lines.
   lines: [{name, points, number, ends}], number = its place among the series; ends are ringed. */
function lineChart({ lines, marks = [], title, xName, yName, xFormat, yFormat, xLog, yLog, wholes = false, more = {} }) {
  const c = { ...CHART, width: chartWidth(), ...more, top: 30 };
  const all = lines.flatMap((line) => line.points).filter(([, b]) => b !== null && (b > 0 || !yLog));
  const svg = drawing("svg", {
    viewBox: `0 0 ${c.width} ${c.height}`,
    class: "chart",
    role: "img",
    "aria-label": title,
  });
  if (!all.length) return svg;
  const xs = all.map(([a]) => a);
  const ys = [...all.map(([, b]) => b), ...marks.filter((m) => m.y).map((m) => m.y)];
  const [xLow, xHigh] = [Math.min(...xs), Math.max(...xs)];
  let [yLow, yHigh] = [Math.min(...ys), Math.max(...ys)];
  if (yLog) {
    const [first, last] = [Math.floor(Math.log2(yLow)), Math.ceil(Math.log2(yHigh))];
    const step = Math.max(1, Math.ceil((last - first) / 6)); // the ticks reach both ends
    [yLow, yHigh] = [2 ** first, 2 ** (first + step * Math.ceil((last - first) / step))];
  }
  else if (yLow === yHigh) [yLow, yHigh] = [yLow - Math.abs(yLow) * 0.1 - 1e-9, yHigh * 1.1 + 1e-9];
  else [yLow, yHigh] = widened(yLow, yHigh, 6);
  if (yLog && yLow === yHigh) yHigh *= 2;
  const x = scale(xLow, xHigh, c.left, c.width - c.right, xLog);
  const y = scale(yLow, yHigh, c.height - c.bottom, c.top, yLog);
  const xTicks = xLog ? powersBetween(xLow, xHigh, c.width / 95) : roundTicks(xLow, xHigh, c.width / 95).filter((at) => !wholes || Number.isInteger(at));
  const yTicks = yLog ? powersBetween(yLow, yHigh, 6) : roundTicks(yLow, yHigh, 6);
  svg.append(...axis(c, x, y, { xTicks, yTicks, xName, yName, xFormat, yFormat }).flat(Infinity));
  for (const { x: at, y: level, label } of marks) svg.append(...mark(c, x, y, at, level, label));
  for (const { points, number, name, ends = [] } of lines) {
    for (const [a, b] of ends.filter(([at]) => at >= xLow && at <= xHigh)) {
      svg.append(drawing("circle", { cx: x(a).toFixed(1), cy: y(b).toFixed(1), r: 6, class: `line end-mark series-${(number % SERIES) + 1}` }, drawing("title", {}, `${name}: ${xFormat(a)}`)));
    }
    const clean = points.map(([a, b]) => [a, b !== null && (b > 0 || !yLog) ? b : null]);
    svg.append(
      drawing(
        "path",
        {
          d: path(clean, x, y),
          class: `line series-${(number % SERIES) + 1}`,
          "stroke-dasharray": DASHES[number % DASHES.length] || null,
        },
        drawing("title", {}, name),
      ),
    );
    if (clean.length > MOST_DOTS) continue;
    for (const [a, b] of clean) {
      if (b !== null) svg.append(drawing("circle", { cx: x(a).toFixed(1), cy: y(b).toFixed(1), r: 2.6, class: `dot series-${(number % SERIES) + 1}` }));
    }
  }
  return svg;
}

// The least and the most of an axis, moved out to its ticks.
function widened(low, high, most) {
  const ticks = roundTicks(low, high, most);
  const step = ticks.length > 1 ? ticks[1] - ticks[0] : Math.abs(high - low) || 1;
  return [Math.floor(low / step + 1e-9) * step, Math.ceil(high / step - 1e-9) * step];
}

// What learning nothing scores, [[name, value], ...], where it lies so near that it can be drawn
// without squeezing what is compared.
function nearFloors(floors, low, high) {
  const room = 0.4 * (high - low);
  return floors.filter(([, at]) => at >= low - room && at <= high + room);
}

// Dotted lines with their names; what is far away is told in a corner.
function floorLines(c, y, floors, near) {
  const right = c.width - c.right;
  const words = ([name, at]) => `${name} ${Number(at.toPrecision(3))}`;
  const far = floors.filter((one) => !near.includes(one));
  const down = [...near].sort(([, a], [, b]) => b - a);
  return [
    ...down.flatMap(([name, at], n) => [
      drawing("line", { y1: y(at), y2: y(at), x1: c.left, x2: right, class: "floor" }),
      // below its line where the name of the line above would be in the way
      drawing("text", { x: right - 4, y: y(at) + (n && y(at) - y(down[n - 1][1]) < 14 ? 12 : -4), class: "tick end" }, words([name, at])),
    ]),
    ...(far.length ? [drawing("text", { x: right - 4, y: c.height - c.bottom - 6, class: "tick end" }, `not drawn: ${far.map(words).join(", ")}`)] : []),
  ];
}

function mark(c, x, y, at, level, label) {
  if (at !== undefined) {
    const place = { x1: x(at), x2: x(at), y1: c.top, y2: c.height - c.bottom };
    return [drawing("line", { ...place, class: "mark" })];
  }
  const place = { y1: y(level), y2: y(level), x1: c.left, x2: c.width - c.right };
  return [
    drawing("line", { ...place, class: "limit" }),
    drawing("text", { x: c.left + 6, y: y(level) - 5, class: "tick limit-name" }, label),
  ];
}

// The names of lines with their colours and dashes.
function legend(names) {
  return element(
    "ul",
    { class: "legend" },
    names.map(({ name, number }) =>
      element(
        "li",
        {},
        drawing(
          "svg",
          { viewBox: "0 0 26 8", class: "key", "aria-hidden": "true" },
          drawing("line", {
            x1: 1,
            x2: 25,
            y1: 4,
            y2: 4,
            class: `line series-${(number % SERIES) + 1}`,
            "stroke-dasharray": DASHES[number % DASHES.length] || null,
          }),
        ),
        element("span", {}, name),
      ),
    ),
  );
}
