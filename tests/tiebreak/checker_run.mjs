/* Runs the code of the page that checks files (checker/*.js) on folders of this machine: a line of JSON for each that it gets. */
import { closeSync, openSync, readFileSync, readSync, readdirSync, statSync } from "node:fs";
import { createInterface } from "node:readline";
import { unpack } from "../../checker/msgpack.js";
import { Recheck, Refused } from "../../checker/module.js";
import { compute, namesOf, newKey, statementOf } from "../../checker/corpus.js";
import { auditSegments, drawSegments, lateWords, placeLines, sampleLines } from "../../checker/audit.js";
import { Asked, Fraud, Run, checkRun, runIn } from "../../checker/run.js";
import { decompressedXz } from "../../checker/xz.js";
import { decompressedFrame } from "../../checker/zstandard.js";

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

async function answer({ folder, segments, sample, seed, check, stop, budget, limit }) {
  const recheck = new Recheck(module, limit ?? 1 << 28);
  let told = 0;
  const tell = async () => {
    if (++told === stop) throw new Error("stopped");
  };
  try {
    const { files } = runIn(filesOf(folder)) ?? { files: new Map() };
    const run = await Run.open(recheck, folder, files);
    if (check) return { lines: await checkRun(run, tell), memory: run.program.memory };
    const signed = await run.signed(), total = signed.records.length;
    const wanted = segments ?? (sample ? drawSegments(recheck, total, sample, seed, signed.head.run_root) : signed.records.map((_, k) => k));
    const done = await auditSegments(run, signed, wanted, tell, budget && BigInt(budget));
    const { starts, refused, steps, entries, checked, lines } = done;
    return { verdict: "agrees", wanted, checked, starts: starts.map(Number), refused: refused.map(Number), steps, entries, told, memory: recheck.exports.memory.buffer.byteLength,
      lines: [...(sample ? sampleLines(total, sample, seed) : []), ...lines] };
  } catch (error) {
    if (!(error instanceof Refused)) return { verdict: error.message === "stopped" ? "stopped" : "crash", reason: error.stack, told };
    const verdict = error instanceof Fraud ? "fraud" : error instanceof Asked ? "asked" : "could not check";
    return { verdict, reason: error.message, details: error.details ?? [], place: placeLines(error.place), told };
  }
}

const named = (names) => names.map((name) => ({ name }));
const READERS = { frame: decompressedFrame, xz: decompressedXz, msgpack: unpack };

/** What a reader says of bytes, each with a size or a limit. */
function unpacked({ reader, items }) {
  return items.map(([data, size]) => {
    try {
      const found = READERS[reader](new Uint8Array(Buffer.from(data, "base64")), size);
      return reader === "msgpack" ? "taken" : Buffer.from(found).toString("base64");
    } catch (error) {
      return error.message.startsWith("expected") || error instanceof Refused ? error.message : error.stack;
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
