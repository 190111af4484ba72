/* The corpus (docs/corpus.md): programs of known roots, computed here, and the statement of `tiebreak corpus`. */
import { refuse, refusing, bytesOf, hexOf, utf8, STATE, DATA } from "./module.js";
import { JsonFields, base64, dumps } from "./formats.js";
import { Folder } from "./tensors.js";
import { Program, Replay } from "./replay.js";
import { joined, putLog } from "./logs.js";

const MAX_FILE = 1 << 26, MOST = (1n << 32n) - 1n, EXPECTED = /^((?:.*\/)?([a-z0-9][a-z0-9-]{0,31}))\/expected\.json$/;
const TERMS = { steps: 1n, checkpoint_interval: 1n, precision: 16n, tolerances: 0n };
const ROOTS = ["program_root", "initial_state_root", "data_root", "run_root"];
const PAYLOAD = "application/vnd.in-toto+json";

/** The terms, roots and records of an expected.json, of which nothing else is used. */
function readExpected(name, bytes) {
  const top = JsonFields.parse(name, bytes, 3), found = {};
  for (const [key, least] of Object.entries(TERMS)) found[key] = top.integer(key, least, MOST);
  for (const key of ROOTS) found[key] = top.text(key, /^[0-9a-f]{64}$/, "a root");
  found.records = top.take("records", "[step, state root, loss bits] each", Array.isArray);
  return found;
}

/** The names of the programs in a dropped folder, whose files are `NAME/expected.json` and so on, by name. */
export function namesOf(files) {
  const found = [...files.keys()].map((path) => EXPECTED.exec(path)).filter((match) => match);
  return new Map(found.map(([, folder, name]) => [name, folder]).sort());
}

/** What a file of gzip holds: one member, whose last four bytes say how much. */
async function unzipped(packed, path) {
  try {
    const size = new DataView(packed.slice(-4).buffer).getUint32(0, true);
    const out = new Uint8Array(size > MAX_FILE ? 0 : size);
    const reader = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip")).getReader();
    let at = 0;
    for (let next = await reader.read(); !next.done; next = await reader.read()) {
      out.set(next.value, at);
      at += next.value.length;
    }
    if (at === size) return out;
  } catch { /* A stranger's bytes: refused as those of another size are. */ }
  return refuse(`${path}: expected a compressed file of at most ${MAX_FILE} bytes, got something else`);
}

/** Computes a program; its run as the statement has it. A file that is none of the corpus is refused. */
export async function compute(recheck, name, folder, files, tell = async () => {}, budget = undefined) {
  const given = new Folder(files, folder), document = await given.whole("expected.json", MAX_FILE);
  const expected = readExpected(`${folder}/expected.json`, document), mark = recheck.exports.mark();
  const run = { program: name, device: "cpu", backend: "recheck-wasm", expected: expected.run_root };
  const began = performance.now();
  const unpacked = async (file) => unzipped(await given.whole(file, MAX_FILE), `${folder}/${file}`);
  try {
    const program = new Program(recheck, await unpacked("program.gz")), { root } = program;
    if (root !== expected.program_root) refuse(`${folder}: expected program ${expected.program_root}, got ${root}`);
    const state = await given.tensors("state.safetensors", program.state);
    const data = await given.tensors("data.safetensors", program.data);
    const logs = expected.tolerances ? logsOf(`${folder}/logs.gz`, await unpacked("logs.gz"), expected.steps) : [];
    const made = await refusing(async () => {
      const replay = new Replay(program, Number(expected.precision), Number(expected.tolerances));
      await replay.fill(STATE, state, expected.initial_state_root, `${name}: state.safetensors`);
      await replay.fill(DATA, data, expected.data_root, `${name}: data.safetensors`);
      return computed(replay, expected, logs, tell, budget);
    }, (said) => ({ problem: `VerificationError: ${said}`.replace(/[^ -~]/g, "?").slice(0, 1000) }));
    const milliseconds = Math.round(performance.now() - began);
    Object.assign(run, made, { equal: made.root === expected.run_root, milliseconds });
  } finally {
    recheck.exports.release(mark);
  }
  return { run, digest: recheck.sha256(document) };
}

function logsOf(path, data, steps) {
  const found = [], view = new DataView(data.buffer);
  let at = 0;
  for (; at + 4 <= data.length && found.length < steps; at += 4 + view.getUint32(at))
    found.push(data.subarray(at + 4, at + 4 + view.getUint32(at)));
  if (at !== data.length || BigInt(found.length) !== steps)
    refuse(`${path}: expected ${steps} whole logs, got ${found.length}`);
  return found;
}

/** Takes all steps; the run root, and where a record first differs. */
async function computed(replay, { steps, checkpoint_interval: interval, records }, logs, tell, budget) {
  const { recheck, program } = replay, known = new Map(records.map((record) => [record?.[0], record])), digests = [];
  const roots = [];
  let problem;
  for (let step = 1n; step <= steps; step++) {
    const put = () => {
      const log = putLog(program, logs[Number(step - 1n)], step);
      roots.push(log.root);
      return log;
    };
    const log = logs.length ? put : null;
    const made = await replay.step(step, log, (done) => tell({ step, steps, done, work: program.work }), budget);
    const { state, loss } = made, [, expected, bits] = known.get(step) ?? [step, state, BigInt(loss)];
    if (expected !== state || bits !== BigInt(loss))
      problem ??= `step ${step}: expected state ${expected} and loss bits ${bits}, got ${state} and ${loss}`;
    if (step % interval === 0n || step === steps)
      digests.push(replay.record(step, made, log ? recheck.tree(roots.splice(0)) : undefined));
    await tell({ step, steps, done: program.work, work: program.work });
  }
  return { root: recheck.tree(digests), ...(problem && { problem: problem.replace(/[^ -~]/g, "?").slice(0, 1000) }) };
}

/** A new key. One that is none, by chance 1 in 2^128, the module refuses. */
export const newKey = () => crypto.getRandomValues(new Uint8Array(32));

/**
 * The statement on computed programs in an envelope, as a file's text, and the address that signed it.
 * @param {{run: object, digest: string}[]} computed
 * @param {Record<string, string>} environment texts of printable ASCII
 */
export function statementOf(recheck, computed, environment, note, secret) {
  const subject = computed.map(({ run, digest }) => ({ name: run.program, digest: { sha256: digest } }));
  subject.sort((a, b) => (a.name < b.name ? -1 : 1));
  const predicate = { environment, note, computed: computed.map(({ run }) => run) };
  const kinds = { _type: "https://in-toto.io/Statement/v1", predicateType: "urn:tiebreak:corpus:1" };
  const payload = utf8(dumps({ ...kinds, subject, predicate }));
  const head = utf8(`DSSEv1 ${PAYLOAD.length} ${PAYLOAD} ${payload.length} `);
  const digest = bytesOf(recheck.sha256(joined(head, payload))), { exports } = recheck;
  const [address, signature] = recheck.scratch(() => {
    const key = recheck.put(secret), of = hexOf(recheck.get(exports.address(key), 20));
    return [of, recheck.get(exports.sign(recheck.put(digest), key), 65)];
  });
  const signatures = [{ keyid: `0x${address}`, sig: base64(signature) }];
  return { address, text: `${JSON.stringify({ payload: base64(payload), payloadType: PAYLOAD, signatures })}\n` };
}
