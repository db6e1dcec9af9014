"use strict";
(() => {
  const data = JSON.parse(document.getElementById("trace").textContent);
  const look = JSON.parse(document.getElementById("look").textContent);
  const tip = document.getElementById("tip");
  const figures = [...document.querySelectorAll("figure")];
  const known = data.views.flatMap((view) => view.scores.flat()).filter((score) => score !== null).sort((a, b) => b - a);
  let mode = "kept";

  const hex = (colour) => [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
  const stops = look.ramp.map(hex);

  function colour(score) {
    if (score === null) return look.nothing;
    const inside = Math.min(Math.max(score, look.low), look.high);
    const at = (Math.log(inside / look.low) / Math.log(look.high / look.low)) * (stops.length - 1);
    const low = Math.min(Math.floor(at), stops.length - 2);
    return `rgb(${stops[low].map((from, i) => Math.round(from + (stops[low + 1][i] - from) * (at - low)))})`;
  }

  function draw(figure, view) {
    const canvas = figure.querySelector("canvas"), zoom = window.devicePixelRatio || 1;
    const [width, height] = [canvas.clientWidth, canvas.clientHeight].map((side) => Math.max(1, Math.round(side * zoom)));
    canvas.width = width;
    canvas.height = height;
    figure.querySelector("img")?.style.setProperty("filter", mode === "kept" ? "saturate(.95)" : "none");
    const pen = canvas.getContext("2d"), rows = view.kept.length, columns = view.kept[0].length;
    if (mode === "picture") return;
    const x = (column) => Math.ceil((column * width) / columns), y = (row) => Math.ceil((row * height) / rows);
    const on = (row, column) => Boolean(view.kept[row]?.[column]);
    view.kept.forEach((line, row) => line.forEach((kept, column) => {
      const box = [x(column), y(row), x(column + 1) - x(column), y(row + 1) - y(row)];
      if (mode === "score") pen.fillStyle = colour(view.scores[row][column]);
      if (mode === "score" || !kept) {
        if (mode === "kept") pen.fillStyle = "rgba(13, 14, 18, .78)";
        pen.fillRect(...box);
      }
    }));
    const line = Math.max(1, Math.round(Math.min(width / columns, height / rows) < 14 * zoom ? zoom : 2 * zoom));
    pen.fillStyle = mode === "score" ? "#ffffff" : look.kept;
    view.kept.forEach((cells, row) => cells.forEach((kept, column) => {
      if (!kept) return;
      const [left, top, right, bottom] = [x(column), y(row), x(column + 1), y(row + 1)];
      if (!on(row, column - 1)) pen.fillRect(left, top, line, bottom - top);
      if (!on(row, column + 1)) pen.fillRect(right - line, top, line, bottom - top);
      if (!on(row - 1, column)) pen.fillRect(left, top, right - left, line);
      if (!on(row + 1, column)) pen.fillRect(left, bottom - line, right - left, line);
    }));
  }

  const redraw = () => figures.forEach((figure, index) => draw(figure, data.views[index]));

  function say(event, lines) {
    tip.replaceChildren(...lines.flatMap((line, index) => {
      const part = document.createElement(index ? "span" : "b");
      part.textContent = line;
      return index ? [document.createElement("br"), part] : [part];
    }));
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(event.clientX + 16, innerWidth - box.width - 8))}px`;
    tip.style.top = `${Math.max(4, event.clientY + 20 + box.height > innerHeight ? event.clientY - box.height - 12 : event.clientY + 20)}px`;
  }

  figures.forEach((figure, index) => {
    const view = data.views[index], frame = figure.querySelector(".frame");
    frame.addEventListener("pointermove", (event) => {
      const box = frame.getBoundingClientRect(), rows = view.kept.length, columns = view.kept[0].length;
      const row = Math.min(rows - 1, Math.max(0, Math.floor(((event.clientY - box.top) / box.height) * rows)));
      const column = Math.min(columns - 1, Math.max(0, Math.floor(((event.clientX - box.left) / box.width) * columns)));
      const score = view.scores[row][column];
      if (!view.has_token[row][column]) return say(event, ["no token here"]);
      const lines = [view.kept[row][column] ? "kept" : "pruned", `row ${row + 1}, column ${column + 1}`];
      if (score !== null) {
        const rank = known.findIndex((other) => other <= score) + 1;
        lines.push(`${look.score} ${score.toFixed(2)} x the mean cell`, `rank ${rank} of ${known.length}`);
      }
      say(event, lines);
    });
    frame.addEventListener("pointerleave", () => { tip.hidden = true; });
  });

  document.querySelectorAll(".switch button").forEach((button) => button.addEventListener("click", () => {
    mode = button.dataset.mode;
    document.querySelectorAll(".switch button").forEach((other) => other.setAttribute("aria-pressed", String(other === button)));
    redraw();
  }));

  for (const [name, tell] of [
    ["round", (i) => i ? [`round ${i}`, `${data.rounds[i - 1].accepted} accepted of ${data.rounds[i - 1].drafted} drafted`,
      `${data.rounds[i - 1].emitted} tokens emitted`] : ["first token", "from the prefill of the target"]],
    ["view", (i) => { const v = data.views[i], k = v.kept.flat(), t = v.has_token.flat(), sum = (a) => a.reduce((x, y) => x + y, 0);
      return [v.when ? `${v.name}, ${v.when}` : v.name, `${sum(k)} of ${sum(t)} cells kept`]; }],
  ]) {
    const parts = [...document.querySelectorAll(`[data-${name}]`)];
    parts.forEach((part) => {
      const index = Number(part.dataset[name]), same = parts.filter((other) => other.dataset[name] === part.dataset[name]);
      part.addEventListener("pointerenter", () => same.forEach((other) => other.classList.add("here")));
      part.addEventListener("pointerleave", () => { same.forEach((other) => other.classList.remove("here")); tip.hidden = true; });
      if (part.tagName !== "FIGURE") part.addEventListener("pointermove", (event) => say(event, tell(index)));
    });
  }

  new ResizeObserver(redraw).observe(document.querySelector(".views"));
  redraw();
})();
