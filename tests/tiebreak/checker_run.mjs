/* Runs the code of the page that checks files (checker/*.js) on folders of this machine: a line of JSON for each that it gets. */
import { closeSync, openSync, readFileSync, readSync, readdirSync, statSync } from "node:fs";
import { createInterface } from "node:readline";
import { unpack } from "../../checker/msgpack.js";
import { Recheck, Refused } from "../../checker/module.js";
import { compute, namesOf, newKey, statementOf } from "../../checker/corpus.js";
import { auditDropped, lateWords } from "../../checker/audit.js";
import { decompress } from "../../checker/vendor/fzstd.js";

const module = readFileSync(process.argv[2]);

/** The files of a folder by path, as a browser has those of a dropped one. */
function filesOf(folder, inside = "", found = new Map()) {
  for (const entry of readdirSync(`${folder}/${inside}`, { withFileTypes: true })) {
    const path = `${inside}${entry.name}`;
    if (entry.isDirectory()) filesOf(folder, `${path}/`, found);
    else found.set(path, { size: statSync(`${folder}/${path}`).size, slice: async (from, to) => bytesOf(`${folder}/${path}`, from, to) });
  }
  return found;
}

function bytesOf(path, from, to) {
  const file = openSync(path), out = new Uint8Array(to - from), count = readSync(file, out, 0, to - from, from);
  closeSync(file);
  return out.subarray(0, count);
}

/** Computes programs of a corpus, and states what came out. */
async function computed({ corpus, programs, budget }) {
  const recheck = new Recheck(module, 1 << 27), files = filesOf(corpus), names = namesOf(files), made = [];
  try {
    for (const name of programs ?? names.keys()) made.push(await compute(recheck, name, names.get(name), files, undefined, budget && BigInt(budget)));
    const { address, text } = statementOf(recheck, made, { system: "node", cpu: "any" }, "a test", newKey());
    return { runs: made.map(({ run }) => run), names: [...names.keys()], address, text };
  } catch (error) {
    return { verdict: error instanceof Refused ? "could not check" : "crash", reason: error instanceof Refused ? error.message : error.stack };
  }
}

/** A file that is another one from some read on. */
function changing(file, reads) {
  let count = 0;
  return { size: file.size, slice: async (from, to) => {
    const found = await file.slice(from, to);
    if (++count > reads && found.length) found[found.length - 1] ^= 1;
    return found;
  } };
}

async function answer({ folder, stop, budget, limit, changes, ...asked }) {
  const recheck = new Recheck(module), files = new Map();
  for (const [path, file] of filesOf(folder)) files.set(`${folder}/${path}`, changes?.[0] === path ? changing(file, changes[1]) : file);
  let told = 0, first = null;
  const tell = async (progress) => {
    if (!first && limit) recheck.exports.limit(BigInt(limit));
    first ??= progress;
    if (++told === stop) throw new Error("stopped");
  };
  try {
    const done = await auditDropped(recheck, files, asked, tell, budget && BigInt(budget));
    const { verdict, wanted, steps, entries, said, lines, place } = done, agrees = verdict === "agrees";
    return { verdict, wanted, steps, entries, told, due: first?.due, memory: first?.memory, place, reason: agrees ? "" : said, lines: agrees ? [...lines, said] : lines };
  } catch (error) {
    return { verdict: error.message === "stopped" ? "stopped" : "crash", reason: error.stack, told };
  }
}

const named = (names) => names.map((name) => ({ name }));
const READERS = { frame: (data, size) => decompress(data, new Uint8Array(size)), msgpack: unpack };

/** What a reader says of bytes, each with a size or a limit. */
function unpacked({ reader, items }) {
  return items.map(([data, size]) => {
    try {
      const found = READERS[reader](new Uint8Array(Buffer.from(data, "base64")), size);
      return reader === "msgpack" ? "taken" : Buffer.from(found).toString("base64");
    } catch (error) {
      return error instanceof Refused ? error.message : String(error);
    }
  });
}

for await (const line of createInterface({ input: process.stdin })) {
  const began = performance.now(), request = JSON.parse(line);
  const found = request.reader ? { found: unpacked(request) }
    : request.late ? lateWords({ late: named(request.late), state: named(request.state) }, request.sampled)
    : await (request.corpus ? computed : answer)(request);
  console.log(JSON.stringify({ ...found, milliseconds: performance.now() - began }));
}
