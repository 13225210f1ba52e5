"use strict";
(() => {
  const one = (selector, from = document) => from.querySelector(selector);
  const all = (selector, from = document) => [...from.querySelectorAll(selector)];

  // Light and dark: the system's choice unless the reader makes one.
  const theme = one("#theme");
  theme.addEventListener("click", () => {
    const root = document.documentElement;
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
  });

  // Values at the points of a figure: with the mouse the nearest one, with the arrow keys one after the other.
  const tip = one("#tip"), dot = one("#dot"), said = one("#said");
  const hide = () => { tip.hidden = dot.hidden = true; };
  // What is the same for all marks of a panel stands in its title or in the caption.
  const quiet = new Set(["parameters", "panel", "kernel_times_origin", "compute_times_origin", "network", "iterations", "seeds"]);
  const words = (data, row) => {
    const cells = data.columns.map((name, i) => [name, row[2][i]]).filter(([name, value]) => value !== "" && !quiet.has(name));
    const title = cells.filter(([name]) => name === "sparsifier").map(([, value]) => data.labels[value + " " + row[2][data.columns.indexOf("parameters")]] || value);
    return title.concat(cells.filter(([name]) => name !== "sparsifier").map(([name, value]) => name + ": " + short(value))).join("\n");
  };
  const short = (value) => (value !== "" && isFinite(value) && !/^-?\d+$/.test(value)) ? String(+Number(value).toPrecision(6)) : value;
  function show(plot, index) {
    const data = plot.data, row = data.points[index], svg = one("svg", plot);
    const at = new DOMPoint(row[0], row[1]).matrixTransform(svg.getScreenCTM());
    plot.at = index;
    tip.textContent = words(data, row);
    tip.hidden = dot.hidden = false;
    dot.style.left = at.x + "px";
    dot.style.top = at.y + "px";
    const box = tip.getBoundingClientRect();
    tip.style.left = Math.max(4, Math.min(at.x + 14, innerWidth - box.width - 4)) + "px";
    tip.style.top = Math.max(4, at.y + 14 + box.height > innerHeight ? at.y - box.height - 14 : at.y + 14) + "px";
    const host = plot.closest("dialog") || document.body;
    if (tip.parentNode !== host) host.append(tip, dot);
  }
  function nearest(plot, event) {
    const svg = one("svg", plot), matrix = svg.getScreenCTM();
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(matrix.inverse());
    let best = -1, least = (14 / matrix.a) ** 2;
    plot.data.points.forEach((row, index) => {
      const distance = (row[0] - at.x) ** 2 + (row[1] - at.y) ** 2;
      if (distance < least) { best = index; least = distance; }
    });
    return best;
  }
  function listen(plot) {
    if (!plot.data.points.length) return;
    plot.addEventListener("pointermove", (event) => {
      const index = plot.dragged ? -1 : nearest(plot, event);
      if (index < 0) hide(); else show(plot, index);
    });
    plot.addEventListener("pointerleave", hide);
    plot.addEventListener("blur", hide);
    plot.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && !tip.hidden && !plot.closest("dialog")) { hide(); return; }
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step || event.shiftKey) return;
      event.preventDefault();
      const count = plot.data.points.length;
      show(plot, plot.at === undefined ? (step > 0 ? 0 : count - 1) : (plot.at + step + count) % count);
      said.textContent = tip.textContent;
    });
  }
  addEventListener("scroll", hide, { passive: true });
  addEventListener("resize", hide);

  // The figure in full size: wheel, + and - zoom, drag and shift + arrows move, 0 resets.
  const dialog = one("#zoom"), stage = one("#stage");
  function zoomable(plot) {
    const svg = one("svg", plot), start = svg.viewBox.baseVal;
    const home = [start.x, start.y, start.width, start.height];
    let view = [...home];
    const apply = () => { svg.setAttribute("viewBox", view.join(" ")); hide(); };
    const zoom = (factor, x = view[0] + view[2] / 2, y = view[1] + view[3] / 2) => {
      const width = Math.min(home[2], Math.max(home[2] / 40, view[2] * factor)), real = width / view[2];
      view = [x - (x - view[0]) * real, y - (y - view[1]) * real, width, view[3] * real];
      apply();
    };
    const move = (x, y) => { view[0] += x * view[2]; view[1] += y * view[3]; apply(); };
    const reset = () => { view = [...home]; apply(); };
    plot.addEventListener("wheel", (event) => {
      event.preventDefault();
      const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
      zoom(event.deltaY < 0 ? 1 / 1.2 : 1.2, at.x, at.y);
    }, { passive: false });
    plot.addEventListener("pointerdown", (event) => { plot.dragged = [event.clientX, event.clientY]; plot.setPointerCapture(event.pointerId); });
    plot.addEventListener("pointermove", (event) => {
      if (!plot.dragged) return;
      const scale = svg.getScreenCTM().a;
      view[0] -= (event.clientX - plot.dragged[0]) / scale;
      view[1] -= (event.clientY - plot.dragged[1]) / scale;
      plot.dragged = [event.clientX, event.clientY];
      apply();
    });
    plot.addEventListener("pointerup", () => { plot.dragged = null; });
    plot.addEventListener("keydown", (event) => {
      const key = event.shiftKey && event.key.startsWith("Arrow") ? "Shift" + event.key : event.key;
      const action = { "+": () => zoom(1 / 1.3), "=": () => zoom(1 / 1.3), "-": () => zoom(1.3), "0": reset, ShiftArrowLeft: () => move(-0.1, 0), ShiftArrowRight: () => move(0.1, 0),
        ArrowUp: () => move(0, -0.1), ArrowDown: () => move(0, 0.1) }[key];
      if (action) { event.preventDefault(); action(); }
    });
    one("#in").onclick = () => zoom(1 / 1.3);
    one("#out").onclick = () => zoom(1.3);
    one("#home").onclick = reset;
  }
  one("#close").addEventListener("click", () => dialog.close());
  dialog.addEventListener("close", () => { hide(); document.body.append(tip, dot); stage.replaceChildren(); });

  for (const figure of all("figure")) {
    const plot = one(".plot", figure);
    plot.data = JSON.parse(one("script", figure).textContent);
    listen(plot);
    one(".open", figure).addEventListener("click", () => {
      const copy = plot.cloneNode(true);
      copy.data = plot.data;
      stage.replaceChildren(copy);
      one("#what").textContent = plot.getAttribute("aria-label");
      listen(copy);
      zoomable(copy);
      dialog.showModal();
      copy.focus();
    });
    const csv = () => [plot.data.columns, ...plot.data.rows || [], ...plot.data.points.map((row) => row[2])];
    one(".save", figure).addEventListener("click", () => {
      const quote = (cell) => /[",\n]/.test(cell) ? '"' + cell.replaceAll('"', '""') + '"' : cell;
      const link = document.createElement("a");
      link.href = URL.createObjectURL(new Blob([csv().map((row) => row.map(quote).join(",") + "\n").join("")], { type: "text/csv" }));
      link.download = figure.id + ".csv";
      link.click();
      URL.revokeObjectURL(link.href);
    });
  }

  // Tables: a column's button sorts by it; every word of the filter must occur in a row, every choice must match.
  for (const box of all(".table")) {
    const body = one("tbody", box), rows = all("tr", body), count = one(".count", box), text = one("input", box), choices = all("select", box);
    const value = (row, column) => { const cell = row.cells[column]; return cell.dataset.v ?? cell.textContent; };
    const filter = () => {
      const words = text ? text.value.toLowerCase().split(/\s+/).filter(Boolean) : [];
      let shown = 0;
      for (const row of rows) {
        const content = row.textContent.toLowerCase();
        const keep = words.every((word) => content.includes(word)) && choices.every((choice) => !choice.value || row.cells[choice.dataset.column].textContent === choice.value);
        row.hidden = !keep;
        shown += keep;
      }
      if (count) count.textContent = shown + " of " + rows.length + " rows";
    };
    if (text) text.addEventListener("input", filter);
    choices.forEach((choice) => choice.addEventListener("change", filter));
    all("thead th", box).forEach((head, column) => one("button", head).addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      all("thead th", box).forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const numbers = head.classList.contains("n");
      const sorted = rows.map((row, index) => [value(row, column), index, row]).sort((a, b) => {
        // Empty cells stay at the end whichever way.
        if (a[0] === "" || b[0] === "") return (a[0] === "") - (b[0] === "") || a[1] - b[1];
        const order = numbers ? a[0] - b[0] : a[0] < b[0] ? -1 : a[0] > b[0] ? 1 : 0;
        return (down ? -order : order) || a[1] - b[1];
      });
      body.append(...sorted.map((entry) => entry[2]));
    }));
    filter();
  }
})();
