/** What the page shows. All work is done in a worker, whose text and module are in the page; names are shown as text alone. */
const $ = (id) => document.getElementById(id);
const MAX_ENTRIES = 10_000, MAX_DEPTH = 9, MAX_SHOWN = 2000;
const STATES = { holds: ["good", "holds"], fails: ["bad", "does not hold"], now: ["live", "being checked"], unasked: ["", "not asked"], unknown: ["", "not reached"] };

/** @type {{main: Map<string, File | null>, base: Map<string, File | null>}} */
const dropped = { main: new Map(), base: new Map() };
const module = Uint8Array.from(atob($("module").textContent), (c) => c.charCodeAt(0));
const script = URL.createObjectURL(new Blob([$("worker").textContent], { type: "text/javascript" }));
let worker = null;

/** An element with text, without what cannot be seen or turns its direction. */
function made(tag, text, className = "") {
  const element = document.createElement(tag);
  element.className = className;
  element.textContent = text.slice(0, MAX_SHOWN).replace(/(?![ \n])[\p{C}\p{Z}]/gu, "?");
  return element;
}

const size = (bytes) => {
  const power = Math.min(Math.floor(Math.log10(Math.max(bytes, 1)) / 3), 4);
  return `${(bytes / 1000 ** power).toFixed(power ? 1 : 0)} ${["bytes", "kB", "MB", "GB", "TB"][power]}`;
};

/** Shows the numbered checks as far as they have come. */
function showChecks({ asked = [], passed = [], failed = 0 }, isOver) {
  const now = asked.find((n) => !passed.includes(n));
  [...$("checks").children].forEach((item, index) => {
    const n = index + 1;
    const state = passed.includes(n) ? "holds" : n === failed ? "fails" : !asked.includes(n) ? "unasked" : n === now && !isOver ? "now" : "unknown";
    item.dataset.state = state;
    item.querySelector(".tag")?.remove();
    item.append(made("span", STATES[state][1], `tag ${STATES[state][0]}`));
  });
}

function showResult(result) {
  $("work").hidden = true;
  $("holding").hidden = !result.holds;
  $("title").replaceChildren(made("span", result.title, result.holds ? "good" : "bad"));
  $("said").replaceChildren(made("span", result.said ?? ""));
  for (const name of ["proves", "open"]) $(name).replaceChildren(...(result[name] ?? []).map((line) => made("li", line)));
  $("facts").replaceChildren(...(result.facts ?? []).map(([name, value]) => {
    const row = made("div", ""), shown = made("dd", "");
    shown.append(made("code", value));
    row.append(made("dt", name), shown);
    return row;
  }));
  showChecks(result, true);
  $("finding").hidden = false;
  $("status").textContent = `${result.title}. ${result.said ?? ""}`.slice(0, 300);
}

function stop(said) {
  worker?.terminate();
  worker = null;
  $("work").hidden = $("finding").hidden = true;
  $("status").textContent = said;
}

/** Begins again with all that was dropped. */
function start() {
  stop("");
  if (!dropped.main.size) return;
  worker = new Worker(script);
  const seen = { asked: [], passed: [] };
  worker.onmessage = ({ data }) => {
    Object.assign(seen, data);
    if (data.total) {
      $("bar").value = data.done / data.total;
      $("far").textContent = `${size(data.done)} of ${size(data.total)} read`;
    }
    if (data.result) showResult(data.result);
    else if (data.broken) showResult({ holds: false, title: "This cannot be checked", said: data.broken });
    else if (!data.total) showChecks(seen, false);
  };
  worker.onerror = (event) => showResult({ holds: false, title: "This cannot be checked", said: event.message ?? "the worker did not start" });
  $("bar").value = 0;
  $("far").textContent = "";
  $("pause").textContent = "Pause";
  $("work").hidden = false;
  $("status").textContent = "Checking.";
  const require = $("require").value.split(/[\s,]+/).filter(Boolean);
  const options = { require, resaved: $("resaved").checked, others: $("others").checked };
  worker.postMessage({ module, check: { main: [...dropped.main], bases: dropped.base.size ? [[...dropped.base]] : [], options } });
}

