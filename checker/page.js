/** What the page shows. All work is done in a worker, whose text and module are in the page; names are shown as text alone. */
const $ = (id) => document.getElementById(id);
const MAX_ENTRIES = 10_000, MAX_DEPTH = 9, MAX_SHOWN = 2000, MAX_LISTED = 50;
const STATES = {
  holds: ["good", "holds"], fails: ["bad", "does not hold"], now: ["live", "being checked"], unasked: ["", "not asked"],
  unknown: ["", "not reached"],
};
const UNITS = {
  bytes: ["bytes", "kB", "MB", "GB", "TB"],
  terms: ["terms", "thousand terms", "million terms", "billion terms", "trillion terms"],
  programs: ["programs"],
};

/** Groups of files by path: all that is to be checked is one, and so is each thing from which that may come. */
const dropped = { main: [], base: [] };
const module = Uint8Array.from(atob($("module").textContent), (c) => c.charCodeAt(0));
const script = URL.createObjectURL(new Blob([$("worker").textContent], { type: "text/javascript" }));
/** What the worker said so far; the milliseconds that it worked; until when these are counted. */
let worker = null, seen = {}, spent = 0, until = 0;

/** An element. Its text is shown without what cannot be seen or turns its direction. */
function made(tag, className, ...inside) {
  const element = document.createElement(tag), shown = (text) => text.slice(0, MAX_SHOWN).replace(/(?![ \n])[\p{C}\p{Z}]/gu, "?");
  element.className = className;
  element.append(...inside.map((one) => (one instanceof Node ? one : shown(one))));
  return element;
}

function amount(count, unit) {
  const units = UNITS[unit], power = Math.min(Math.floor(Math.log10(Math.max(count, 1)) / 3), units.length - 1);
  return `${(count / 1000 ** power).toFixed(power ? 1 : 0)} ${units[power]}`;
}

function duration(seconds) {
  if (seconds < 90) return `${Math.ceil(seconds)} s`;
  return seconds < 5400 ? `${Math.round(seconds / 60)} min` : `${(seconds / 3600).toFixed(1)} h`;
}

// ---------------------------------------------------------------- what the worker says

const items = (lines) => lines.map((line) => made("li", "", line));
const facts = (rows) => rows.map(([name, value]) => made("div", "", made("dt", "", name), made("dd", "", made("code", "", value))));
const tag = ([kind, text]) => made("span", `tag ${kind}`, text);

/** The name and the rest of a line of `tiebreak audit`, whose names fill ten characters. */
const lineParts = (line) => /^ *(?=[a-z ]{10} )([a-z]+(?: by)?) +(.+)$/.exec(line)?.slice(1) ?? ["", line];

/** A stage on the way to the first difference: which of how many, and what it is. */
function stage([position, total, title, detail, code = ""]) {
  const element = $("a-stage").content.cloneNode(true), found = element.querySelector(".found"), width = Math.max(1000 / total, 7);
  const from = Math.min(1000 * position / total, 1000 - width);
  found.setAttribute("x", from);
  found.setAttribute("width", width);
  element.querySelector(".fan").setAttribute("points", `${from},0 ${from + width},0 1000,10 0,10`);
  element.querySelector(".note").append(made("h3", "", title), made("p", "", detail), made("code", "", code));
  return element;
}

function showPlace({ step, what, differing, entries, instruction, of, operation, origin, element, kind, at, ...claims }) {
  for (const [who, other] of [["got", "expected"], ["expected", "got"]]) {
    const { bits, decimal } = claims[who], isApart = (c, k) => c !== claims[other].bits[k];
    $(who).replaceChildren(...[...bits].map((c, k) => (isApart(c, k) ? made("mark", who === "got" ? "" : "right", c) : c)));
    $(`${who}-decimal`).textContent = decimal;
  }
  if (what === "loss") return [stage([Number(step) - 1, seen.last, `Step ${step} of ${seen.last}`, "its loss differs"])];
  const elements = (kind.match(/\d+(?=[,\]])/g) ?? []).reduce((all, dim) => all * Number(dim), 1);
  return [
    [Number(step) - 1, seen.last, `Step ${step} of ${seen.last}`, `${differing} of ${entries} entries of the state differ after it`],
    [instruction, of, `Instruction ${instruction} of ${of}`, operation, origin],
    [element, elements, `Element ${element} of ${elements}`, `at [${at.join(", ")}] of ${kind}, ${what}`],
  ].map(stage);
}

