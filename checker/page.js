/** What the page shows. A worker, whose text and module are in the page, does all work. Names are shown as text. */
const $ = (id) => document.getElementById(id);
const MAX_ENTRIES = 10_000, MAX_DEPTH = 9, MAX_SHOWN = 2000, MAX_LISTED = 50;
const TONES = { "holds": "good", "does not hold": "bad", "being checked": "live" };
const BYTES = ["bytes", "kB", "MB", "GB", "TB"], IN_WORDS = { notation: "compact", compactDisplay: "long" };

/** Groups of files, [path, file] each: what is to be checked, and things from which that may come. */
const dropped = { main: [], base: [] };
const module = Uint8Array.from(atob($("module").textContent), (c) => c.charCodeAt(0));
const script = URL.createObjectURL(new Blob([$("worker").textContent], { type: "text/javascript" }));
/** What the worker said so far; the milliseconds that it worked; until when these are counted. */
let worker = null, seen = {}, spent = 0, until = 0;

/** An element. Its text is shown without what cannot be seen or turns its direction. */
function made(tag, className, ...inside) {
  const element = document.createElement(tag);
  const shown = (text) => text.slice(0, MAX_SHOWN).replace(/(?![ \n])[\p{C}\p{Z}]/gu, "?");
  element.className = className;
  element.append(...inside.map((one) => (one instanceof Node ? one : shown(one))));
  return element;
}

function amount(count, unit) {
  if (unit !== "bytes") return `${Math.floor(count).toLocaleString("en", IN_WORDS)} ${unit}`;
  const power = Math.min(Math.floor(Math.log10(Math.max(count, 1)) / 3), BYTES.length - 1);
  return `${(count / 1000 ** power).toFixed(power ? 1 : 0)} ${BYTES[power]}`;
}

// ---------------------------------------------------------------- what the worker says

const items = (lines) => lines.map((line) => made("li", "", line));
const facts = (rows) => rows.map(([name, value]) => made("div", "", made("dt", "", name), made("dd", "", value)));
const tag = (tone, text) => made("span", `tag ${tone}`, text);

/** A stage on the way to the first difference: which of how many, and what it is. */
function stage([position, total, title, detail, code = ""]) {
  const element = $("a-stage").content.cloneNode(true), width = Math.max(1000 / total, 7);
  const from = Math.min(1000 * position / total, 1000 - width);
  element.querySelector(".found").setAttribute("transform", `translate(${from}) scale(${width} 1)`);
  element.querySelector(".fan").setAttribute("points", `${from},0 ${from + width},0 1000,10 0,10`);
  element.querySelector(".note").append(made("h3", "", title), made("p", "", detail), made("code", "", code));
  return element;
}

function showPlace(place) {
  const { step, what, instruction, of, element, kind } = place, { last } = seen;
  for (const [who, other, className] of [["got", "expected", ""], ["expected", "got", "right"]]) {
    const { bits, decimal } = place[who], isSame = (c, k) => c === place[other].bits[k];
    $(who).replaceChildren(...[...bits].map((c, k) => (isSame(c, k) ? c : made("mark", className, c))));
    $(`${who}-decimal`).textContent = decimal;
  }
  const stages = [[Number(step) - 1, last, `Step ${step} of ${last}`, what]];
  if (kind) {
    const elements = (kind.match(/\d+(?=[,\]])/g) ?? []).reduce((all, dim) => all * Number(dim), 1);
    const more = `[${place.at.join(", ")}] of ${kind}; ${place.differing} of ${place.entries} state entries differ`;
    stages.push([instruction, of, `Instruction ${instruction} of ${of}`, place.operation, place.origin]);
    stages.push([element, elements, `Element ${element} of ${elements}`, more]);
  }
  return stages.map(stage);
}

/** A row of the table of programs. */
function rowOf({ program, root = "", equal, problem = "", milliseconds }) {
  const row = $("a-row").content.firstElementChild.cloneNode(true), [name, computed, state, time] = row.cells;
  name.append(made("strong", "", program));
  computed.append(made("code", "", root), made("p", "bad", problem));
  state.append(equal ? tag("good", "as expected") : tag("bad", root ? "another root" : "not computed"));
  if (root) time.append(`${(milliseconds / 1000).toFixed(1)} s`);
  return row;
}

