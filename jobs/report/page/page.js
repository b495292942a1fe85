"use strict";
// The page of `report`: curves as SVG, made from the JSON in #data. No library, no network. All text from files is set
// through textContent or setAttribute.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const SVG = "http://www.w3.org/2000/svg";
  const runs = data.runs.map((run, i) => ({ ...run, colour: `var(--run${i % 8})`, shown: true }));
  const many = runs.length > 1;

  // ---- small helpers

  const el = (name, properties = {}, children = []) => {
    const node = document.createElement(name);
    for (const [key, value] of Object.entries(properties)) {
      if (key === "style") node.style.cssText = value;
      else if (key in node) node[key] = value;
      else node.setAttribute(key, value);
    }
    node.append(...[children].flat());
    return node;
  };
  const shape = (name, attributes = {}) => {
    const node = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    return node;
  };
  const chip = (colour) => el("span", { className: "chip", style: `background:${colour}` });

  const plain = (value) => {
    if (value === null || value === undefined) return "not finite";
    if (value === 0) return "0";
    const size = Math.abs(value);
    if (Number.isInteger(value) && size < 1e15) return value.toLocaleString("en");
    if (size >= 1e5 || size < 1e-3) return value.toExponential(4);
    return String(Number(value.toPrecision(6)));
  };
  const scaled = (value, units, base, digits) => {
    let unit = 0;
    let v = value;
    while (Math.abs(v) >= base && unit < units.length - 1) {
      v /= base;
      ++unit;
    }
    return `${unit === 0 && Number.isInteger(v) ? v : Number(v.toPrecision(digits))}${units[unit]}`;
  };
  const count = (value) => scaled(value, ["", "k", "M", "G", "T", "P"], 1000, 4);
  const bytes = (value) => scaled(value, [" B", " kB", " MB", " GB", " TB", " PB"], 1000, 4);
  const percent = (value) => (value === null ? "not finite" : `${Number((100 * value).toPrecision(3))}%`);
  const duration = (seconds) => {
    if (seconds < 60) return `${Number(seconds.toPrecision(3))} s`;
    const s = Math.round(seconds);
    const h = Math.floor(s / 3600);
    const m = Math.floor((s % 3600) / 60);
    return h > 0 ? `${h} h ${String(m).padStart(2, "0")} min` : `${m} min ${String(s % 60).padStart(2, "0")} s`;
  };
  const tickText = (value) => {
    if (value === 0) return "0";
    const size = Math.abs(value);
    if (size >= 1e4) return count(value);
    if (size < 1e-3) return value.toExponential().replace(/(\.\d\d)\d*/, "$1");
    return String(Number(value.toPrecision(4)));
  };
  const median = (values) => {
    const sorted = values.filter((v) => v !== null).sort((a, b) => a - b);
    return sorted.length === 0 ? null : sorted[Math.floor(sorted.length / 2)];
  };

  // ---- what is drawn against: step, tokens, hours

  for (const run of runs) {
    const c = run.columns;
    let tokens = 0;
    let seconds = 0;
    run.axes = { step: c.step, tokens: [], hours: [] };
    for (let i = 0; i < c.step.length; ++i) {
      run.axes.tokens.push((tokens += (c.tokens[i] ?? 0) - (c.padding[i] ?? 0)));
      run.axes.hours.push((seconds += c.seconds[i] ?? 0) / 3600);
    }
    run.tokens = tokens;
    run.seconds = seconds;
    run.setup = run.configurations.length > 0 ? run.configurations[run.configurations.length - 1] : {};
  }
  // First index with values[index] >= value, in ascending values.
  const lowerBound = (values, value) => {
    let low = 0;
    let high = values.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (values[middle] < value) low = middle + 1;
      else high = middle;
    }
    return low;
  };
  // Where a step is on the chosen axis.
  const placeOf = (run, step) => {
    const steps = run.columns.step;
    if (view.axis === "step") return step;
    const i = Math.min(lowerBound(steps, step), steps.length - 1);
    return i < 0 || step < (steps[0] ?? 0) ? 0 : run.axes[view.axis][i];
  };

  const view = { axis: "step", smoothing: 0.9, from: null, to: null };
  const charts = [];
  const full = () => {
    let from = Infinity;
    let to = -Infinity;
    for (const run of runs) {
      const axis = run.axes[view.axis];
      if (!run.shown || axis.length === 0) continue;
      from = Math.min(from, axis[0]);
      to = Math.max(to, axis[axis.length - 1]);
    }
    // a run that was killed has no line of the step it was killed in
    if (view.axis === "step") for (const run of runs) for (const mark of run.shown ? run.marks : []) {
      from = Math.min(from, Math.max(mark.step, 1));
      to = Math.max(to, mark.step);
    }
    if (!(from < to)) return Number.isFinite(from) ? [from - 0.5, from + 0.5] : [0, 1];
    return [from, to];
  };
  const range = () => (view.from === null ? full() : [view.from, view.to]);
  const zoomTo = (from, to) => {
    const [least, most] = full();
    const a = Math.max(Math.min(from, to), least);
    const b = Math.min(Math.max(from, to), most);
    const smallest = view.axis === "step" ? 1 : (most - least) * 1e-5;
    if (b - a < smallest) return;
    [view.from, view.to] = a <= least && b >= most ? [null, null] : [a, b];
    drawAll();
  };
  const resetZoom = () => {
    view.from = view.to = null;
    drawAll();
  };

  // Average with weights that fall exponentially to both sides, over a share of the steps, so that long and short runs
  // look alike and the curve does not lag. Values that are not finite are passed over.
  const smooth = (values, share) => {
    const weight = 1 - 1 / (1 + share * values.length);
    const sums = new Float64Array(values.length);
    const norms = new Float64Array(values.length);
    const sweep = (from, to, by) => {
      let sum = 0;
      let norm = 0;
      for (let i = from; i !== to; i += by) {
        sums[i] += weight * sum;
        norms[i] += weight * norm;
        if (values[i] === null) continue;
        sum = weight * sum + values[i];
        norm = weight * norm + 1;
      }
    };
    sweep(0, values.length, 1);
    sweep(values.length - 1, -1, -1);
    return values.map((value, i) => (value === null ? null : (sums[i] + value) / (norms[i] + 1)));
  };

  // ---- axes

  const linearTicks = (from, to, wanted) => {
    const rough = (to - from) / Math.max(1, wanted);
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].find((m) => m * power >= rough) * power;
    const ticks = [];
    for (let k = Math.ceil(from / step - 1e-9); k * step <= to + step * 1e-9; ++k) ticks.push(Number((k * step).toPrecision(12)));
    return ticks;
  };
  const logTicks = (from, to, wanted) => {
    const low = Math.floor(Math.log10(from));
    const high = Math.ceil(Math.log10(to));
    const inside = (v) => v >= from * (1 - 1e-9) && v <= to * (1 + 1e-9);
    for (const mantissas of [[1], [1, 3], [1, 2, 5]]) {
      const ticks = [];
      for (let p = low; p <= high; ++p) for (const m of mantissas) if (inside(m * 10 ** p)) ticks.push(Number((m * 10 ** p).toPrecision(3)));
      if (ticks.length >= Math.min(3, wanted)) {
        const every = Math.ceil(ticks.length / Math.max(1, wanted));
        return ticks.filter((_, i) => i % every === 0);
      }
    }
    return linearTicks(from, to, wanted);
  };

  const kMarkShapes = {  // around (0, 0), 9 pixels
    save: "M0-4.5L4 3.5L-4 3.5Z", resume: "M0-4.5L4.5 0L0 4.5L-4.5 0Z", warning: "M-3.5-3.5H3.5V3.5H-3.5Z",
    error: "M-4-4L4 4M4-4L-4 4",
  };
  const kMarkNames = { save: "save", resume: "resume or stop", warning: "warning or skipped step", error: "failure" };
  const kindOf = (event) => ({ save: "save", resume: "resume", stop: "resume", "save failed": "error", "local save failed": "error", error: "error", warning: "warning", skipped: "warning", diverged: "warning", "slow rank": "warning", "lost hosts": "warning" })[event] ?? null;

  // Marks of a run: its events, its warnings, its skipped steps.
  for (const run of runs) {
    run.marks = [];
    const known = new Map();  // several ranks say the same, and most warnings are events too, of a step nearby
    for (const [i, row] of [...run.events, ...run.warnings].entries()) {
      const kind = kindOf(row.event);
      if (kind === null) continue;
      const same = known.get(row.text)?.find((mark) => mark.step === row.step || Math.abs(mark.time - row.time) <= 2);
      if (same) same.times += same.isEvent ? 0 : 1;
      else {
        run.marks.push({ step: row.step, kind, text: row.text ?? row.event, rank: row.rank, host: row.host, times: 1, time: row.time, event: row.event, isEvent: i < run.events.length });
        known.set(row.text, [...(known.get(row.text) ?? []), run.marks[run.marks.length - 1]]);
      }
    }
    const explained = new Set(run.marks.filter((mark) => mark.event === "skipped").map((mark) => mark.step));
    run.columns.skipped.forEach((skipped, i) => {
      if (skipped && !explained.has(run.columns.step[i])) run.marks.push({ step: run.columns.step[i], kind: "warning", text: "skipped: loss or gradient was not finite", times: 1, event: "skipped" });
    });
    run.marks.sort((a, b) => a.step - b.step);
  }

  // ---- a chart
  //
  // options: title, unit (text of a value), log (at first), zero (axis begins at 0), series(run) -> list of
  //   {name, x (steps), y, style: raw | line | dots | dashed | dotted | stairs, hover: shown in the tip}
  const visibleRuns = () => runs.filter((run) => run.shown);

  class Chart {
    constructor(options) {
      this.options = options;
      this.log = options.log ?? false;
      this.svg = shape("svg", { role: "img", tabindex: "0", "aria-label": options.title });
      this.tip = el("div", { className: "tip", hidden: true });
      this.plot = el("div", { className: "plot" }, [this.svg, this.tip]);
      this.keys = el("div", { className: "keys" });
      this.logButton = el("button", { type: "button", textContent: "log", title: "logarithmic scale" });
      this.logButton.setAttribute("aria-pressed", String(this.log));
      this.logButton.onclick = () => {
        this.log = !this.log;
        this.logButton.setAttribute("aria-pressed", String(this.log));
        this.draw();
      };
      this.card = el("section", { className: "card" }, [
        el("div", { className: "head" }, [el("h2", { textContent: options.title }), this.logButton]), this.plot, this.keys]);
      this.listen();
      charts.push(this);
    }

    lines() {
      return visibleRuns().flatMap((run) => this.options.series(run).map((line) => ({ ...line, run })));
    }

    draw() {
      const width = this.plot.clientWidth || 320;
      const height = Math.round(Math.min(300, Math.max(210, width * 0.46)));
      const narrow = width < 420;
      this.box = { left: narrow ? 46 : 56, right: width - 12, top: 10, bottom: height - 34 };
      const box = this.box;
      this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
      this.svg.setAttribute("height", height);
      const nodes = [];
      const [from, to] = range();
      this.px = (x) => box.left + ((x - from) / (to - from)) * (box.right - box.left);
      this.value = (px) => from + ((px - box.left) / (box.right - box.left)) * (to - from);
      this.drawn = this.lines();

      // the y range of what is in sight
      let low = Infinity;
      let high = -Infinity;
      for (const line of this.drawn) {
        line.at = line.x.map((step) => placeOf(line.run, step));
        for (let i = Math.max(0, lowerBound(line.at, from) - (line.style === "stairs" ? 1 : 0)); i < line.y.length && line.at[i] <= to; ++i) {
          const y = line.y[i];
          if (y === null || y === undefined || (this.log && y <= 0)) continue;
          low = Math.min(low, y);
          high = Math.max(high, y);
        }
      }
      const empty = !(low <= high);
      if (empty) [low, high] = this.log ? [0.1, 1] : [0, 1];
      if (this.log) {
        const pad = Math.max((high / low) ** 0.05, 1.02);
        [low, high] = [low / pad, high * pad];
      } else {
        if (this.options.zero) low = Math.min(low, 0);
        const pad = (high - low) * 0.05 || Math.abs(high) * 0.05 || 1;
        [low, high] = [this.options.zero && low === 0 ? 0 : low - pad, high + pad];
      }
      const scale = this.log ? Math.log10 : (v) => v;
      const [bottom, top] = [scale(low), scale(high)];
      this.py = (y) => box.bottom - ((scale(y) - bottom) / (top - bottom)) * (box.bottom - box.top);

      // grid and labels
      const unit = this.options.unit ?? tickText;
      const tall = Math.max(2, Math.floor((box.bottom - box.top) / 44));
      for (const tick of this.log ? logTicks(low, high, tall) : linearTicks(low, high, tall)) {
        const y = this.py(tick);
        nodes.push(shape("line", { class: "grid-line", x1: box.left, x2: box.right, y1: y, y2: y }));
        const text = shape("text", { x: box.left - 5, y: y + 4, "text-anchor": "end" });
        text.textContent = unit(tick);
        nodes.push(text);
      }
      const xUnit = view.axis === "tokens" ? count : tickText;
      for (const tick of linearTicks(from, to, Math.max(2, Math.floor((box.right - box.left) / 80)))) {
        const x = this.px(tick);
        nodes.push(shape("line", { class: "grid-line", x1: x, x2: x, y1: box.top, y2: box.bottom }));
        const text = shape("text", { x, y: box.bottom + 26, "text-anchor": x > box.right - 14 ? "end" : x < box.left + 14 ? "start" : "middle" });
        text.textContent = xUnit(tick);
        nodes.push(text);
      }
      nodes.push(shape("line", { class: "axis", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom }));
      if (empty) {
        const text = shape("text", { x: (box.left + box.right) / 2, y: (box.top + box.bottom) / 2, "text-anchor": "middle" });
        text.textContent = "nothing to show here";
        nodes.push(text);
      }

      // curves, clipped to the box
      const clip = `clip-${charts.indexOf(this)}`;
      const clipPath = shape("clipPath", { id: clip });
      clipPath.append(shape("rect", { x: box.left - 4, y: box.top - 4, width: box.right - box.left + 8, height: box.bottom - box.top + 8 }));
      const inside = shape("g", { "clip-path": `url(#${clip})` });
      for (const line of this.drawn) inside.append(...this.curve(line, from, to));
      nodes.push(clipPath, inside, ...this.marks(from, to));

      this.cross = shape("line", { class: "axis", y1: box.top, y2: box.bottom, visibility: "hidden" });
      this.cross.style.stroke = "var(--dim)";
      this.band = shape("rect", { y: box.top, height: box.bottom - box.top, visibility: "hidden", fill: "var(--shade)" });
      this.dots = shape("g");
      nodes.push(this.band, this.cross, this.dots);
      this.svg.replaceChildren(...nodes);
      this.drawKeys();
    }

    curve(line, from, to) {
      const colour = line.colour ?? line.run.colour;
      const begin = Math.max(0, lowerBound(line.at, from) - 1);
      const end = Math.min(line.at.length, lowerBound(line.at, to) + 2);
      const usable = (y) => y !== null && y !== undefined && !(this.log && y <= 0);
      const nodes = [];
      let path = "";
      let open = false;
      const point = (x, y) => {
        path += `${open ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`;
        open = true;
      };
      // More points than pixels: of each half pixel the first, the least, the greatest and the last.
      const bins = 2 * (this.box.right - this.box.left);
      if (line.style !== "stairs" && end - begin > 2 * bins) {
        let i = begin;
        while (i < end) {
          const bin = Math.floor(2 * this.px(line.at[i]));
          let least = -1, greatest = -1, first = -1, last = -1;
          for (; i < end && Math.floor(2 * this.px(line.at[i])) === bin; ++i) {
            if (!usable(line.y[i])) continue;
            if (first < 0) first = least = greatest = i;
            if (line.y[i] < line.y[least]) least = i;
            if (line.y[i] > line.y[greatest]) greatest = i;
            last = i;
          }
          if (first < 0) open = false;
          else for (const k of [...new Set([first, least, greatest, last])].sort((a, b) => a - b)) point(this.px(line.at[k]), this.py(line.y[k]));
        }
      } else {
        for (let i = begin; i < end; ++i) {
          if (!usable(line.y[i])) {
            open = false;
            continue;
          }
          const x = this.px(line.at[i]);
          const y = this.py(line.y[i]);
          if (line.style === "stairs" && open) path += `H${x.toFixed(1)}`;
          point(x, y);
          const alone = !(i > begin && usable(line.y[i - 1])) && !(i + 1 < end && usable(line.y[i + 1]));
          if (line.style === "dots" ? end - begin < 400 : alone) {
            nodes.push(shape("circle", { cx: x, cy: y, r: line.style === "dots" ? 3.2 : 2, fill: line.style === "dots" ? "var(--card)" : colour, stroke: colour, "stroke-width": 1.8 }));
          }
        }
        if (line.style === "stairs" && open) path += `H${this.px(line.run.axes[view.axis][line.run.axes[view.axis].length - 1] ?? to).toFixed(1)}`;
      }
      const look = {
        raw: { "stroke-width": 1.1, opacity: 0.38 }, line: { "stroke-width": 1.9 }, dots: { "stroke-width": 1.6, "stroke-dasharray": "5 4" },
        dashed: { "stroke-width": 1.4, "stroke-dasharray": "7 4", opacity: 0.85 }, dotted: { "stroke-width": 1.6, "stroke-dasharray": "1.5 3.5" }, stairs: { "stroke-width": 1.8, "stroke-dasharray": "2 3" },
      }[line.style];
      if (path !== "") nodes.unshift(shape("path", { d: path, fill: "none", stroke: colour, "stroke-linejoin": "round", ...look }));
      return nodes;
    }

    marks(from, to) {
      const nodes = [];
      for (const run of visibleRuns()) {
        let filled = -Infinity;
        for (const mark of run.marks) {
          const at = placeOf(run, mark.step);
          if (at < from || at > to) continue;
          const x = this.px(at);
          const colour = `var(--${mark.kind})`;
          if (mark.kind !== "save") nodes.push(shape("line", { x1: x, x2: x, y1: this.box.top, y2: this.box.bottom, stroke: many && mark.kind === "resume" ? run.colour : colour, "stroke-dasharray": "2 4", opacity: 0.75 }));
          else if (x - filled < 5) continue;  // a save at every step would hide the axis
          else filled = x;
          nodes.push(shape("path", { class: "mark", d: kMarkShapes[mark.kind], transform: `translate(${x.toFixed(1)} ${this.box.bottom + 7})`, fill: mark.kind === "error" ? "none" : colour, stroke: colour, "stroke-width": mark.kind === "error" ? 2 : 0.5 }));
        }
      }
      return nodes;
    }

    drawKeys() {
      const seen = new Map();
      for (const line of this.drawn) if (!seen.has(line.name) && line.y.length > 0) seen.set(line.name, line);
      const items = [...seen.values()].map((line) => {
        const icon = shape("svg", { viewBox: "0 0 22 10" });
        const colour = many ? "var(--dim)" : (line.colour ?? line.run.colour);
        const dash = { dots: "5 4", dashed: "7 4", dotted: "1.5 3.5", stairs: "2 3" }[line.style] ?? "";
        icon.append(shape("line", { x1: 0, x2: 22, y1: 5, y2: 5, stroke: colour, "stroke-width": line.style === "raw" ? 1.2 : 2, opacity: line.style === "raw" ? 0.5 : 1, "stroke-dasharray": dash }));
        if (line.style === "dots") icon.append(shape("circle", { cx: 11, cy: 5, r: 3, fill: "var(--card)", stroke: colour, "stroke-width": 1.6 }));
        return el("span", {}, [icon, line.name]);
      });
      this.keys.replaceChildren(...items);
    }

    // ---- pointing, zooming

    listen() {
      const svg = this.svg;
      const pointers = new Map();
      let dragFrom = null;
      let pinch = null;
      const xOf = (event) => event.clientX - svg.getBoundingClientRect().left;
      svg.addEventListener("pointerdown", (event) => {
        if (event.button !== 0) return;
        pointers.set(event.pointerId, xOf(event));
        if (pointers.size === 2) {
          const [a, b] = [...pointers.values()];
          pinch = { values: [this.value(Math.min(a, b)), this.value(Math.max(a, b))] };
          dragFrom = null;
          this.band.setAttribute("visibility", "hidden");
        } else {
          dragFrom = xOf(event);
        }
        svg.setPointerCapture(event.pointerId);
      });
      svg.addEventListener("pointermove", (event) => {
        const x = xOf(event);
        if (pointers.has(event.pointerId)) pointers.set(event.pointerId, x);
        if (pinch && pointers.size === 2) {
          const [a, b] = [...pointers.values()].sort((p, q) => p - q);
          if (b - a < 12) return;
          // the values under both fingers stay under them
          const [va, vb] = pinch.values;
          const per = (vb - va) / (b - a);
          zoomTo(va - (a - this.box.left) * per, vb + (this.box.right - b) * per);
          return;
        }
        if (dragFrom !== null && Math.abs(x - dragFrom) > 5) {
          const a = Math.max(this.box.left, Math.min(x, dragFrom));
          const b = Math.min(this.box.right, Math.max(x, dragFrom));
          this.band.setAttribute("x", a);
          this.band.setAttribute("width", Math.max(0, b - a));
          this.band.setAttribute("visibility", "visible");
        }
        point(this, this.value(Math.max(this.box.left, Math.min(this.box.right, x))));
      });
      const up = (event) => {
        const x = xOf(event);
        pointers.delete(event.pointerId);
        if (pinch) {
          if (pointers.size === 0) pinch = null;
          return;
        }
        if (dragFrom !== null && event.type === "pointerup" && Math.abs(x - dragFrom) > 8) zoomTo(this.value(dragFrom), this.value(x));
        dragFrom = null;
        this.band.setAttribute("visibility", "hidden");
      };
      svg.addEventListener("pointerup", up);
      svg.addEventListener("pointercancel", up);
      svg.addEventListener("pointerleave", (event) => {
        if (event.pointerType === "mouse") point(null, null);
      });
      svg.addEventListener("dblclick", resetZoom);
      svg.addEventListener("wheel", (event) => {
        if (!event.ctrlKey && !event.shiftKey) return;  // the page scrolls
        event.preventDefault();
        zoomAround(this.value(xOf(event)), (event.deltaY || event.deltaX) > 0 ? 1.25 : 0.8);
      }, { passive: false });
      svg.addEventListener("keydown", (event) => {
        const [from, to] = range();
        const at = this.at ?? (from + to) / 2;
        const jump = view.axis === "step" && !event.shiftKey ? Math.max(1, Math.round((to - from) / 200)) : (to - from) / 20;
        const moves = {
          ArrowLeft: () => point(this, Math.max(from, at - jump)), ArrowRight: () => point(this, Math.min(to, at + jump)),
          "+": () => zoomAround(at, 0.8), "-": () => zoomAround(at, 1.25), 0: resetZoom, Escape: () => point(null, null),
        };
        if (!(event.key in moves)) return;
        event.preventDefault();
        moves[event.key]();
      });
    }

    showAt(value, withTip) {
      this.at = value;
      this.tip.hidden = true;
      this.dots.replaceChildren();
      this.cross.setAttribute("visibility", value === null ? "hidden" : "visible");
      if (value === null) return;
      const x = this.px(value);
      this.cross.setAttribute("x1", x);
      this.cross.setAttribute("x2", x);
      const rows = [];
      const heads = new Set();
      const unit = this.options.exact ?? this.options.unit ?? plain;
      for (const line of this.drawn) {
        if (line.hover === false || line.at.length === 0) continue;
        let i = lowerBound(line.at, value);
        if (line.style === "stairs") i = i < line.at.length && line.at[i] === value ? i : i - 1;
        else if (i === line.at.length || (i > 0 && value - line.at[i - 1] < line.at[i] - value)) --i;
        if (i < 0) continue;
        const near = line.style === "stairs" ? value : line.at[i];
        if (Math.abs(this.px(near) - x) > 40) continue;
        if (line.style !== "stairs" && line.style !== "dashed" && line.style !== "dotted" && line.style !== "dots") heads.add(line.x[i]);
        const y = line.y[i];
        if (y !== null && y !== undefined && !(this.log && y <= 0)) this.dots.append(shape("circle", { cx: this.px(near), cy: this.py(y), r: 3.4, fill: line.colour ?? line.run.colour }));
        const name = (many ? `${line.run.name}: ` : "") + line.name + (line.style === "dots" && line.x[i] !== Math.round(value) ? ` at ${line.x[i]}` : "");
        rows.push(el("div", {}, [chip(line.colour ?? line.run.colour), el("span", { textContent: name }), el("b", { textContent: unit(y) })]));
      }
      if (!withTip) return;
      for (const run of visibleRuns()) {
        const near = run.marks.filter((mark) => Math.abs(this.px(placeOf(run, mark.step)) - x) < 6);
        for (const mark of near.slice(0, 4)) rows.push(el("div", { className: "reported" }, [markText(run, mark, true)]));
        if (near.length > 4) rows.push(el("div", { className: "reported", textContent: `and ${near.length - 4} more events` }));
      }
      const steps = [...heads].sort((a, b) => a - b);
      const head = view.axis === "step" ? `step ${Math.round(value).toLocaleString("en")}`
        : `${view.axis === "tokens" ? `${count(value)} tokens` : `${plain(value)} hours`}${steps.length > 0 ? `, step ${steps[0].toLocaleString("en")}` : ""}`;
      this.tip.replaceChildren(el("div", {}, [el("strong", { textContent: head })]), ...rows);
      this.tip.hidden = false;
      const room = this.plot.clientWidth - this.tip.offsetWidth;
      this.tip.style.left = `${Math.max(0, Math.min(room, x > this.plot.clientWidth / 2 ? x - this.tip.offsetWidth - 14 : x + 14))}px`;
      this.tip.style.top = `${this.box.top}px`;
    }
  }

  const zoomAround = (value, factor) => {
    const [from, to] = range();
    zoomTo(value - (value - from) * factor, value + (to - value) * factor);
  };
  const point = (chart, value) => {
    // on the step axis only whole steps have values
    const at = value === null || view.axis !== "step" ? value : Math.max(Math.ceil(range()[0]), Math.min(Math.floor(range()[1]), Math.round(value)));
    for (const other of charts) other.showAt(at, other === chart);
  };
  const drawAll = () => charts.forEach((chart) => chart.draw());

  const markText = (run, mark, short) => {
    const who = mark.rank !== undefined && mark.rank !== null ? ` (rank ${mark.rank} on ${mark.host}${mark.times > 1 ? `, and ${mark.times - 1} more` : ""})` : "";
    const node = el("span", { className: `mark-${mark.kind}`, textContent: `${mark.event} ` });
    return el("span", {}, [short && many ? `${run.name}: ` : "", node, `${mark.text}${who}`]);
  };

  // ---- cards

  const cards = document.getElementById("cards");
  const add = (card, wide = false) => {
    if (wide) card.classList.add("wide");
    cards.append(card);
  };
  const block = (title, children) => el("section", { className: "card" }, [el("div", { className: "head" }, [el("h2", { textContent: title })]), ...children]);
  const table = (heads, rows, stack = true) => {
    const body = rows.map((cells) => el("tr", {}, cells.map((cell, i) => {
      const cellNode = el("td", { className: cell.className ?? "" }, [cell.node ?? String(cell.text ?? "")]);
      cellNode.setAttribute("data-label", heads[i].text);
      return cellNode;
    })));
    return el("table", { className: stack ? "stack" : "" }, [
      el("thead", {}, [el("tr", {}, heads.map((head) => el("th", { className: head.className ?? "", textContent: head.text })))]),
      el("tbody", {}, body)]);
  };
  const runName = (run) => el("span", {}, [chip(run.colour), ` ${run.name}`]);
  const number = (text) => ({ text, className: "number" });

  // "2, then 4": the ranks of each start, where they changed
  const ranksText = (run) => run.configurations.map((c) => c.ranks).filter((ranks, i, all) => ranks !== all[i - 1]).join(", then ") || "unknown";

  // The evaluations of each set of a run, in the order of their first lines; a single one may have no name.
  const evaluationSets = (run) => [...new Set(run.evaluations.eval_name ?? [])].map((name) => {
    const rows = run.evaluations.eval_name.flatMap((other, i) => other === name ? [i] : []);
    return { name, of: (field) => rows.map((i) => run.evaluations[field][i]) };
  });
  const evaluationLines = (run, field, what) => evaluationSets(run).map((set, i, all) => ({
    name: set.name ? `${what}, ${set.name}` : what, x: set.of("step"), y: set.of(field), style: "dots",
    colour: many || all.length === 1 ? undefined : `var(--run${(i + 1) % 8})` }));
  const evaluationText = (set) => {
    const losses = set.of("eval_loss").filter((v) => v !== null);
    if (losses.length === 0) return "none";
    const best = Math.min(...losses), last = losses[losses.length - 1];
    const text = last === best ? last.toFixed(4) : `${last.toFixed(4)} (best ${best.toFixed(4)})`;
    return set.name ? `${set.name} ${text}` : text;
  };

  // What packing made of separate documents.
  const packingText = (run) => {
    const p = run.setup.packing, places = p.tokens + p.padding;
    const cut = p.cut > 0 ? `; ${count(p.cut)} longer than a sequence ${p.cut === 1 ? "was" : "were"} cut` : "";
    return `${many ? `${run.name}: ` : ""}documents are separate: ${count(p.documents)} in ${count(p.sequences)} sequences, ` +
      `${(100 * p.tokens / places).toFixed(1)}% full (${count(p.padding)} places of padding a pass)${cut}; tokens are counted without padding`;
  };

  // What is trained in 8 bits, or beside a frozen model.
  const fp8Text = (run) => {
    const options = run.setup.options ?? {};
    const skip = options["fp8-skip"] && options["fp8-skip"] !== "none" ? `, but for the blocks ${options["fp8-skip"]}` : "";
    return `${many ? `${run.name}: ` : ""}GEMMs of the blocks are in 8 bits (--precision fp8, a scale per ${options["fp8-recipe"] ?? "tensor"})${skip}`;
  };
  const adaptersText = (run) => {
    const a = run.setup.adapters;
    const targets = Array.isArray(a.targets) ? a.targets.join(", ") : a.targets;
    const source = a.base?.startsWith("random") ? "" : run.setup.options?.init ? `, from ${run.setup.options.init}` : ", of fresh weights";
    const base = a.base ? `; its weights are in ${a.base}${source}, hash ${a.base_model_hash}` : "";
    return `${many ? `${run.name}: ` : ""}adapters are trained beside a frozen model: rank ${a.rank}, alpha ${a.alpha}${a.rank_stabilized ? ", rank-stabilised" : ""}, of ${targets}${a.trains_embeddings ? ", and the embeddings" : ""}${base}`;
  };

  const addSummary = () => {
    const hasPadding = runs.some((run) => run.columns.padding?.some((n) => n > 0));
    const heads = ["run", "steps", "loss", "evaluation", hasPadding ? "tokens, with padding" : "tokens", "time in steps", "tokens/s (median)", "skipped", "ranks", "parameters"];
    const rows = runs.map((run) => {
      const c = run.columns;
      const losses = c.loss.filter((v) => v !== null);
      const rate = median(c.tokens_per_second);
      return [
        { node: runName(run), className: "name" }, number(c.step.length === 0 ? "none" : count(c.step[c.step.length - 1])),
        number(losses.length > 0 ? losses[losses.length - 1].toFixed(4) : "none"),
        number(evaluationSets(run).map(evaluationText).join(", ") || "none"),
        number(count(run.tokens)), number(duration(run.seconds)), number(rate === null ? "none" : count(rate)),
        number(String(c.skipped.filter(Boolean).length)), number(ranksText(run)),
        number(run.setup.adapters ? `${count(run.setup.trained_parameters)} of adapters beside ${count(run.setup.parameters)}` : run.setup.parameters ? count(run.setup.parameters) : "unknown")];
    });
    const texts = runs.flatMap((run) => [
      ...(run.setup.packing ? [packingText(run)] : []), ...(run.setup.precision === "fp8" ? [fp8Text(run)] : []),
      ...(run.setup.adapters ? [adaptersText(run)] : [])]);
    const notes = texts.map((text) => el("p", { textContent: text }));
    add(block("Summary", [el("div", { className: "scroll" }, [table(heads.map((text, i) => ({ text, className: i > 0 ? "number" : "" })), rows)]), ...notes]), true);
  };

  // What a mean step consists of, and what to do about the largest wait. The first step of each start is left out: it allocates.
  const kLargeWait = 0.1;  // of a step
  const kUneven = 0.05;    // likewise: what the event "slow rank" tells of
  const addTimes = () => {
    for (const run of runs) {
      const c = run.columns;
      const starts = new Set(run.configurations.map((setup) => setup.step + 1));
      const mine = c.step.map((_, i) => i).filter((i) => !starts.has(c.step[i]) && c.seconds[i] > 0);
      if (mine.length === 0) continue;
      const mean = (values) => {
        const known = mine.filter((i) => typeof values?.[i] === "number");
        return known.length === 0 ? null : known.reduce((sum, i) => sum + values[i], 0) / known.length;
      };
      const seconds = mean(c.seconds);
      const exchange = mean(c.exposed_exchange_seconds) ?? 0;
      const update = mean(c.exposed_update_seconds) ?? 0;
      const onCpu = run.setup.device === "cpu";
      const meetings = run.events.filter((row) => row.event === "ranks" && row.computing_seconds);
      const excess = (row) => row.computing_seconds.most - row.computing_seconds.median;
      const ranks = meetings.reduce((worst, row) => (worst === null || excess(row) > excess(worst) ? row : worst), null);
      const uneven = ranks ? meetings.reduce((sum, row) => sum + excess(row) * row.steps, 0) / meetings.reduce((sum, row) => sum + row.steps, 0) / seconds : null;
      const padding = mean(c.padding?.map((n, i) => (c.tokens?.[i] > 0 ? n / c.tokens[i] : null)));
      const gemm = mean(c.gemm_share);
      const rest = Math.max(0, seconds - exchange - update);
      const row = (text, value, colour) => [
        { text, className: "name" }, number(duration(value)), number(percent(value / seconds)),
        { node: el("div", { className: "bar" }, [el("i", { style: `width:${(100 * value) / seconds}%;background:${colour}` })]), className: "bar-cell" }];
      const rows = [row(`compute${gemm === null ? "" : `, at ${percent(gemm)} of the GEMM rate over the whole step`}`, rest, run.colour),
        row("waiting for the exchange of gradients", exchange, "var(--exchange)"),
        row(onCpu ? "the update (on CPUs nothing runs beside it)" : "waiting for the update and parameters", update, "var(--gather)")];
      const heads = [{ text: "rank 0, mean step" }, { text: "time", className: "number" }, { text: "of the step", className: "number" }, { text: "" }];
      const notes = [];
      if (uneven !== null && uneven >= kUneven) {
        notes.push(`Ranks compute for unequal times, and wait for the slowest in the exchange: ${percent(uneven)} of a step. At worst, up to step ${ranks.step}, rank ${ranks.computing_seconds.most_rank} on ${ranks.slowest_host} computed ${duration(ranks.computing_seconds.most)} in a step and the median rank ${duration(ranks.computing_seconds.median)}. Its host is throttled, shared or another kind: leave it out, or give ranks cores of their own.`);
      }
      if (exchange / seconds - (uneven ?? 0) >= kLargeWait) {
        notes.push(`The exchange of gradients takes long${meetings.length > 0 ? " (a rank that is late, or stopped, holds the others up there too: see the slow ranks under Events)" : ""}: a larger --micro-batch exchanges less often; over several hosts --reduce-group with the ranks of a host, and less --grad-offload.`);
      }
      if (update / seconds >= kLargeWait) {
        notes.push(onCpu ? "The update takes long beside so little compute: a larger --global-batch makes it rarer."
          : "The update takes long, and too little compute hides it: a larger --global-batch, --batched-forward, --moments bf16, or more ranks.");
      }
      if (padding !== null && padding >= kLargeWait) {
        notes.push(`${percent(padding)} of the places are padding: a --seq that documents fill better (inspect shows how full they become).`);
      }
      if (notes.length === 0) notes.push("No wait is a tenth of a step: compute is what takes the time.");
      notes.push("More: jobs/guide/report.md, \u201cWhy is a step slow?\u201d");
      add(block(`Where the time of a step goes${many ? `: ${run.name}` : ""}`, [el("div", { className: "scroll" }, [table(heads, rows)]), el("p", { textContent: notes.join(" ") })]), true);
    }
  };

  const addCurves = () => {
    const has = (field) => runs.some((run) => run.columns[field].some((v) => v !== null));
    const evaluated = (field) => runs.some((run) => run.evaluations[field].some((v) => v !== null));
    const smoothed = (run, field) => {
      run.smoothed ??= {};
      const known = run.smoothed[field];
      if (known && known.weight === view.smoothing) return known.values;
      const values = smooth(run.columns[field], view.smoothing);
      run.smoothed[field] = { weight: view.smoothing, values };
      return values;
    };
    const pair = (run, field, name) => view.smoothing === 0
      ? [{ name, x: run.columns.step, y: run.columns[field], style: "line" }]
      : [{ name, x: run.columns.step, y: run.columns[field], style: "raw" },
         { name: `${name}, smoothed`, x: run.columns.step, y: smoothed(run, field), style: "line" }];

    add(new Chart({ title: "Loss (nats per target)", exact: plain, series: (run) => [
      ...pair(run, "loss", run.setup.objective ? "training objective" : "training"),
      ...evaluationLines(run, "eval_loss", "evaluation")] }).card);
    add(new Chart({ title: "Gradient norm, before clipping", log: true, exact: plain, series: (run) => {
      const lines = pair(run, "grad_norm", "norm");
      const clips = run.configurations.filter((c) => typeof c.clip === "number" && c.clip > 0);
      if (clips.length > 0 && run.columns.step.length > 0) {
        const last = run.columns.step[run.columns.step.length - 1];
        const x = clips.map((c) => Math.max(c.step, run.columns.step[0]));
        lines.push({ name: "clipped to", x: [...x, last], y: [...clips, clips[clips.length - 1]].map((c) => c.clip), style: "dashed", colour: many ? undefined : "var(--error)" });
      }
      return lines;
    } }).card);
    add(new Chart({ title: "Learning rate", exact: plain, zero: true, series: (run) => [{ name: "learning rate", x: run.columns.step, y: run.columns.lr, style: "line" }] }).card);
    add(new Chart({ title: "Tokens per second, all ranks", unit: count, exact: plain, zero: true, series: (run) => pair(run, "tokens_per_second", "tokens/s") }).card);
    if (evaluated("eval_accuracy")) {
      add(new Chart({ title: "Evaluation: share of targets that were the likeliest token", exact: plain, series: (run) => evaluationLines(run, "eval_accuracy", "accuracy") }).card);
    }
    if (evaluated("bits_per_byte")) {
      add(new Chart({ title: "Evaluation (bits per byte)", exact: plain, series: (run) => evaluationLines(run, "bits_per_byte", "bits per byte") }).card);
    }
    addGemmShare(pair);
    add(new Chart({ title: "Bytes moved per step, rank 0", unit: bytes, exact: (v) => `${bytes(v)} (${plain(v)})`, zero: true, series: (run) => [
      { name: "paged in", x: run.columns.step, y: run.columns.paged_in_bytes, style: "line", colour: many ? undefined : "var(--paging)" },
      { name: "paged out", x: run.columns.step, y: run.columns.paged_out_bytes, style: "dashed", colour: many ? undefined : "var(--paging)" },
      { name: "sent to other ranks", x: run.communication.step, y: run.communication.bytes, style: "stairs", colour: many ? undefined : "var(--exchange)" }] }).card);
    if (has("exposed_exchange_seconds")) {
      add(new Chart({ title: "Exposed seconds per step, rank 0", exact: plain, zero: true, series: (run) => [
        { name: "waiting for the exchange of gradients", x: run.columns.step, y: run.columns.exposed_exchange_seconds, style: "line", colour: many ? undefined : "var(--exchange)" },
        { name: "for the update and the gather", x: run.columns.step, y: run.columns.exposed_update_seconds, style: "dashed", colour: many ? undefined : "var(--gather)" }] }).card);
    }
    add(new Chart({ title: "Seconds per step", exact: plain, zero: true, series: (run) => pair(run, "seconds", "seconds") }).card);
    addNetwork();
    addRanks();
    addQuantized();
  };

  // What the network between hosts takes of a step at the rates that were measured at its start, hidden or not, and
  // what compute waits for.
  const addNetwork = () => {
    const starts = (run) => run.events.filter((row) => row.event === "network" && row.step_seconds > 0);
    if (!runs.some((run) => starts(run).length > 0)) return;
    const shares = (run, secondsOf) => run.columns.step.map((step, i) => {
      const start = starts(run).filter((row) => row.step < step).pop();
      const seconds = start ? secondsOf(start, i) : null;
      return typeof seconds === "number" && run.columns.seconds[i] > 0 ? seconds / run.columns.seconds[i] : null;
    });
    const line = (run, name, style, secondsOf) => ({ name, x: run.columns.step, y: shares(run, secondsOf), style });
    const chart = new Chart({ title: "Network between hosts: share of the steps", unit: percent, exact: percent, zero: true, series: (run) => [
      line(run, "what is sent, at the measured rates", "line", (start) => start.step_seconds),
      line(run, "waiting for the exchange of gradients", "dashed", (start, i) => run.columns.exposed_exchange_seconds?.[i])] });
    const rates = runs.filter((run) => starts(run).length > 0).map((run) => {
      const last = starts(run).pop();
      return `${many ? `${run.name}: ` : ""}${last.hosts.length} hosts, into each ${bytes(last.all_to_all_bytes_per_second)}/s in an all-to-all and ${bytes(last.all_gather_bytes_per_second)}/s in an all-gather; a rank sends ${bytes(last.step_bytes)} in a step.`;
    });
    chart.card.append(el("div", { className: "dim", textContent: rates.join(" ") }));
    add(chart.card);
  };

  // How evenly the ranks compute: what is above the median, all others wait for.
  const addRanks = () => {
    const rows = (run) => run.events.filter((row) => row.event === "ranks");
    if (!runs.some((run) => rows(run).length > 0)) return;
    const line = (run, name, field, style) => ({ name, x: rows(run).map((row) => row.step), y: rows(run).map((row) => row.computing_seconds?.[field] ?? null), style });
    const chart = new Chart({ title: "Seconds per step that ranks compute, before they wait for each other", exact: plain, zero: true, series: (run) => [
      line(run, "slowest rank", "most", "line"), line(run, "median", "median", "dashed"), line(run, "fastest rank", "least", "dotted")] });
    const slowest = runs.filter((run) => rows(run).length > 0).map((run) => {
      const last = rows(run).pop();
      return `${many ? `${run.name}: ` : ""}slowest at step ${last.step}: rank ${last.computing_seconds.most_rank} on ${last.slowest_host}.`;
    });
    chart.card.append(el("div", { className: "dim", textContent: slowest.join(" ") }));
    add(chart.card);
  };

  // What --precision fp8 lost: of each operand the kind of layer that lost most.
  const addQuantized = () => {
    const rows = (run) => run.events.filter((row) => row.event === "fp8");
    if (!runs.some((run) => rows(run).length > 0)) return;
    const most = (row, operand) => Object.values(row).reduce((largest, layer) => {
      const share = layer?.[operand]?.underflowed;
      return typeof share === "number" ? Math.max(largest ?? 0, share) : largest;
    }, null);
    const line = (run, operand, style) => ({ name: `${operand}s`, x: rows(run).map((row) => row.step), y: rows(run).map((row) => most(row, operand)), style });
    add(new Chart({ title: "Values that became 0 in 8 bits, in the worst kind of layer", unit: percent, exact: percent, zero: true, series: (run) => [
      line(run, "input", "line"), line(run, "gradient", "dashed"), line(run, "weight", "dotted")] }).card);
  };

  // Model FLOPs of a rank over the rate of its GEMMs: --gemm-tflops, or what was measured at the start that the
  // step belongs to. A rate that training exceeds was measured while the machine was busy: it is not a bound, and its share
  // is not shown.
  const addGemmShare = (pair) => {
    const notes = [];
    for (const run of runs) {
      const c = run.columns;
      const starts = c.step.map((step) => run.configurations.filter((setup) => setup.step < step).pop());
      c.gemm_share = c.step.map(() => null);
      for (const setup of run.configurations) {
        const bound = run.gemm_flops_per_second ?? setup.gemm_flops_per_second;
        const mine = starts.map((_, i) => i).filter((i) => starts[i] === setup);
        if (!bound || !setup.flops_per_token || mine.length === 0) continue;
        const shares = mine.map((i) => (c.tokens_per_second[i] === null ? null : (c.tokens_per_second[i] * setup.flops_per_token) / setup.ranks / bound));
        const most = Math.max(0, ...shares);
        const isFp8 = setup.precision === "fp8" && !run.gemm_flops_per_second;
        if (most <= 1) mine.forEach((i, k) => { c.gemm_share[i] = shares[k]; });
        else if (isFp8) notes.push(`${many ? `${run.name}: training` : "Training"} in fp8 reached ${percent(most)} of the rate of ${Number((bound / 1e12).toPrecision(4))} TFLOP/s a rank that was measured, which is that of 16-bit GEMMs: no share is shown; report --gemm-tflops takes the rate of fp8.`);
        else notes.push(`${many ? `${run.name}: steps` : "Steps"} ${c.step[mine[0]]} to ${c.step[mine[mine.length - 1]]} are not shown, because training reached ${percent(most)} of the rate of ${Number((bound / 1e9).toPrecision(4))} GFLOP/s a rank that ` +
          (run.gemm_flops_per_second ? "--gemm-tflops gives." : "was measured at their start, while the machine was busy; report --gemm-tflops takes another (bench gemm measures it)."));
      }
    }
    const title = "Share of the measured GEMM rate";
    const note = el("div", { className: "dim", textContent: notes.join(" ") });
    if (runs.some((run) => run.columns.gemm_share.some((v) => v !== null))) {
      const chart = new Chart({ title, unit: percent, exact: percent, zero: true, series: (run) => pair(run, "gemm_share", "share") });
      chart.card.append(note);
      add(chart.card);
    } else if (notes.length > 0) {
      add(block(title, [note]));
    }
  };

  const addMemory = () => {
    for (const run of runs.filter((r) => r.memory.length > 0)) {
      // what is not of our making (the program itself) is estimated for the plan, and not counted
      const estimated = run.memory.filter((line) => line.allocated === 0 && line.planned > 0);
      const counted = run.memory.filter((line) => !estimated.includes(line));
      const most = Math.max(1, ...counted.map((line) => Math.max(line.planned, line.allocated)));
      const onCpu = run.setup.device === "cpu";
      const sums = new Map();
      const rows = counted.map((line) => {
        const where = onCpu ? "host" : line.where;
        const sum = sums.get(where) ?? { planned: 0, allocated: 0 };
        sums.set(where, { planned: sum.planned + line.planned, allocated: sum.allocated + line.allocated });
        const bar = el("div", { className: "bar", title: `allocated ${plain(line.allocated)} of planned ${plain(line.planned)} bytes` }, [
          el("i", { style: `width:${(100 * line.allocated) / most}%;background:${run.colour}` }),
          el("u", { style: `left:min(calc(100% - 2px), ${(100 * line.planned) / most}%)` })]);
        return [{ text: line.name, className: "name" }, { text: where }, number(bytes(line.planned)), number(bytes(line.allocated)), { node: bar, className: "bar-cell" }];
      });
      for (const [where, sum] of sums) rows.push([{ node: el("strong", { textContent: "total" }), className: "name" }, { text: where }, number(bytes(sum.planned)), number(bytes(sum.allocated)), { text: "" , className: "bar-cell" }]);
      for (const line of estimated) rows.push([{ text: `${line.name} (estimated)`, className: "name" }, { text: onCpu ? "host" : line.where }, number(bytes(line.planned)), number("not counted"), { text: "", className: "bar-cell" }]);
      const heads = [{ text: "what" }, { text: "where" }, { text: "planned", className: "number" }, { text: "allocated", className: "number" }, { text: "allocated (bar) and planned (line)" }];
      const resident = run.resident ?? {};
      const note = typeof resident.count === "number" ? [el("p", { textContent: `optimizer state resident on the device: ${count(resident.count)} of the ${count(resident.of)} parameters of which rank 0 stores a part (${resident.names})${typeof resident.bytes_per_parameter === "number" ? `, ${plain(resident.bytes_per_parameter)} bytes per element` : ""}` })] : [];
      add(block(`Memory of rank 0${many ? `: ${run.name}` : ""}`, [el("div", { className: "scroll memory" }, [table(heads, rows, false)]), ...note]), true);
    }
  };

  const addTimeline = () => {
    for (const run of runs.filter((r) => r.timeline)) {
      const t = run.timeline;
      const zoom = { from: 0, to: t.duration };
      const svg = shape("svg", { role: "img", tabindex: "0", "aria-label": `timeline of step ${t.step}` });
      const tip = el("div", { className: "tip", hidden: true });
      const plot = el("div", { className: "plot" }, [svg, tip]);
      const ms = (us) => (us >= 1000 ? `${Number((us / 1000).toPrecision(4))} ms` : `${Number(us.toPrecision(4))} µs`);
      const draw = () => {
        const width = plot.clientWidth || 320;
        const left = width < 520 ? 96 : 118;
        const lane = 17;
        const nodes = [];
        let y = 4;
        const px = (us) => left + ((us - zoom.from) / (zoom.to - zoom.from)) * (width - left - 8);
        const clipPath = shape("clipPath", { id: `clip-${run.name.length}-${runs.indexOf(run)}-t` });
        const inside = shape("g", { "clip-path": `url(#${clipPath.id})` });
        for (const rank of t.ranks) {
          const title = shape("text", { x: 0, y: y + 11, style: "font-weight:600" });
          title.textContent = `rank ${rank.rank}`;
          nodes.push(title);
          y += 16;
          const top = y;
          for (const row of rank.lanes) {
            const label = shape("text", { x: 6, y: y + 12 });
            label.textContent = row.name;
            nodes.push(label, shape("line", { class: "grid-line", x1: left, x2: width - 8, y1: y + lane - 1, y2: y + lane - 1 }));
            for (const [ts, dur, category, name, depth] of row.ranges) {
              if (ts + dur < zoom.from || ts > zoom.to || t.categories[category] === "exposed") continue;
              const inset = Math.min(depth, 3) * 2;
              const rect = shape("rect", { x: px(ts).toFixed(2), width: Math.max(0.6, px(ts + dur) - px(ts) - 0.3).toFixed(2), y: y + 1 + inset, height: lane - 4 - inset, rx: 1.5, fill: `var(--${t.categories[category]})`, opacity: depth === 0 ? 0.85 : 1 });
              rect.range = { ts, dur, name: t.names[name], category: t.categories[category], lane: row.name, rank: rank.rank };
              inside.append(rect);
              if (px(ts + dur) - px(ts) > 8 * t.names[name].length + 6 && depth === 0) {
                const text = shape("text", { x: px(Math.max(ts, zoom.from)) + 4, y: y + 12, style: "fill:#fff;font-size:10px;pointer-events:none" });
                text.textContent = t.names[name];
                inside.append(text);
              }
            }
            y += lane;
          }
          // exposed waiting and paging as shades over all lanes of the rank
          for (const row of rank.lanes) {
            for (const [ts, dur, category, name] of row.ranges) {
              const what = t.categories[category];
              if ((what !== "exposed" && what !== "paging") || ts + dur < zoom.from || ts > zoom.to) continue;
              const rect = shape("rect", { x: px(ts).toFixed(2), width: Math.max(0.5, px(ts + dur) - px(ts)).toFixed(2), y: top, height: y - top - 1, fill: `var(--${what})`, opacity: what === "exposed" ? 0.24 : 0.1, class: `shade-${what}` });
              if (what === "exposed") rect.range = { ts, dur, name: t.names[name], category: "exposed", lane: row.name, rank: rank.rank };
              inside.prepend(rect);
            }
          }
          y += 5;
        }
        for (const tick of linearTicks(zoom.from / 1000, zoom.to / 1000, Math.max(2, Math.floor((width - left) / 90)))) {
          const x = px(tick * 1000);
          nodes.push(shape("line", { class: "grid-line", x1: x, x2: x, y1: 4, y2: y }));
          const text = shape("text", { x, y: y + 13, "text-anchor": x > width - 30 ? "end" : "middle" });
          text.textContent = `${tick} ms`;
          nodes.push(text);
        }
        clipPath.append(shape("rect", { x: left, y: 0, width: width - left - 8, height: y }));
        svg.setAttribute("viewBox", `0 0 ${width} ${y + 18}`);
        svg.setAttribute("height", y + 18);
        svg.replaceChildren(clipPath, ...nodes, inside);
        svg.geometry = { left, width };
      };
      const usOf = (event) => {
        const { left, width } = svg.geometry;
        const x = event.clientX - svg.getBoundingClientRect().left;
        return zoom.from + ((Math.max(left, Math.min(width - 8, x)) - left) / (width - left - 8)) * (zoom.to - zoom.from);
      };
      let dragFrom = null;
      svg.addEventListener("pointerdown", (event) => { dragFrom = event.button === 0 ? { us: usOf(event), x: event.clientX } : null; });
      svg.addEventListener("pointerup", (event) => {
        if (dragFrom && Math.abs(event.clientX - dragFrom.x) > 8) {
          const [a, b] = [dragFrom.us, usOf(event)].sort((p, q) => p - q);
          if (b - a > t.duration * 1e-5) [zoom.from, zoom.to] = [a, b];
          draw();
        }
        dragFrom = null;
      });
      svg.addEventListener("dblclick", () => {
        [zoom.from, zoom.to] = [0, t.duration];
        draw();
      });
      svg.addEventListener("pointermove", (event) => {
        const r = event.target.range;
        tip.hidden = !r;
        if (!r) return;
        tip.replaceChildren(el("div", {}, [chip(`var(--${r.category})`), el("strong", { textContent: r.name })]),
          el("div", { textContent: `rank ${r.rank}, ${r.lane}, ${r.category}` }), el("div", { textContent: `${ms(r.dur)} from ${ms(r.ts)}` }));
        const box = plot.getBoundingClientRect();
        tip.style.left = `${Math.max(0, Math.min(plot.clientWidth - tip.offsetWidth, event.clientX - box.left + 12))}px`;
        tip.style.top = `${event.clientY - box.top + 14}px`;
      });
      svg.addEventListener("pointerleave", () => { tip.hidden = true; });
      const used = t.categories.filter((_, i) => t.ranks.some((rank) => rank.lanes.some((row) => row.ranges.some((r) => r[2] === i))));
      const keys = el("div", { className: "keys" }, used.map((name) => el("span", {}, [chip(`var(--${name})`), name === "exposed" ? "exposed: compute waits (shaded)" : name])));
      const sums = t.ranks.map((rank) => {
        const exposed = new Map();
        let sum = 0;
        for (const row of rank.lanes) for (const [, dur, category, name] of row.ranges) {
          if (t.categories[category] !== "exposed") continue;
          sum += dur;
          exposed.set(t.names[name], (exposed.get(t.names[name]) ?? 0) + dur);
        }
        const parts = [...exposed].sort((a, b) => b[1] - a[1]).map(([name, us]) => `${name} ${ms(us)}`).join(", ");
        return [{ text: `rank ${rank.rank}`, className: "name" }, number(ms(sum)), number(percent(sum / t.duration)), { text: parts || "none" }];
      });
      const reported = `Step ${t.step} of the traced steps ${t.first} to ${t.last}, ${ms(t.duration)}. Drag to zoom, double-click to see all.` +
        (t.ranks_left_out > 0 ? ` ${t.ranks.length} of ${t.ranks.length + t.ranks_left_out} ranks are drawn.` : "");
      const card = block(`Timeline of one step${many ? `: ${run.name}` : ""}`, [
        el("div", { className: "dim", textContent: reported }), plot, keys,
        table([{ text: "rank" }, { text: "exposed", className: "number" }, { text: "of the step", className: "number" }, { text: "waiting for" }], sums)]);
      card.id = `timeline-${runs.indexOf(run)}`;
      add(card, true);
      charts.push({ draw, showAt: () => {} });
    }
  };

  const addEvents = () => {
    const rows = [];
    for (const run of runs) {
      for (const mark of run.marks) rows.push({ run, ...mark });
    }
    if (rows.length === 0) return;
    const kLongest = 500;
    const left = rows.length - kLongest;
    const cells = rows.slice(0, kLongest).map((row) => [
      ...(many ? [{ node: runName(row.run), className: "name" }] : []), number(`step ${row.step.toLocaleString("en")}`),
      { text: row.time ? new Date(row.time * 1000).toISOString().slice(0, 19).replace("T", " ") : "", className: "time" }, { node: markText(row.run, row, false) }]);
    const heads = [...(many ? [{ text: "run" }] : []), { text: "step", className: "number" }, { text: "time (UTC)" }, { text: "what" }];
    add(block("Events", [el("div", { className: "events", tabIndex: 0 }, [table(heads, cells, false)]),
      ...(left > 0 ? [el("div", { className: "dim", textContent: `${left} more are in metrics.jsonl and warnings.jsonl.` })] : [])]), true);
  };

  const addOptions = () => {
    const known = runs.map((run) => ({ ...(run.setup.options ?? {}), ranks: run.setup.ranks, device: run.setup.device_name ?? run.setup.device, precision: run.setup.precision, build: run.setup.build }));
    const names = [...new Set(known.flatMap((options) => Object.keys(options)))];
    const text = (value) => (value === undefined || value === null ? "unknown" : String(value));
    if (many) {
      const differing = names.filter((name) => new Set(known.map((options) => text(options[name]))).size > 1);
      const heads = [{ text: "option" }, ...runs.map((run) => ({ text: run.name }))];
      const rows = differing.map((name) => [{ text: name, className: "name" }, ...known.map((options) => ({ text: text(options[name]) }))]);
      const card = block("Options that differ", [rows.length > 0 ? el("div", { className: "scroll" }, [table(heads, rows)]) : el("div", { className: "dim", textContent: "None: these runs have the same options." })]);
      card.id = "differences";
      add(card, true);
    }
    const heads = [{ text: "option" }, ...runs.map((run) => ({ text: run.name }))];
    const rows = names.map((name) => [{ text: name, className: "name" }, ...known.map((options) => ({ text: text(options[name]) }))]);
    if (rows.length > 0) add(el("section", { className: "card" }, [el("details", {}, [el("summary", { textContent: "All options" }), el("div", { className: "scroll" }, [table(heads, rows)])])]), true);
  };

  // ---- head and controls

  const addControls = () => {
    document.getElementById("title").textContent = many ? `${runs.length} runs` : runs[0].name;
    document.getElementById("made").textContent = `${data.tool}, ${data.made}${data.renew_seconds > 0 ? `, renewed every ${data.renew_seconds} s` : ""}. Drag over a curve or pinch to zoom, double-click or 0 to see all.`;
    const theme = el("button", { type: "button", textContent: "dark / light" });
    const root = document.documentElement;
    const prefers = window.matchMedia("(prefers-color-scheme: dark)");
    let chosen = null;
    const setTheme = () => { root.dataset.theme = chosen ?? (prefers.matches ? "dark" : "light"); };
    try {
      chosen = localStorage.getItem("tessera-theme");
    } catch (_) { /* a page from a file may have no storage */ }
    theme.onclick = () => {
      chosen = root.dataset.theme === "dark" ? "light" : "dark";
      try {
        localStorage.setItem("tessera-theme", chosen);
      } catch (_) { /* as above */ }
      setTheme();
    };
    prefers.addEventListener("change", setTheme);
    setTheme();
    const axis = el("select", { id: "axis" }, [["step", "steps"], ["tokens", "tokens"], ["hours", "hours in steps"]].map(([value, text]) => el("option", { value, textContent: text })));
    axis.onchange = () => {
      view.axis = axis.value;
      resetZoom();
    };
    const smoothing = el("input", { type: "range", min: 0, max: 100, value: 40, id: "smoothing" });
    const weightOf = () => 0.1 * (Number(smoothing.value) / 100) ** 2;  // share of the steps
    view.smoothing = weightOf();
    smoothing.oninput = () => {
      view.smoothing = weightOf();
      drawAll();
    };
    const reset = el("button", { type: "button", textContent: "see all" });
    reset.onclick = resetZoom;
    const marks = el("span", { className: "keys" }, Object.entries(kMarkNames).map(([kind, name]) => {
      const icon = shape("svg", { viewBox: "-6 -6 12 12", style: "width:12px;height:12px" });
      icon.append(shape("path", { d: kMarkShapes[kind], fill: kind === "error" ? "none" : `var(--${kind})`, stroke: `var(--${kind})`, "stroke-width": kind === "error" ? 2 : 0.5 }));
      return el("span", {}, [icon, name]);
    }));
    const controls = [el("label", {}, ["over ", axis]), el("label", {}, ["smoothing ", smoothing]), reset, theme];
    if (many) {
      controls.push(el("div", { className: "legend" }, runs.map((run) => {
        const box = el("input", { type: "checkbox", checked: true });
        box.onchange = () => {
          run.shown = box.checked;
          drawAll();
        };
        return el("label", {}, [box, chip(run.colour), run.name]);
      })));
    }
    document.getElementById("controls").replaceChildren(...controls, marks);
  };

  // A page that is written again and again is read again, where its reader left off: from its file, not from a network.
  const kKept = `tessera-view:${location.pathname}`;
  const keepView = () => {
    const [axis, smoothing] = ["axis", "smoothing"].map((id) => document.getElementById(id).value);
    const open = [...document.querySelectorAll("details")].map((each) => each.open);
    const hidden = runs.filter((run) => !run.shown).map((run) => run.name);
    const kept = { axis, smoothing, from: view.from, to: view.to, open, hidden, logs: charts.map((chart) => chart.log ?? null), scroll: scrollY };
    try {
      sessionStorage.setItem(kKept, JSON.stringify(kept));
    } catch (_) { /* a page from a file may have no storage */ }
  };
  const keptView = () => {
    try {
      const kept = JSON.parse(sessionStorage.getItem(kKept));
      sessionStorage.removeItem(kKept);
      return kept;
    } catch (_) {
      return null;
    }
  };
  const restoreView = (kept) => {
    if (!kept) return;
    document.getElementById("axis").value = view.axis = kept.axis;
    document.getElementById("smoothing").value = kept.smoothing;
    document.getElementById("smoothing").oninput();
    [view.from, view.to] = [kept.from, kept.to];
    for (const run of runs) run.shown = !kept.hidden.includes(run.name);
    document.querySelectorAll(".legend input").forEach((box, i) => { box.checked = runs[i].shown; });
    document.querySelectorAll("details").forEach((each, i) => { each.open = kept.open[i] ?? each.open; });
    charts.forEach((chart, i) => {
      if (typeof kept.logs[i] !== "boolean" || chart.log === kept.logs[i]) return;
      chart.log = kept.logs[i];
      chart.logButton.setAttribute("aria-pressed", String(chart.log));
    });
  };
  const renew = () => {
    let isHeld = false;  // a drag is not cut short
    addEventListener("pointerdown", () => { isHeld = true; });
    for (const kind of ["pointerup", "pointercancel"]) addEventListener(kind, () => { isHeld = false; });
    setInterval(() => {
      if (isHeld) return;
      keepView();
      location.reload();
    }, 1000 * data.renew_seconds);
  };

  cards.replaceChildren();
  addControls();
  addSummary();
  addCurves();
  addTimes();
  addTimeline();
  addMemory();
  addEvents();
  addOptions();
  const kept = keptView();
  restoreView(kept);
  drawAll();
  if (kept) scrollTo(0, kept.scroll);
  if (data.renew_seconds > 0) renew();
  let width = document.body.clientWidth;
  new ResizeObserver(() => {
    if (document.body.clientWidth === width) return;
    width = document.body.clientWidth;
    drawAll();
  }).observe(document.body);
  document.documentElement.dataset.ready = "true";
})();
