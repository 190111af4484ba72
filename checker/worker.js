/** All work of the page, in a worker: it gets the module and files, and says how far it has come and what it found. */
import { Recheck, Refused, refuse } from "./module.js";
import { printable, quoted } from "./formats.js";
import { arrange, verify } from "./weights.js";
import { auditDropped } from "./audit.js";
import { compute, namesOf, newKey, statementOf } from "./corpus.js";

/** A sentence may quote a whole header. Of more files the page looks at a part (page.js), of which nothing is said. */
const MAX_SAID = 4000, MAX_FILES = 10_000;
/** The memory that the module takes at most: by itself, and for a replay, where it is what a tab has. */
const OWN = 1 << 28, TAB = 2 ** 32 - 2 ** 16;
const TAKES = "expected a certificate, with weights or without, the folder of a run, or the corpus, got none of them";
const CANNOT = { tone: "soft", title: "This cannot be checked" };

let going = Promise.resolve(), go = () => {};

function pause(on) {
  go();
  if (on) going = new Promise((resume) => { go = resume; });
}

/** The sentence of a refusal; anything else is a fault of the page. */
function saidOf(error) {
  if (!(error instanceof Refused || error instanceof RangeError)) throw error;
  return printable(error.message.slice(0, MAX_SAID));
}

/** Files of the browser, or of a test, as the checks read them. */
const sources = (entries) => entries.map(([path, file]) => [path, file && {
  size: file.size,
  slice: (from, to) => file.slice(from, to).arrayBuffer().then(
    (bytes) => new Uint8Array(bytes), (error) => refuse(`${path}: cannot be read: ${error.message}`)),
}]);

// ---------------------------------------------------------------- a certificate

/** @param {string} text an address, with or without 0x */
const addressOf = (text) => (/^(?:0x)?[0-9a-fA-F]{40}$/.test(text) ? text.slice(-40).toLowerCase()
  : refuse(`--require: expected an address of 40 hex digits, got ${quoted(text)}`));

/** The numbered checks in the order in which they are made, without those that nobody asks for. */
const checksOf = ({ require, resaved, others }, { model, bases }) => [1, require.length && 2, model && 3, model && 5,
  model && !resaved && 4, model?.files && !others && 6, bases.length && 7].filter(Boolean);

/**
 * Checks weights and their certificate, and says what holds.
 * @param {{main: [string, File | null][], bases: [string, File | null][][], options: object}} dropped
 * @param {(said: object) => void} say gets the progress in bytes, and {passed}, while it works
 */
export async function check(recheck, { main, bases, options }, say) {
  const passed = [], isRead = ([path, file]) => file && path.endsWith(".safetensors");
  const total = [...main, ...bases.flat()].filter(isRead).reduce((sum, [, file]) => sum + file.size, 0);
  let done = 0, asked = [];
  const pass = (n) => { passed.push(n); say({ passed }); };
  const advance = async (bytes) => { done += bytes; say({ progress: { done, total, unit: "bytes" } }); await going; };
  try {
    options.require = options.require.map(addressOf);
    const [given, ...others] = await Promise.all([main, ...bases].map((one) => arrange(sources(one))));
    given.bases = others;
    if (!given.certificate) refuse(TAKES);
    if (given.bases.some(({ model }) => !model)) refuse("expected the weights that these come from, got none");
    asked = checksOf(options, given);
    say({ asked });
    return { holds: true, tone: "good", passed, asked, ...await verify(recheck, given, options, { pass, advance }) };
  } catch (error) {
    const said = saidOf(error), failed = asked.find((n) => !passed.includes(n));
    const verdict = failed ? { tone: "bad", title: "It does not hold", asked, failed } : CANNOT;
    return { holds: false, passed, said, ...verdict };
  }
}

// ---------------------------------------------------------------- a run

/** Audits a run. It waits after it has said what that takes. */
async function audit(recheck, { main, options }, say) {
  const files = new Map(sources(main).filter(([, file]) => file));
  let plan = null;
  const tell = async (told) => {
    if (plan) {
      const terms = Number(plan.work), done = terms * told.steps + Number(told.done);
      say({ progress: { done, total: Math.max(terms * plan.due, done, 1), unit: "terms" } });
    } else {
      plan = told;
      say({ plan });
      pause(true);
    }
    await going;
  };
  const { verdict, said, lines, place } = await auditDropped(recheck, files, options, tell);
  const what = plan?.wanted.length === plan?.total ? "All that is signed" : "What was replayed";
  const agrees = { tone: "good", title: `${what} agrees with the program` };
  const shown = { agrees, fraud: { tone: "bad", title: "The run is false" } }[verdict] ?? CANNOT;
  const differs = place && !place.note && { place, last: plan.last };
  return { ...shown, ...differs, lines, said: printable(said.slice(0, MAX_SAID)) };
}

// ---------------------------------------------------------------- the corpus

/** Computes the programs of the corpus one after the other, and signs a statement on them. */
async function computeAll(recheck, { main }, say) {
  const files = new Map(sources(main)), names = [...namesOf(files)], made = [], total = names.length;
  for (const [n, [program, folder]] of names.entries()) {
    const tell = async ({ step, steps }) => {
      const each = Number(steps), done = n * each + Number(step); // all programs have as many
      say({ progress: { done, total: total * each, unit: "steps", at: `${program}: ` } });
      await going;
    };
    try {
      made.push(await compute(recheck, program, folder, files, tell));
      say({ row: made.at(-1).run });
    } catch (error) {
      say({ row: { program, problem: saidOf(error) } });
    }
  }
  const browser = navigator.userAgent.replace(/[^ -~]/g, "?").slice(0, 255);
  const statement = made.length && statementOf(recheck, made, { browser }, "by the page that checks files", newKey());
  const missed = total - made.filter(({ run }) => run.equal).length;
  if (missed) return { tone: "bad", title: `${missed} of ${total} programs did not reach their roots`, statement };
  return { tone: "good", title: `All ${total} programs reached their roots`, statement };
}

// ---------------------------------------------------------------- what was dropped

/** What was dropped decides what is done, and how much memory that may take. */
function workOf(main) {
  const paths = main.map(([path]) => path), folders = new Set(namesOf(new Map(main)).values());
  const isOther = (path) => path.endsWith(".safetensors") && !folders.has(path.replace(/\/[^/]*$/, ""));
  if (paths.some((path) => /(?:^|\/)job\.bin$/.test(path))) return ["run", audit, TAB];
  if (folders.size && !paths.some(isOther)) return ["corpus", computeAll, OWN];
  return ["certificate", check, OWN];
}

async function start(module, dropped) {
  const [kind, work, memory] = workOf(dropped.main), say = (said) => postMessage(said);
  say({ kind });
  try {
    if (Math.max(dropped.main.length, ...dropped.bases.map((one) => one.length)) > MAX_FILES)
      refuse(`expected at most ${MAX_FILES} files, got more`);
    say({ ...await work(new Recheck(module, memory), dropped, say), isOver: true });
  } catch (error) {
    say({ ...CANNOT, said: printable(String(error.message).slice(0, MAX_SAID)), isOver: true });
  }
}

if (typeof importScripts === "function")
  addEventListener("message", ({ data }) => (data.start ? start(data.module, data.start) : pause(data.pause)));
