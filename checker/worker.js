/** All work of the page, in a worker: it gets the module and files, and says how far it has come and what it found. */
import { Recheck, Refused, refuse } from "./module.js";
import { printable, quoted } from "./formats.js";
import { arrange, verify } from "./weights.js";

/** A sentence may quote a whole header. */
const MAX_SAID = 4000;

/** @type {Recheck | null} */
let recheck = null;
let going = Promise.resolve(), go = () => {};

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

/** @param {string} text an address, with or without 0x */
const addressOf = (text) => (/^(?:0x)?[0-9a-fA-F]{40}$/.test(text) ? text.slice(-40).toLowerCase()
  : refuse(`--require: expected an address of 40 hex digits, got ${quoted(text)}`));

/** The numbered checks in the order in which they are made, without those that nobody asks for. */
const asked = ({ require, resaved, others }, { model, bases }) => [1, require.length && 2, model && 3, model && 5, model && !resaved && 4,
  model?.files && !others && 6, bases.length && 7].filter(Boolean);

/**
 * Checks what was dropped, and says what holds.
 * @param {{main: [string, File | null][], bases: [string, File | null][][], options: object}} dropped
 * @param {(said: object) => void} say gets {done, total} in bytes, and {passed}, while it works
 */
export async function check(recheck, { main, bases, options }, say) {
  const passed = [], all = [...main, ...bases.flat()];
  const total = all.reduce((sum, [path, file]) => sum + (file && path.endsWith(".safetensors") ? file.size : 0), 0);
  let done = 0, order = [];
  const pass = (n) => { passed.push(n); say({ passed }); };
  const advance = async (bytes) => { done += bytes; say({ done, total }); await going; };
  try {
    options.require = options.require.map(addressOf);
    const given = { ...await arrange(sources(main)), bases: await Promise.all(bases.map((one) => arrange(sources(one)))) };
    if (!given.certificate) refuse("expected a certificate (certificate.json) with the weights, got none");
    if (given.bases.some(({ model }) => !model)) refuse("expected the weights that these come from, got none");
    order = asked(options, given);
    say({ asked: order });
    return { holds: true, passed, asked: order, ...await verify(recheck, given, options, { pass, advance }) };
  } catch (error) {
    if (!(error instanceof Refused || error instanceof RangeError)) throw error;
    const failed = order.find((n) => !passed.includes(n)) ?? 0, title = failed ? "It does not hold" : "This cannot be checked";
    return { holds: false, passed, asked: order, failed, title, said: printable(error.message.slice(0, MAX_SAID)) };
  }
}

const HANDLERS = {
  module: (bytes) => { recheck = new Recheck(bytes); },
  check: async (dropped) => postMessage({ result: await check(recheck, dropped, (said) => postMessage(said)) }),
  pause: (on) => {
    go();
    if (on) going = new Promise((resume) => { go = resume; });
  },
};

if (typeof importScripts === "function") {
  addEventListener("message", ({ data }) => { for (const [name, value] of Object.entries(data)) HANDLERS[name](value); });
  addEventListener("unhandledrejection", (event) => postMessage({ broken: String(event.reason) }));
}