function showRow({ program, root, equal, problem, milliseconds }) {
  const state = !root ? ["bad", "not computed"] : equal ? ["good", "as expected"] : ["bad", "another root"];
  const cells = [made("code", "", root ?? ""), tag(state), root ? `${(milliseconds / 1000).toFixed(1)} s` : ""];
  const row = [...$("programs").rows].find(({ cells: [name] }) => name.textContent === program);
  cells.forEach((cell, k) => row.cells[k + 1].replaceChildren(cell));
  if (problem) row.cells[1].append(made("p", "bad", problem));
}

function emptyRow(program) {
  const row = $("a-row").content.firstElementChild.cloneNode(true);
  row.cells[0].append(made("strong", "", program));
  return row;
}

function progressWords({ done, total, unit, at, loss }) {
  const now = performance.now(), words = [at, `${amount(done, unit)} of ${amount(total, unit)}`];
  spent += now - until;
  until = now;
  $("bar").value = done / total;
  if (unit !== "programs") words.push(`${amount(1000 * done / spent, unit)} a second`);
  if (done && spent > 1000) words.push(`about ${duration((total - done) / done * spent / 1000)} left`);
  if (loss !== undefined) words.push(`loss ${loss.toPrecision(5)}`);
  return [words.filter(Boolean).join(" · ")];
}

/** How what the worker says is shown: the content of the element of that id. */
const SHOW = {
  title: (title) => [made("span", seen.tone, title)],
  said: (said) => [made("span", "", said)],
  proves: items, open: items, facts, place: showPlace, progress: progressWords,
  lines: (lines) => facts((seen.place ? lines.slice(0, 2) : lines).map(lineParts)), // the rest is what `place` shows
  plan: ({ wanted, total, due, work, memory }) => {
    $("pause").textContent = "Start";
    return [`${wanted.length} of ${total} signed segments are replayed: ${due} steps of ${amount(Number(work), "terms")} each. `
      + `That takes ${amount(memory, "bytes")} of memory.`];
  },
  programs: (names) => names.map(emptyRow),
  statement: ({ address, text }) => {
    $("save").href = URL.createObjectURL(new Blob([text], { type: "application/json" }));
    return [`0x${address}`];
  },
};

/** Shows the numbered checks of a certificate as far as they have come. */
function showChecks({ asked, passed = [], failed = 0, isOver }) {
  const now = asked.find((n) => !passed.includes(n));
  [...$("checks").children].forEach((item, index) => {
    const n = index + 1, open = !asked.includes(n) ? "unasked" : n === now && !isOver ? "now" : "unknown";
    item.dataset.state = passed.includes(n) ? "holds" : n === failed ? "fails" : open;
    item.querySelector(".tag")?.remove();
    item.append(tag(STATES[item.dataset.state]));
  });
}

/** Adds to what is shown. Parts of the page of which nothing was said are hidden. */
function show(said) {
  Object.assign(seen, said, said.isOver && { isWorking: undefined });
  for (const [key, value] of Object.entries(said)) if (SHOW[key]) $(key).replaceChildren(...SHOW[key](value));
  if (said.row) showRow(said.row);
  if (seen.asked) showChecks(seen);
  if (said.kind) document.body.dataset.kind = said.kind;
  if (said.kind === "run") $("options").open = true;
  if (seen.isOver) worker?.terminate();
  for (const part of document.querySelectorAll("[data-part]")) part.hidden = seen[part.dataset.part] === undefined;
  const { title, progress, plan } = seen, share = progress ? `${Math.floor(10 * progress.done / progress.total)}0% is done.` : "Checking.";
  const status = title ? `${title}. ${seen.said ?? ""}`.slice(0, 300) : plan && !progress ? $("plan").textContent : share;
  if ($("status").textContent !== status) $("status").textContent = status;
}

const showFault = (said) => show({ tone: "soft", title: "This cannot be checked", said, isOver: true });

// ---------------------------------------------------------------- beginning and stopping

function stop(said) {
  worker?.terminate();
  worker = null;
  seen = {};
  show({});
  $("status").textContent = said;
}