function progressWords({ done, total, unit, at = "" }) {
  spent += performance.now() - until;
  until = performance.now();
  $("bar").value = done / total;
  const rate = 1000 * done / spent, left = done ? `, about ${Math.ceil((total - done) / rate / 60)} min left` : "";
  return [`${at}${Math.floor(100 * done / total)}% of ${amount(total, unit)}, ${amount(rate, unit)} a second${left}`];
}

/** How what the worker says is shown: the content of the element of that id. */
const SHOW = {
  title: (title) => [made("span", seen.tone, title)],
  said: (said) => [made("span", "", said)],
  proves: items, open: items, lines: items, facts, place: showPlace, progress: progressWords,
  plan: ({ wanted, total, due, work, memory }) => {
    $("pause").textContent = "Start";
    const cost = `${due} steps of ${amount(Number(work), "terms")} each and ${amount(memory, "bytes")} of memory`;
    return [`Replaying ${wanted.length} of ${total} signed segments takes ${cost}.`];
  },
  statement: ({ address, text }) => {
    $("save").href = URL.createObjectURL(new Blob([text], { type: "application/json" }));
    return [`0x${address}`];
  },
};

/** Shows the numbered checks of a certificate as far as they have come. */
function showChecks({ asked, passed = [], failed = 0, isOver }) {
  const now = isOver ? 0 : asked.find((n) => !passed.includes(n));
  [...$("checks").children].forEach((item, index) => {
    const n = index + 1, open = !asked.includes(n) ? "not asked" : n === now ? "being checked" : "not reached";
    const state = passed.includes(n) ? "holds" : n === failed ? "does not hold" : open;
    item.replaceChildren(item.firstChild, tag(TONES[state] ?? "", state));
  });
}

/** What is said aloud. */
function statusOf({ title, said = "", progress, plan, isWorking, note = "" }) {
  if (title) return `${title}. ${said}`.slice(0, 300);
  if (progress) return `${Math.floor(10 * progress.done / progress.total)}0% is done.`;
  return plan ? $("plan").textContent : isWorking ? "Checking." : note;
}

/** Adds to what is shown. Parts of the page of which nothing was said are hidden. */
function show(said) {
  Object.assign(seen, said, said.isOver && { isWorking: undefined });
  for (const [key, value] of Object.entries(said)) if (SHOW[key] && value) $(key).replaceChildren(...SHOW[key](value));
  if (said.row) $("row").append(rowOf(said.row));
  if (seen.asked) showChecks(seen);
  document.body.dataset.kind = seen.kind ?? "";
  $("options").open ||= said.kind === "run";
  if (seen.isOver) worker.terminate();
  for (const part of document.querySelectorAll("[data-part]")) part.hidden = !seen[part.dataset.part];
  const status = statusOf(seen);
  if ($("status").textContent !== status) $("status").textContent = status;
}

// ---------------------------------------------------------------- beginning and stopping

function stop(shown) {
  worker?.terminate();
  worker = null;
  seen = {};
  show(shown);
}

const stopWith = (said) => stop({ tone: "soft", title: "This cannot be checked", said });

/** Begins again with all that was dropped. */
function start() {
  stop({});
  if (!dropped.main.length) return;
  worker = new Worker(script);
  worker.onmessage = ({ target, data }) => { if (target === worker) show(data); }; // not of what lay here before
  worker.onerror = (event) => stopWith(event.message ?? "the worker did not start");
  $("bar").value = spent = 0;
  until = performance.now();
  $("pause").textContent = "Pause";
  $("progress").textContent = "";
  $("row").replaceChildren();
  show({ isWorking: true });
  const options = {
    require: $("require").value.split(/[\s,]+/).filter(Boolean), resaved: $("resaved").checked,
    others: $("others").checked, seed: $("seed").value || undefined,
    sample: Math.floor($("sample").valueAsNumber) || undefined,
  };
  worker.postMessage({ module, start: { main: dropped.main.flat(), bases: dropped.base, options } });
}

