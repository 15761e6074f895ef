// Cost against quality: each mechanism with its interval, and the front that nothing beats.

const COST_LABELS = {
  flops: "attention FLOPs of one sample",
  latency: "seconds of one batch",
  parameters: "parameters of the model",
};

const MARKS = [
  "M-5 0a5 5 0 1 0 10 0a5 5 0 1 0-10 0", "M-4.5-4.5h9v9h-9z", "M0-6L6 0L0 6L-6 0z",
  "M0-5.5L5.5 5h-11z", "M0 5.5L5.5-5h-11z", "M-2-6h4v4h4v4h-4v4h-4v-4h-4v-4h4z",
];

function tradeoffChart(results) {
  const c = { ...CHART, width: chartWidth(), top: 30, height: 400 };
  const points = results.points.map((one) => ({
    ...one,
    low: 100 * (one.low === null ? one.mean : one.low),
    high: 100 * (one.high === null ? one.mean : one.high),
    mean: 100 * one.mean,
  }));
  const svg = drawing("svg", {
    viewBox: `0 0 ${c.width} ${c.height}`,
    class: "chart",
    role: "img",
    "aria-label": `Test accuracy over ${COST_LABELS[results.cost]}; the table beside it has the numbers`,
  });
  const costs = points.map((one) => one.cost);
  const [least_, most] = [Math.min(...costs), Math.max(...costs)];
  const log = most > 4 * least_;
  const room = 0.08 * (most - least_ || most);
  const [xLow, xHigh] = log ? [least_ / 1.2, most * 1.2] : [Math.max(0, least_ - room), most + room];
  const [yLow, yHigh] = [Math.min(...points.map((p) => p.low)), Math.max(...points.map((p) => p.high))];
  const yRoom = 0.08 * (yHigh - yLow || 1);
  const x = scale(xLow, xHigh, c.left, c.width - c.right, log);
  const y = scale(yLow - yRoom, yHigh + yRoom, c.height - c.bottom, c.top, false);
  const names = {
    xName: COST_LABELS[results.cost],
    yName: "test accuracy, %",
    xFormat: scaled,
    yFormat: (value) => String(Number(value.toFixed(2))),
    xTicks: log ? stepsBetween(xLow, xHigh) : roundTicks(xLow, xHigh, c.width / 110),
    yTicks: roundTicks(yLow - yRoom, yHigh + yRoom, 6),
  };
  svg.append(...axis(c, x, y, names).flat(Infinity));
  const front = points.filter((one) => one.front).sort((a, b) => a.cost - b.cost || a.mean - b.mean);
  svg.append(drawing("path", { d: path(front.map((p) => [p.cost, p.mean]), x, y), class: "front" }));
  const placed = points.map((p) => [x(p.cost) - 6, y(p.mean) - 6, x(p.cost) + 6, y(p.mean) + 6]);
  for (const one of points) svg.append(...tradeoffPoint(one, results.looks[one.mechanism], x, y));
  for (const one of [...points].sort((a, b) => b.front - a.front)) {
    svg.append(...tradeoffName(one, results, x, y, c, placed));
  }
  return svg;
}

// 1, 2 and 5 of every power of ten.
function stepsBetween(low, high) {
  const found = [];
  for (let ten = 10 ** Math.floor(Math.log10(low)); ten <= high; ten *= 10) {
    found.push(...[1, 2, 5].map((n) => n * ten).filter((n) => n >= low && n <= high));
  }
  return found;
}

function tradeoffPoint(one, number, x, y) {
  const place = number % SERIES;
  const [px, py] = [x(one.cost), y(one.mean)];
  return [
    drawing("line", { x1: px, x2: px, y1: y(one.low), y2: y(one.high), class: `bar series-${place + 1}` }),
    drawing(
      "path",
      {
        d: MARKS[number % MARKS.length],
        transform: `translate(${px} ${py})`,
        class: `point series-${place + 1}${one.front ? " on-front" : ""}`,
      },
      drawing("title", {}, `${one.mechanism}, ${one.heads} heads: ${one.mean.toFixed(2)}% (${one.low.toFixed(2)} to ${one.high.toFixed(2)})`),
    ),
  ];
}

// A name beside its point, where no other name stands; none where there is no room.
function tradeoffName(one, results, x, y, c, placed) {
  const many = new Set(results.points.map((p) => p.heads)).size > 1;
  const words = many ? `${one.mechanism} (${one.heads})` : one.mechanism;
  const width = 6.3 * words.length;
  const [px, py] = [x(one.cost), y(one.mean)];
  for (const [dx, dy] of [[10, 4], [-10 - width, 4], [10, -9], [10, 17], [-10 - width, -9], [-10 - width, 17]]) {
    const box = [px + dx, py + dy - 11, px + dx + width, py + dy + 2];
    const inside = box[0] >= c.left && box[2] <= c.width - 2;
    const free = placed.every((o) => box[2] < o[0] || box[0] > o[2] || box[3] < o[1] || box[1] > o[3]);
    if (inside && free) {
      placed.push(box);
      return [drawing("text", { x: px + dx, y: py + dy, class: "point-name" }, words)];
    }
  }
  return [];
}