/** Begins again with all that was dropped. */
function start() {
  stop("");
  if (!dropped.main.length) return;
  worker = new Worker(script);
  worker.onmessage = ({ data }) => show(data);
  worker.onerror = (event) => showFault(event.message ?? "the worker did not start");
  $("bar").value = spent = 0;
  until = performance.now();
  $("pause").textContent = "Pause";
  $("progress").textContent = "";
  show({ isWorking: true });
  const options = {
    require: $("require").value.split(/[\s,]+/).filter(Boolean), resaved: $("resaved").checked, others: $("others").checked,
    sample: Number.parseInt($("sample").value, 10) || undefined, seed: $("seed").value || undefined,
  };
  const [main, ...bases] = [...dropped.main, ...dropped.base].map((group) => [...group]);
  worker.postMessage({ module, start: { main, bases, options } });
}

// ---------------------------------------------------------------- what was dropped

const topOf = (path) => path.split("/")[0];

/** What lies at the top of a group, with a button that removes it. */
function listed(name, group) {
  return [...Map.groupBy(group.keys(), topOf)].slice(0, MAX_LISTED).map(([top, paths]) => {
    const bytes = paths.reduce((sum, path) => sum + (group.get(path)?.size ?? 0), 0), remove = made("button", "plain", "Remove");
    const count = paths[0] === top ? "" : `${paths.length} files, `;
    remove.type = "button";
    remove.setAttribute("aria-label", `Remove ${top}`);
    remove.onclick = () => {
      for (const path of paths) group.delete(path);
      changed(name);
    };
    return made("li", "", made("bdi", "", top, made("small", "", count + amount(bytes, "bytes"))), remove);
  });
}

function changed(name) {
  dropped[name] = dropped[name].filter((group) => group.size);
  const list = document.querySelector(`[data-place="${name}"] .dropped`);
  list.replaceChildren(...dropped[name].flatMap((group) => listed(name, group)));
  start();
}

/** Adds files by path to the one group of what is checked; of what that comes from, each folder is a group of its own. */
function add(name, entries) {
  if (name === "main") dropped.main = [new Map([...dropped.main[0] ?? [], ...entries])];
  else {
    const groups = Map.groupBy(entries, ([path, file]) => (file && !path.includes("/") ? "" : topOf(path)));
    dropped.base.push(...[...groups.values()].map((group) => new Map(group)));
  }
  changed(name);
}

/** All files of dropped folders, by path; an empty folder, or one that is too deep, has null. */
async function walk(entries, inside = "", found = []) {
  for (const entry of entries) {
    const path = inside + entry.name, before = found.length, isDeep = path.split("/").length > MAX_DEPTH;
    if (found.length > MAX_ENTRIES) break;
    if (entry.isFile) {
      found.push([path, await new Promise((take, fail) => { entry.file(take, fail); })]);
      continue;
    }
    const reader = entry.createReader(), read = () => new Promise((take, fail) => { reader.readEntries(take, fail); });
    for (let some = []; !isDeep && found.length <= MAX_ENTRIES; await walk(some, `${path}/`, found)) {
      some = await read();
      if (!some.length) break;
    }
    if (found.length === before) found.push([path, null]);
  }
  return found;
}

const pathed = (files) => Array.from({ length: Math.min(files.length, MAX_ENTRIES + 1) }, (_, k) => (
  [files[k].webkitRelativePath || files[k].name, files[k]]));

for (const place of document.querySelectorAll(".drop")) {
  const name = place.dataset.place, over = (on) => place.classList.toggle("over", on);
  place.ondragover = () => over(true);
  place.ondragleave = () => over(false);
  place.ondrop = async ({ dataTransfer: { items: all, files } }) => {
    over(false);
    const roots = [...all].map((item) => item.webkitGetAsEntry()).filter(Boolean);
    try {
      add(name, roots.length ? await walk(roots) : pathed(files));
    } catch (error) {
      showFault(`what was dropped cannot be read: ${error.message}`);
    }
  };
  for (const input of place.querySelectorAll("input")) {
    input.onchange = () => {
      add(name, pathed(input.files));
      input.value = "";
    };
  }
}
// A file that is dropped beside the places must not replace the page.
for (const type of ["dragover", "drop"]) addEventListener(type, (event) => event.preventDefault());
for (const input of document.querySelectorAll(".options input")) input.onchange = start;
$("stop").onclick = () => stop("Stopped.");
$("pause").onclick = () => {
  const pause = $("pause").textContent === "Pause";
  worker.postMessage({ pause });
  $("pause").textContent = pause ? "Go on" : "Pause";
  until = performance.now();
};
document.querySelector(".places").hidden = false;
$("hub").hidden = location.pathname !== "/check";
