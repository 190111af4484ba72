/** All work of the page, in a worker: it gets the module and files, and says how far it has come and what it found. */
import { Recheck, Refused, refuse } from "./module.js";
import { printable, quoted } from "./formats.js";
import { arrange, verify } from "./weights.js";
import { auditDropped } from "./audit.js";
import { compute, namesOf, newKey, statementOf } from "./corpus.js";

/** A sentence may quote a whole header. */
const MAX_SAID = 4000;
/** Files beyond these are not looked at by the page (page.js): nothing is said of a part. */
const MAX_FILES = 10_000;
/** The memory that the module takes at most: by itself, and for a replay, where it is what a tab has. */
const OWN = 1 << 28, TAB = 2 ** 32 - 2 ** 16;
const TAKES = "expected a certificate with or without its weights, the folder of a run (with job.bin), or the corpus (folders with "
  + "expected.json and a program), got none of these";

const CANNOT = { tone: "soft", title: "This cannot be checked" }, FALSE = { tone: "bad", title: "It does not hold" };

let module = null, going = Promise.resolve(), go = () => {};

function pause(on) {
  go();
  if (on) going = new Promise((resume) => { go = resume; });
}

/** The sentence of a refusal; anything else is a fault of the page. */
function saidOf(error) {
  if (!(error instanceof Refused || error instanceof RangeError)) throw error;
  return printable(error.message.slice(0, MAX_SAID));
}

/** A file of the browser, or of a test, as the checks read it. */
const sourceOf = (path, file) => file && {
  size: file.size,
  slice: async (from, to) => {
    try {
      return new Uint8Array(await file.slice(from, to).arrayBuffer());
    } catch (error) {
      return refuse(`${path}: cannot be read: ${error.message}`);
    }
  },
};
const sources = (entries) => entries.map(([path, file]) => [path, sourceOf(path, file)]);

// ---------------------------------------------------------------- a certificate

/** @param {string} text an address, with or without 0x */
const addressOf = (text) => (/^(?:0x)?[0-9a-fA-F]{40}$/.test(text) ? text.slice(-40).toLowerCase()
  : refuse(`--require: expected an address of 40 hex digits, got ${quoted(text)}`));

/** The numbered checks in the order in which they are made, without those that nobody asks for. */
const asked = ({ require, resaved, others }, { model, bases }) => [1, require.length && 2, model && 3, model && 5,
  model && !resaved && 4, model?.files && !others && 6, bases.length && 7].filter(Boolean);

/**
 * Checks weights and their certificate, and says what holds.
 * @param {{main: [string, File | null][], bases: [string, File | null][][], options: object}} dropped
 * @param {(said: object) => void} say gets the progress in bytes, and {passed}, while it works
 */
export async function check(recheck, { main, bases, options }, say) {
  const passed = [], isRead = ([path, file]) => file && path.endsWith(".safetensors");
  const total = [...main, ...bases.flat()].filter(isRead).reduce((sum, [, file]) => sum + file.size, 0);
  let done = 0, order = [];
  const pass = (n) => { passed.push(n); say({ passed }); };
  const advance = async (bytes) => { done += bytes; say({ progress: { done, total, unit: "bytes" } }); await going; };
  try {
    options.require = options.require.map(addressOf);
    const given = { ...await arrange(sources(main)), bases: await Promise.all(bases.map((one) => arrange(sources(one)))) };
    if (!given.certificate) refuse(main.some(isRead) ? "expected a certificate (certificate.json) with the weights, got none" : TAKES);
    if (given.bases.some(({ model }) => !model)) refuse("expected the weights that these come from, got none");
    order = asked(options, given);
    say({ asked: order });
    return { holds: true, tone: "good", passed, asked: order, ...await verify(recheck, given, options, { pass, advance }) };
  } catch (error) {
    const said = saidOf(error), failed = order.find((n) => !passed.includes(n)) ?? 0;
    return { holds: false, passed, asked: order, failed, said, ...(failed ? FALSE : CANNOT) };
  }
}

// ---------------------------------------------------------------- a run

const VERDICTS = {
  whole: { tone: "good", title: "All that is signed agrees with the program" },
  agrees: { tone: "good", title: "What was replayed agrees with the program" },
  fraud: { tone: "bad", title: "The run is false" },
};