// ---------------------------------------------------------------- what was dropped

const topOf = (path) => path.split("/")[0];

/** A group in the list of its place, with a button that removes it. */
function listed(name, group) {
  const tops = [...new Set(group.map(([path]) => topOf(path)))].join(", "), remove = made("button", "plain", "Remove");
  const bytes = amount(group.reduce((sum, [, file]) => sum + (file?.size ?? 0), 0), "bytes");
  const words = made("small", "", group.length > 1 ? `${group.length} files, ${bytes}` : bytes);
  remove.ariaLabel = `Remove ${tops}`;
  remove.onclick = () => put(name, dropped[name].filter((other) => other !== group));
  return made("li", "", made("bdi", "", tops, words), remove);
}

function put(name, groups) {
  dropped[name] = groups;
  $(`in-${name}`).replaceChildren(...groups.slice(0, MAX_LISTED).map((group) => listed(name, group)));
  start();
}

/** Adds files. What is checked holds each name once; of what that comes from, files dropped together are one. */
function add(name, entries) {
  const isLoose = ([path, file]) => name === "base" && file && !path.includes("/");
  const found = Map.groupBy(entries, (entry) => (isLoose(entry) ? "" : topOf(entry[0])));
  put(name, [...dropped[name].filter(([[path]]) => name === "base" || !found.has(topOf(path))), ...found.values()]);
}

const called = (object, method) => new Promise((take, fail) => { object[method](take, fail); });

/** What is in a dropped folder: a handle in Chromium, which gives a page on the disk no entries, or else an entry. */
async function* inside(folder) {
  if (folder.values) yield* folder.values();
  else for (let some = [null], reader = folder.createReader(); some.length; yield* some)
    some = await called(reader, "readEntries");
}

/** All files of dropped folders, by path; an empty folder, or one that is too deep, has null. */
async function walk(entries, folder = "", found = []) {
  for await (const entry of entries) {
    if (found.length > MAX_ENTRIES) break;
    const path = folder + entry.name, before = found.length, isFile = entry.isFile ?? entry.kind === "file";
    if (isFile) found.push([path, await (entry.getFile?.() ?? called(entry, "file"))]);
    else if (path.split("/").length <= MAX_DEPTH) await walk(inside(entry), `${path}/`, found);
    if (found.length === before) found.push([path, null]);
  }
  return found;
}

const pathed = (files) => Array.from({ length: Math.min(files.length, MAX_ENTRIES + 1) }, (_, k) => (
  [files[k].webkitRelativePath || files[k].name, files[k]]));

for (const place of document.querySelectorAll(".drop")) {
  for (const type of ["dragover", "dragleave", "drop"])
    place.addEventListener(type, () => place.classList.toggle("over", type === "dragover"));
  place.ondrop = async ({ dataTransfer: { items: all, files } }) => {
    const roots = [...all].map((item) => item.getAsFileSystemHandle?.() ?? item.webkitGetAsEntry());
    try {
      const found = (await Promise.all(roots)).filter(Boolean);
      add(place.dataset.place, found.length ? await walk(found) : pathed(files));
    } catch (error) {
      stopWith(`what was dropped cannot be read: ${error.message}`);
    }
  };
  place.onchange = ({ target }) => {
    add(place.dataset.place, pathed(target.files));
    target.value = "";
  };
}
// A file that is dropped beside the places must not replace the page.
for (const type of ["dragover", "drop"]) addEventListener(type, (event) => event.preventDefault());
for (const input of document.querySelectorAll(".options input")) input.onchange = start;
$("stop").onclick = () => stop({ note: "Stopped." });
$("pause").onclick = () => {
  const pause = $("pause").textContent === "Pause";
  worker.postMessage({ pause });
  $("pause").textContent = pause ? "Go on" : "Pause";
  until = performance.now();
};
$("hub").hidden = location.pathname !== "/check";
