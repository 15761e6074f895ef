// The drawing on a canvas: zoomed by wheel and keys, moved by hand, read by pointing.

const EDGE = 40; // room for the numbers of an axis

class PatternCanvas {
  constructor(canvas, pointed) {
    this.canvas = canvas;
    this.pointed = pointed;
    this.drawn = null;
    this.cursor = null;
    this.size = 0; // pixels, of a side; reading it from the page in every frame would lay it out anew
    canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    canvas.addEventListener("pointermove", (event) => this.move(event));
    canvas.addEventListener("pointerdown", (event) => this.grab(event));
    canvas.addEventListener("pointerup", () => { this.grabbed = null; });
    canvas.addEventListener("pointerleave", () => this.point(null));
    canvas.addEventListener("keydown", (event) => this.key(event));
    canvas.addEventListener("dblclick", (event) => this.zoom(2, ...this.place(event)));
    new ResizeObserver(() => this.resize()).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.show(this.drawn, this.panel));
  }

  show(drawn, panel) {
    if (!drawn) return;
    this.cursor = null;
    const fresh = !this.drawn || this.drawn.queries !== drawn.queries || this.drawn.keys !== drawn.keys;
    this.drawn = drawn;
    this.panel = panel;
    this.cells = cellsOf(drawn, panel);
    this.image = this.render();
    if (fresh) this.home();
    else this.paint();
  }

  // One pixel for each pair.
  render() {
    const { queries, keys, parts } = this.drawn;
    const image = element("canvas", {});
    image.width = keys;
    image.height = queries;
    const context = image.getContext("2d");
    const data = context.createImageData(keys, queries);
    const bytes_ = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
    const inks = [colour("hidden"), ...parts.map((part) => part.colour)].flatMap((hex) => [...bytes_(hex), 255]);
    const pixels = new Uint32Array(Uint8Array.from(inks).buffer);
    const image_ = new Uint32Array(data.data.buffer);
    for (let n = 0; n < image_.length; n += 1) image_[n] = pixels[this.cells[n]];
    context.putImageData(data, 0, 0);
    return image;
  }

  get side() {
    return Math.max(1, this.size - EDGE);
  }

  home() {
    this.cell = this.side / Math.max(this.drawn.queries, this.drawn.keys);
    this.x = 0;
    this.y = 0;
    this.whole = true;
    this.paint();
  }

  // The pair under a point of the canvas, as numbers with fractions.
  place(event) {
    const box = this.canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  }

  pairAt(x, y) {
    const k = Math.floor(this.x + (x - EDGE) / this.cell);
    const i = Math.floor(this.y + (y - EDGE) / this.cell);
    const inside = x >= EDGE && y >= EDGE && k >= 0 && i >= 0 && k < this.drawn.keys && i < this.drawn.queries;
    return inside ? { i, k } : null;
  }

  zoom(factor, x = EDGE + this.side / 2, y = EDGE + this.side / 2) {
    if (!this.drawn) return;
    const least = this.side / Math.max(this.drawn.queries, this.drawn.keys);
    const cell = Math.min(64, Math.max(least, this.cell * factor));
    this.x += (x - EDGE) / this.cell - (x - EDGE) / cell;
    this.y += (y - EDGE) / this.cell - (y - EDGE) / cell;
    this.cell = cell;
    this.whole = cell === least;
    this.keepInside();
    this.paint();
  }

  keepInside() {
    const shown = this.side / this.cell;
    this.x = Math.max(0, Math.min(this.x, this.drawn.keys - shown));
    this.y = Math.max(0, Math.min(this.y, this.drawn.queries - shown));
  }

  wheel(event) {
    if (!this.drawn || !(event.ctrlKey || event.metaKey || document.activeElement === this.canvas)) return;
    event.preventDefault();
    this.zoom(event.deltaY < 0 ? 1.2 : 1 / 1.2, ...this.place(event));
  }

  grab(event) {
    this.canvas.focus({ preventScroll: true });
    this.canvas.setPointerCapture(event.pointerId);
    this.grabbed = [event.clientX, event.clientY, this.x, this.y];
    if (this.drawn) this.point(this.pairAt(...this.place(event)), true);
  }

  move(event) {
    if (!this.drawn) return;
    if (this.grabbed) {
      const [x, y, fromX, fromY] = this.grabbed;
      this.x = fromX - (event.clientX - x) / this.cell;
      this.y = fromY - (event.clientY - y) / this.cell;
      this.keepInside();
      this.paint();
    }
    this.point(this.pairAt(...this.place(event)));
  }

  key(event) {
    if (!this.drawn) return;
    const steps = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
    if (steps[event.key]) {
      const { i, k } = this.cursor || { i: this.drawn.queries - 1, k: this.drawn.keys - 1 };
      const [di, dk] = this.cursor ? steps[event.key] : [0, 0];
      const clamp = (n, most) => Math.max(0, Math.min(n, most - 1));
      this.point({ i: clamp(i + di, this.drawn.queries), k: clamp(k + dk, this.drawn.keys) }, true);
    } else if (event.key === "+" || event.key === "=") this.zoom(1.5);
    else if (event.key === "-") this.zoom(1 / 1.5);
    else if (event.key === "0") this.home();
    else return;
    event.preventDefault();
  }

  point(pair, chosen = false) {
    this.cursor = pair;
    this.paint();
    this.pointed(pair && { ...pair, number: this.cells[pair.i * this.drawn.keys + pair.k] }, chosen);
  }

  // Takes the room there is; what is shown whole stays whole.
  resize() {
    this.size = this.canvas.clientWidth;
    if (!this.drawn || !this.size) return;
    this.canvas.width = this.canvas.height = Math.round(this.size * (devicePixelRatio || 1));
    const least = this.side / Math.max(this.drawn.queries, this.drawn.keys);
    this.cell = this.whole ? least : Math.max(this.cell || 0, least);
    this.keepInside();
    this.paint();
  }

  paint() {
    if (!this.drawn || !this.size) return;
    const { size } = this;
    const ratio = this.canvas.width / size;
    const pen = this.canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, size, size);
    pen.save();
    pen.beginPath();
    pen.rect(EDGE, EDGE, this.side, this.side);
    pen.clip();
    pen.imageSmoothingEnabled = this.cell < 1;
    const { queries, keys } = this.drawn;
    pen.drawImage(this.image, EDGE - this.x * this.cell, EDGE - this.y * this.cell, keys * this.cell, queries * this.cell);
    if (this.cell >= 7) this.grid(pen, size);
    if (this.cursor) this.cross(pen);
    pen.restore();
    this.axes(pen, size);
  }

  grid(pen, size) {
    pen.strokeStyle = colour("paper");
    pen.lineWidth = 1;
    pen.beginPath();
    for (let k = Math.ceil(this.x); k <= this.x + this.side / this.cell; k += 1) {
      const at = Math.round(EDGE + (k - this.x) * this.cell) + 0.5;
      pen.moveTo(at, EDGE);
      pen.lineTo(at, size);
    }
    for (let i = Math.ceil(this.y); i <= this.y + this.side / this.cell; i += 1) {
      const at = Math.round(EDGE + (i - this.y) * this.cell) + 0.5;
      pen.moveTo(EDGE, at);
      pen.lineTo(size, at);
    }
    pen.stroke();
  }

  cross(pen) {
    const { i, k } = this.cursor;
    const x = EDGE + (k - this.x) * this.cell;
    const y = EDGE + (i - this.y) * this.cell;
    pen.strokeStyle = colour("ink");
    pen.lineWidth = 1.5;
    pen.globalAlpha = 0.35;
    pen.strokeRect(EDGE, y, this.drawn.keys * this.cell, Math.max(this.cell, 1));
    pen.globalAlpha = 1;
    pen.strokeRect(x, y, Math.max(this.cell, 3), Math.max(this.cell, 3));
  }

  axes(pen, size) {
    const { queries, keys } = this.drawn;
    const shown = this.side / this.cell;
    const step = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512].find((n) => shown / n <= 9) || 512;
    pen.fillStyle = colour("faint");
    pen.font = "11px system-ui, sans-serif";
    pen.textBaseline = "middle";
    pen.textAlign = "center";
    for (let k = Math.ceil(this.x / step) * step; k < Math.min(keys, this.x + shown); k += step) {
      pen.fillText(k, Math.max(EDGE + 6, EDGE + (k + 0.5 - this.x) * this.cell), EDGE - 9);
    }
    pen.textAlign = "right";
    for (let i = Math.ceil(this.y / step) * step; i < Math.min(queries, this.y + shown); i += step) {
      pen.fillText(keys - queries > 0 ? i + keys - queries : i, EDGE - 6, Math.max(EDGE + 6, EDGE + (i + 0.5 - this.y) * this.cell));
    }
    pen.textAlign = "center";
    pen.fillText("keys →", EDGE + this.side / 2, 10);
    pen.save();
    pen.translate(9, EDGE + this.side / 2);
    pen.rotate(-Math.PI / 2);
    pen.fillText("← queries", 0, 0);
    pen.restore();
  }
}