/** Audits a run. It waits after it has said what that takes. */
async function audit(recheck, { main, options }, say) {
  const files = new Map(sources(main).filter(([, file]) => file));
  let plan = null;
  const tell = async (told) => {
    if (!plan) {
      plan = told;
      if (plan.memory > TAB) refuse(`expected a replay that takes at most the ${TAB} bytes that a tab has, got one that takes `
        + `${plan.memory}; \`tiebreak audit\` makes it`);
      say({ plan });
      pause(true);
    } else {
      const terms = Number(plan.work), done = terms * told.steps + Number(told.done);
      const at = told.steps || told.done ? `step ${Math.min(told.steps + 1, plan.due)} of ${plan.due}` : "reading";
      say({ progress: { done, total: Math.max(terms * plan.due, done, 1), unit: "terms", at, loss: told.loss } });
    }
    await going;
  };
  const { verdict, said, lines, place } = await auditDropped(recheck, files, options, tell);
  const shown = { ...VERDICTS[verdict === "agrees" && plan.wanted.length === plan.total ? "whole" : verdict] ?? CANNOT, lines };
  if (place && !place.note) Object.assign(shown, { last: plan.last, place });
  return { ...shown, said: printable(said.slice(0, MAX_SAID)) };
}

// ---------------------------------------------------------------- the corpus

/** Computes the programs of the corpus one after the other, and signs a statement on them. */
async function computeAll(recheck, { main }, say) {
  const files = new Map(sources(main)), names = [...namesOf(files)], made = [];
  say({ programs: names.map(([name]) => name) });
  for (const [n, [program, folder]] of names.entries()) {
    const tell = async ({ step, steps, done, work }) => {
      const share = (Number(step) - 1 + Number(done) / Math.max(Number(work), 1)) / Number(steps);
      say({ progress: { done: n + share, total: names.length, unit: "programs", at: `${program}, step ${step} of ${steps}` } });
      await going;
    };
    try {
      const one = await compute(recheck, program, folder, files, tell);
      made.push(one);
      say({ row: one.run });
    } catch (error) {
      say({ row: { program, problem: saidOf(error) } });
    }
  }
  const equal = made.filter(({ run }) => run.equal).length, all = names.length;
  const title = equal === all ? `All ${all} programs reached their roots` : `${all - equal} of ${all} programs did not reach their roots`;
  const browser = navigator.userAgent.replace(/[^ -~]/g, "?").slice(0, 255), note = "computed by the page that checks files";
  const statement = made.length ? statementOf(recheck, made, { browser }, note, newKey()) : undefined;
  return { tone: equal === all ? "good" : "bad", title, ...(statement && { statement }) };
}

// ---------------------------------------------------------------- what was dropped

/** What was dropped decides what is done, and how much memory that may take. */
function workOf(main) {
  const paths = main.map(([path]) => path), folders = new Set(namesOf(new Map(main)).values());
  const isInside = (path) => folders.has(path.split("/").slice(0, -1).join("/"));
  if (paths.some((path) => /(?:^|\/)job\.bin$/.test(path))) return ["run", audit, TAB];
  if (folders.size && paths.every((path) => !path.endsWith(".safetensors") || isInside(path))) return ["corpus", computeAll, OWN];
  return ["certificate", check, OWN];
}

async function start(dropped) {
  const [kind, work, memory] = workOf(dropped.main), say = (said) => postMessage(said);
  say({ kind });
  try {
    if (Math.max(dropped.main.length, ...dropped.bases.map((one) => one.length)) > MAX_FILES)
      refuse(`expected at most ${MAX_FILES} files, got more`);
    say({ ...await work(new Recheck(module, memory), dropped, say), isOver: true });
  } catch (error) {
    say({ ...CANNOT, said: saidOf(error), isOver: true });
  }
}

const HANDLERS = { module: (bytes) => { module = bytes; }, start, pause };

if (typeof importScripts === "function") {
  addEventListener("message", ({ data }) => { for (const [name, value] of Object.entries(data)) HANDLERS[name](value); });
  addEventListener("unhandledrejection", (event) => postMessage({ ...CANNOT, said: String(event.reason), isOver: true }));
}