/** The list of what lies in a place: each folder and each file at the top, with a button that removes it. */
function showPlace(name) {
  const tops = new Map();
  for (const [path, file] of dropped[name]) {
    const top = path.split("/")[0], [count, bytes] = tops.get(top) ?? [0, 0];
    tops.set(top, [path === top ? 0 : count + 1, bytes + (file?.size ?? 0)]);
  }
  document.querySelector(`[data-place="${name}"] .dropped`).replaceChildren(...[...tops].slice(0, 50).map(([top, [count, bytes]]) => {
    const item = made("li", ""), label = made("bdi", top), remove = made("button", "Remove");
    label.append(made("small", `${count ? `${count} files, ` : ""}${size(bytes)}`));
    remove.type = "button";
    remove.setAttribute("aria-label", `Remove ${top}`);
    remove.onclick = () => {
      for (const path of [...dropped[name].keys()]) if (path.split("/")[0] === top) dropped[name].delete(path);
      showPlace(name);
      start();
    };
    item.append(label, remove);
    return item;
  }));
}

/** @param {Iterable<[string, File | null]>} entries */
function add(name, entries) {
  for (const [path, file] of entries) dropped[name].set(path, file);
  showPlace(name);
  start();
}

/** All files of dropped folders, by path; an empty folder, or one that is too deep, has null. */
async function walk(roots) {
  const found = [], left = roots.map((entry) => [entry, entry.name]);
  while (left.length && found.length <= MAX_ENTRIES) {
    const [entry, path] = left.pop();
    if (entry.isFile) {
      found.push([path, await new Promise((take, fail) => { entry.file(take, fail); })]);
      continue;
    }
    const reader = entry.createReader(), isDeep = path.split("/").length > MAX_DEPTH;
    let count = 0;
    while (!isDeep && left.length <= MAX_ENTRIES) {
      const some = await new Promise((take, fail) => { reader.readEntries(take, fail); });
      if (!some.length) break;
      count += some.length;
      left.push(...some.map((one) => [one, `${path}/${one.name}`]));
    }
    if (!count) found.push([path, null]);
  }
  return found;
}

for (const place of document.querySelectorAll(".drop")) {
  const name = place.dataset.place, over = (on) => place.classList.toggle("over", on);
  place.ondragover = (event) => { event.preventDefault(); over(true); };
  place.ondragleave = () => over(false);
  place.ondrop = async (event) => {
    event.preventDefault();
    over(false);
    const { items, files } = event.dataTransfer, roots = [...items].map((item) => item.webkitGetAsEntry()).filter(Boolean);
    try {
      add(name, roots.length ? await walk(roots) : [...files].map((file) => [file.name, file]));
    } catch (error) {
      showResult({ holds: false, title: "This cannot be checked", said: `what was dropped cannot be read: ${error.message}` });
    }
  };
  for (const input of place.querySelectorAll("input")) {
    input.onchange = () => {
      add(name, [...input.files].slice(0, MAX_ENTRIES + 1).map((file) => [file.webkitRelativePath || file.name, file]));
      input.value = "";
    };
  }
}
// A file that is dropped beside the places must not replace the page.
addEventListener("dragover", (event) => event.preventDefault());
addEventListener("drop", (event) => event.preventDefault());
for (const name of ["require", "resaved", "others"]) $(name).onchange = start;
$("stop").onclick = () => stop("Stopped.");
$("pause").onclick = () => {
  const on = $("pause").textContent === "Pause";
  worker?.postMessage({ pause: on });
  $("pause").textContent = on ? "Go on" : "Pause";
};
document.querySelector(".places").hidden = false;
