// Runs the page's checks on files of this machine: a case per line of the input, its result per line of the output.
import { open, readFile, stat } from "node:fs/promises";
import { createInterface } from "node:readline";
import { Recheck } from "../../checker/module.js";
import { check } from "../../checker/worker.js";

const LIED = process.env.CHECKER_LIES === "1" ? 7 : 0;

/** As a browser's File: its size is what it says, and slices end where the file does. */
async function fileAt(path) {
  const { size } = await stat(path);
  const read = async (from, to) => {
    const file = await open(path);
    const bytes = new Uint8Array(Math.max(0, Math.min(to, size) - from));
    await file.read(bytes, 0, bytes.length, from);
    await file.close();
    return bytes.buffer;
  };
  return { size: size + LIED, slice: (from, to) => ({ arrayBuffer: () => read(from, to) }) };
}

const opened = (entries) => Promise.all(entries.map(async ([path, place]) => [path, place && await fileAt(place)]));
const recheck = new Recheck(await readFile(process.argv[2]));

for await (const line of createInterface({ input: process.stdin })) {
  const { main, bases = [], ...options } = JSON.parse(line);
  const dropped = { main: await opened(main), bases: await Promise.all(bases.map(opened)), options };
  const before = recheck.exports.mark(), result = await check(recheck, dropped, () => {});
  console.log(JSON.stringify({ ...result, leaked: recheck.exports.mark() - before, memory: recheck.exports.memory.buffer.byteLength }));
}
