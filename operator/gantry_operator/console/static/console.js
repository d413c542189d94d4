// Small behaviours that HTML does not have: theme, age of figures, commands that follow a form, keys. No eval, no network.
"use strict";
(function () {
  const root = document.documentElement;
  const OLD_MS = 8000;

  // Theme: "light" or "dark" by choice, else as the system has it.
  const kept = (() => { try { return localStorage.getItem("theme"); } catch { return null; } })();
  if (kept === "light" || kept === "dark") root.dataset.theme = kept;
  function dark() {
    return root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  }
  function labelTheme() {
    const button = document.getElementById("theme");
    if (!button) return;
    button.textContent = dark() ? "Light" : "Dark";
    button.setAttribute("aria-label", `${button.textContent} colours`);
  }

  // Figures that stopped: the console itself may be gone.
  let last = Date.now();
  function showAge() {
    const live = document.body.dataset.live === "yes";
    const lost = live && Date.now() - last > OLD_MS;
    document.body.classList.toggle("lost", lost);
    const box = document.getElementById("lost");
    if (!box) return;
    box.hidden = !lost;
    if (lost) box.textContent = `No new figures for ${Math.round((Date.now() - last) / 1000)} s: the console does not answer. What you see is old.`;
  }

  // Times: UTC as the server wrote them, or local by choice.
  let local = (() => { try { return localStorage.getItem("zone") === "local"; } catch { return false; } })();
  function two(number, width = 2) { return String(number).padStart(width, "0"); }
  function localTime(ms) {
    const t = new Date(ms);
    return `${t.getFullYear()}-${two(t.getMonth() + 1)}-${two(t.getDate())} ` +
      `${two(t.getHours())}:${two(t.getMinutes())}:${two(t.getSeconds())}.${two(t.getMilliseconds(), 3)}`;
  }
  function showTimes() {
    document.querySelectorAll("time[data-ms]").forEach((time) => {
      const ms = Number(time.dataset.ms);
      if (!(ms > 0)) return;
      time.textContent = local ? localTime(ms) : new Date(ms).toISOString().replace("T", " ").replace("Z", "");
    });
    document.querySelectorAll("[data-local]").forEach((span) => {
      const ms = Number(span.dataset.local);
      if (ms > 0) span.textContent = ` · ${localTime(ms)} here`;
    });
    document.querySelectorAll("[data-zone-name]").forEach((span) => { span.textContent = local ? "local" : "UTC"; });
    document.querySelectorAll("[data-zone-button]").forEach((button) => { button.textContent = local ? "UTC" : "Local time"; });
  }

  // A command follows the form above it: {name} is a field's value, [--option {name}] is left out while it is empty and
  // repeated for each word; {=name} is a whole value, and [--option {/name}] is repeated for each line.
  function quoted(text) {
    return /^[A-Za-z0-9_@%+=:,.\/-]+$/.test(text) ? text : "'" + text.replaceAll("'", "'\\''") + "'";
  }
  function showCommand(form) {
    const out = form.querySelector("[data-command]");
    if (!out) return;
    const value = (name) => {
      const field = form.elements[name];
      return field ? String(field.value).trim() : "";
    };
    const parts = { "": /\s+/, "/": /\n/, "=": /$^/ };
    let text = out.dataset.command.replace(/\[([^\]{]*)\{([=/]?)(\w+)\}\]/g, (_, before, how, name) =>
      value(name).split(parts[how]).filter(Boolean).map((word) => before + quoted(word.trim())).join(""));
    text = text.replace(/\{=?(\w+)\}/g, (_, name) => value(name) ? quoted(value(name)) : name.toUpperCase());
    // No line ends within an option. The pieces: text, the space before an option, the option.
    out.replaceChildren(...text.split(/(\s)(--?[A-Za-z][\w-]*)/).map((piece, number) => {
      if (number % 3 !== 2) return piece;
      const option = document.createElement("span");
      option.className = "option";
      option.textContent = piece;
      return option;
    }));
  }
  function showCommands() {
    document.querySelectorAll("form").forEach(showCommand);
  }

  function countChosen() {
    const form = document.getElementById("letters");
    if (!form) return;
    const chosen = form.querySelectorAll("input[name=id]:checked").length;
    const button = document.getElementById("resend-chosen");
    if (button) {
      button.disabled = chosen === 0;
      button.textContent = chosen ? `Resend ${chosen} chosen` : "Resend chosen";
    }
  }

  // A search that has found nothing yet goes on, page by page, until somebody stops it.
  let goingOn = 0;
  function goOn() {
    const at = document.querySelector("[data-goes-on]");
    if (!at) return;
    at.querySelector("[data-stop]").hidden = false;
    goingOn = setTimeout(() => { location.replace(at.dataset.goesOn); }, 100);
  }

  document.addEventListener("click", (event) => {
    const target = event.target.closest("button, [data-copy]");
    if (!target) return;
    if (target.id === "theme") {
      root.dataset.theme = dark() ? "light" : "dark";
      try { localStorage.setItem("theme", root.dataset.theme); } catch { /* private window: only this page */ }
      labelTheme();
      showChart();
    } else if (target.dataset.zoneButton !== undefined) {
      local = !local;
      try { localStorage.setItem("zone", local ? "local" : "utc"); } catch { /* private window: only this page */ }
      showTimes();
      showChart();
    } else if (target.dataset.stop !== undefined) {
      clearTimeout(goingOn);
      window.stop();
      target.hidden = true;
    } else if (target.dataset.copy !== undefined) {
      const code = target.parentElement.querySelector("code");
      if (code && navigator.clipboard) {
        navigator.clipboard.writeText(code.textContent).then(() => {
          target.textContent = "Copied";
          setTimeout(() => { target.textContent = "Copy"; }, 1500);
        });
      }
    }
  });
  document.addEventListener("input", (event) => {
    const form = event.target.form;
    if (form) showCommand(form);
    if (event.target.id === "all") {
      document.querySelectorAll("input[name=id]").forEach((box) => { box.checked = event.target.checked; });
    }
    countChosen();
  });

  // The palette: Ctrl-K, a few letters, Enter. Pages come from the page itself, topics and groups from the console.
  let chosen = 0;
  function offer(rows) {
    const list = document.getElementById("palette-list");
    chosen = 0;
    list.replaceChildren(...rows.map((row, at) => {
      const link = document.createElement("a");
      link.href = row.path;
      link.textContent = row.name;
      if (at === 0) link.setAttribute("aria-current", "true");
      const kind = document.createElement("span");
      kind.textContent = row.kind;
      link.append(kind);
      const item = document.createElement("li");
      item.append(link);
      return item;
    }));
  }
  let asked = 0;
  async function lookFor(text) {
    const number = ++asked;
    const wanted = text.trim().toLowerCase();
    const pages = [...document.querySelectorAll(".side nav a")].map((a) => ({ name: a.textContent.trim(), kind: "page", path: a.href }))
      .filter((page) => page.name.toLowerCase().includes(wanted));
    offer(pages);
    if (!wanted) return;
    try {
      const answer = await fetch(`${document.getElementById("palette").dataset.find}?q=${encodeURIComponent(text)}`);
      if (!answer.ok) return;
      const found = await answer.json();
      if (number !== asked) return;
      offer([...found.map((row) => ({ ...row, path: row.path + encodeURIComponent(row.name) })), ...pages]);
    } catch { /* the console does not answer: the pages are there */ }
  }
  function choose(step) {
    const links = [...document.querySelectorAll("#palette-list a")];
    if (!links.length) return;
    links[chosen].removeAttribute("aria-current");
    chosen = (chosen + step + links.length) % links.length;
    links[chosen].setAttribute("aria-current", "true");
    links[chosen].scrollIntoView({ block: "nearest" });
  }
  document.addEventListener("input", (event) => { if (event.target.id === "palette-input") lookFor(event.target.value); });
  document.addEventListener("keydown", (event) => {
    const palette = document.getElementById("palette");
    if (!palette) return;
    if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
      event.preventDefault();
      if (palette.open) { palette.close(); return; }
      const input = document.getElementById("palette-input");
      input.value = "";
      palette.showModal();
      input.focus();
      lookFor("");
    } else if (palette.open && ["ArrowDown", "ArrowUp", "Enter"].includes(event.key)) {
      event.preventDefault();
      if (event.key !== "Enter") choose(event.key === "ArrowDown" ? 1 : -1);
      else document.querySelector("#palette-list a[aria-current]")?.click();
    }
  });

  // Keys: "/" to the search, "g" and a letter to a page, "?" shows them.
  let before = "";
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const editing = event.target.closest("input, textarea, select");
    if (editing) {
      if (event.key === "Escape") editing.blur();
      return;
    }
    if (before === "g") {
      before = "";
      const link = document.querySelector(`nav a[data-key="${CSS.escape(event.key)}"]`);
      if (link) { event.preventDefault(); link.click(); }
      return;
    }
    if (event.key === "/") {
      const search = document.querySelector("input[type=search]");
      if (search) { event.preventDefault(); search.focus(); search.select(); }
    } else if (event.key === "?") {
      const help = document.getElementById("keys");
      if (help) help.open ? help.close() : help.showModal();
    }
    before = event.key === "g" ? "g" : "";
  });

  // The chart. New figures of the page are new data for the same plot, so a reader keeps the point at hand.
  let plot = null;
  // A canvas knows neither variables nor light-dark(): the browser computes the colour of an element.
  function colour(name) {
    const probe = document.createElement("i");
    probe.style.color = `var(${name})`;
    document.body.append(probe);
    const found = getComputedStyle(probe).color;
    probe.remove();
    return found;
  }
  function shortened(value) {
    if (value === null || value === undefined) return "–";
    return value >= 1e6 ? `${(value / 1e6).toFixed(1)}M` : value >= 1e4 ? `${(value / 1e3).toFixed(1)}k` : String(Math.round(value * 10) / 10);
  }
  function makePlot(box, range) {
    const axis = { stroke: colour("--soft"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line"), width: 1 }, font: "12px system-ui, sans-serif" };
    const series = (label, name, dash) => ({ label, stroke: colour(name), width: 1.75, dash, points: { show: false }, value: (_, value) => shortened(value) });
    const zoned = (seconds) => local ? new Date(seconds * 1000) : uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC");
    const made = new uPlot({
      width: box.clientWidth, height: 160, cursor: { drag: { x: false, y: false } },
      tzDate: zoned,
      scales: { x: { range: () => [range.from, range.to] }, y: { range: (_, least, most) => [0, Math.max(1, (most || 0) * 1.1)] } },
      axes: [{ ...axis, space: 80, values: (plot, times, _axis, _space, step) => times.map((at) => uPlot.fmtDate(step < 60 ? "{HH}:{mm}:{ss}" : "{HH}:{mm}")(zoned(at))) }, { ...axis, size: 56, values: (_, values) => values.map(shortened) }],
      series: [{ label: local ? "time" : "UTC", value: "{HH}:{mm}:{ss}" }, series("in", "--series-a"), series("out", "--series-b", [5, 3])],
    }, range.data, box);
    return { made, range, look: `${dark()} ${local}` };
  }
  function showChart() {
    const box = document.getElementById("rates");
    if (!box || !window.uPlot) { plot = null; return; }
    const { from, to, data } = JSON.parse(box.dataset.chart);
    if (plot && plot.look === `${dark()} ${local}`) {
      plot.range.from = from; plot.range.to = to;
      if (!box.contains(plot.made.root)) box.replaceChildren(plot.made.root);
      plot.made.setData(data);
      if (plot.made.width !== box.clientWidth) plot.made.setSize({ width: box.clientWidth, height: 160 });
    } else {
      box.replaceChildren();
      plot = makePlot(box, { from, to, data });
    }
  }
  window.addEventListener("resize", showChart);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", showChart);

  document.addEventListener("htmx:sseMessage", () => { last = Date.now(); showAge(); });
  document.addEventListener("htmx:afterSettle", () => { showCommands(); showTimes(); showChart(); });
  document.addEventListener("DOMContentLoaded", () => {
    labelTheme(); showCommands(); showTimes(); countChosen(); showChart(); goOn();
    // On a phone the pages are one row, of which a part is shown.
    const here = document.querySelector(".side nav [aria-current]");
    if (here) here.scrollIntoView({ block: "nearest", inline: "center" });
    // New figures leave a search alone that somebody types.
    if (window.Idiomorph) Idiomorph.defaults.callbacks.beforeNodeMorphed = (node) => !(node.matches && node.matches("form[role=search], [data-keep]"));
    // The chart's own elements are not in what the server sends.
    if (window.Idiomorph) Idiomorph.defaults.callbacks.beforeNodeRemoved = (node) => !(node.classList && node.classList.contains("uplot"));
    setInterval(showAge, 1000);
  });
})();
