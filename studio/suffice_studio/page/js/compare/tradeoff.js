// Cost against quality: each mechanism with its interval, and the front that nothing beats.

const COST_LABELS = {
  flops: "attention FLOPs of one sample",
  latency: "seconds of one batch",
  parameters: "parameters of the model",
};

const MARKS = [
  "M-5 0a5 5 0 1 0 10 0a5 5 0 1 0-10 0", "M-4.5-4.5h9v9h-9z", "M0-6L6 0L0 6L-6 0z",
  "M0-5.5L5.5 5h-11z", "M0 5.5L5.5-5h-11z", "M-2-6h4v4h4v4h-4v4h-4v-4h-4v-4h4z",
  "M-5.5-3L-3-5.5L0-2.5L3-5.5L5.5-3L2.5 0L5.5 3L3 5.5L0 2.5L-3 5.5L-5.5 3L-2.5 0z", "M0-6L5.7-1.9L3.5 4.9H-3.5L-5.7-1.9z",
];

function tradeoffChart(results) {
  const c = { ...CHART, width: chartWidth(), top: 30, height: 400 };
  const points = apart(results.points);
  const { name: quality, percent } = results.quality;
  const svg = drawing("svg", {
    viewBox: `0 0 ${c.width} ${c.height}`,
    class: "chart",
    role: "img",
    "aria-label": `${quality} over ${COST_LABELS[results.cost]}; the table next to it has the numbers`,
  });
  const costs = points.map((one) => one.cost);
  const [least_, most] = [Math.min(...costs), Math.max(...costs)];
  const log = most > 4 * least_;
  const room = 0.08 * (most - least_ || most);
  const [xLow, xHigh] = log ? [least_ / 1.2, most * 1.2] : [Math.max(0, least_ - room), most + room];
  const [yLow, yHigh] = [Math.min(...points.map((p) => p.low)), Math.max(...points.map((p) => p.high))];
  const yRoom = 0.04 * (yHigh - yLow || 1);
  const near = nearFloors(results.floors, yLow, yHigh);
  const [bottom, top] = [Math.min(yLow, ...near.map(([, at]) => at)), Math.max(yHigh, ...near.map(([, at]) => at))];
  const within = (at) => (percent ? Math.min(100, Math.max(0, at)) : at);
  const [yFirst, yLast] = widened(bottom - yRoom, top + yRoom, 6).map(within);
  const x = scale(xLow, xHigh, c.left, c.width - c.right, log);
  const y = scale(yFirst, yLast, c.height - c.bottom, c.top, false);
  const names = {
    xName: COST_LABELS[results.cost],
    yName: quality,
    xFormat: scaled,
    yFormat: (value) => String(Number(percent ? value.toFixed(2) : value.toPrecision(4))),
    xTicks: log ? stepsBetween(xLow, xHigh) : roundTicks(xLow, xHigh, c.width / 110),
    yTicks: roundTicks(yFirst, yLast, 6),
  };
  svg.append(...axis(c, x, y, names).flat(Infinity));
  svg.append(...floorLines(c, y, results.floors, near));
  const front = points.filter((one) => one.front).sort((a, b) => a.cost - b.cost || a.mean - b.mean);
  svg.append(drawing("path", { d: path(front.map((p) => [p.cost, p.mean]), x, y), class: "front" }));
  const shifted = (p) => x(p.cost) + p.shift;
  const placed = points.map((p) => [shifted(p) - 6, y(p.mean) - 6, shifted(p) + 6, y(p.mean) + 6]);
  for (const one of points) svg.append(...tradeoffPoint(one, results.looks[one.mechanism], x, y, percent));
  for (const one of [...points].sort((a, b) => b.front - a.front)) {
    svg.append(...tradeoffName(one, results, x, y, c, placed));
  }
  return svg;
}

// Points of equal cost stand beside each other, so that their bars can be told apart.
function apart(points) {
  return points.map((one, at) => {
    const same = points.map((other, n) => (Math.abs(other.cost / one.cost - 1) < 0.01 ? n : -1)).filter((n) => n >= 0);
    return { ...one, shift: 13 * (same.indexOf(at) - (same.length - 1) / 2) };
  });
}

// 1, 2 and 5 of every power of ten.
function stepsBetween(low, high) {
  const found = [];
  for (let ten = 10 ** Math.floor(Math.log10(low)); ten <= high; ten *= 10) {
    found.push(...[1, 2, 5].map((n) => n * ten).filter((n) => n >= low && n <= high));
  }
  return found;
}

function tradeoffPoint(one, number, x, y, percent) {
  const figure = (value) => (percent ? `${value.toFixed(2)}%` : String(Number(value.toPrecision(4))));
  const place = number % SERIES;
  const [px, py] = [x(one.cost) + one.shift, y(one.mean)];
  return [
    drawing("line", { x1: px, x2: px, y1: y(one.low), y2: y(one.high), class: `bar series-${place + 1}` }),
    drawing(
      "path",
      {
        d: MARKS[number % MARKS.length],
        transform: `translate(${px} ${py})`,
        class: `point series-${place + 1}${one.front ? " on-front" : ""}`,
      },
      drawing("title", {}, `${one.mechanism}, ${one.heads} heads: ${figure(one.mean)} (${figure(one.low)} to ${figure(one.high)})`),
    ),
  ];
}

// A name beside its point, where no other name stands; none where there is no room.
function tradeoffName(one, results, x, y, c, placed) {
  const many = new Set(results.points.map((p) => p.heads)).size > 1;
  const words = many ? `${one.mechanism} (${one.heads})` : one.mechanism;
  const width = 6.3 * words.length;
  const [px, py] = [x(one.cost) + one.shift, y(one.mean)];
  const near = [[10, 4], [-10 - width, 4], [10, -9], [10, 17], [-10 - width, -9], [-10 - width, 17]];
  const far = [-24, 30, -38, 44, -52, 58].flatMap((dy) => [[10, dy], [-10 - width, dy]]);
  for (const [dx, dy] of [...near, ...far]) {
    const box = [px + dx, py + dy - 11, px + dx + width, py + dy + 2];
    const inside = box[0] >= c.left && box[2] <= c.width - 2 && box[1] >= c.top - 12 && box[3] <= c.height - c.bottom;
    const free = placed.every((o) => box[2] < o[0] || box[0] > o[2] || box[3] < o[1] || box[1] > o[3]);
    if (inside && free) {
      placed.push(box);
      const away = Math.abs(dy) > 20 && drawing("line", { x1: px, y1: py, x2: dx > 0 ? px + dx - 2 : px - 8, y2: py + dy - 4, class: "lead" });
      return [away, drawing("text", { x: px + dx, y: py + dy, class: "point-name" }, words)].filter(Boolean);
    }
  }
  return [];
}
