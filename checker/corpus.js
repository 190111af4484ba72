/* The corpus (docs/corpus.md): programs of known roots, computed here, and the signed statement that `tiebreak corpus` writes. */
import { Refused, refuse, bytesOf, hexOf, utf8, STATE, DATA } from "./module.js";
import { JsonFields, base64, dumps, isInteger } from "./formats.js";
import { readWhole, tensorsOf } from "./tensors.js";
import { Program, Replay } from "./replay.js";
import { putLog } from "./logs.js";
import { decompressedXz } from "./xz.js";

const MAX_FILE = 1 << 26, MOST = (1n << 32n) - 1n, NAME = /^[a-z0-9][a-z0-9-]{0,31}$/;
const ROOTS = ["program_root", "initial_state_root", "data_root", "run_root"];
const PAYLOAD = "application/vnd.in-toto+json";

/** The terms, roots and records of an expected.json. */
function readExpected(name, bytes) {
  const top = JsonFields.parse(name, bytes, 3), found = {};
  for (const key of ["torch", "transformers"]) found[key] = top.text(key, /^[ -~]{0,64}$/, "a version");
  for (const key of ["steps", "checkpoint_interval"]) found[key] = top.integer(key, 1n, MOST);
  found.precision = top.integer("precision", 16n, 32n);
  found.tolerances = top.integer("tolerances", 0n, MOST);
  for (const key of ROOTS) found[key] = top.text(key, /^[0-9a-f]{64}$/, "a root");
  const isRecord = (item) => Array.isArray(item) && item.length === 3 && typeof item[1] === "string"
    && isInteger(item[0], 0n, MOST) && isInteger(item[2], 0n, MOST);
  found.records = top.take("records", "[step, state root, loss bits] each", (all) => Array.isArray(all) && all.every(isRecord));
  top.finish();
  return found;
}

/** The names of the programs in a dropped folder, whose files are `NAME/expected.json` and so on, and where they are. */
export function namesOf(files) {
  const found = [...files.keys()].filter((path) => path.endsWith("/expected.json")).map((path) => path.split("/").slice(0, -1));
  return new Map(found.filter((path) => NAME.test(path.at(-1))).map((path) => [path.at(-1), path.join("/")]).sort());
}

/** Computes a program; its run as the statement has it. A file that is none of the corpus is refused. */
export async function compute(recheck, name, folder, files, tell = async () => {}, budget = undefined) {
  const there = (path) => files.get(path) ?? refuse(`${path}: cannot be read: there is no such file`);
  const whole = (file) => readWhole(there(`${folder}/${file}`), `${folder}/${file}`, MAX_FILE);
  const unpacked = async (file) => {
    const raw = await whole(file);
    try {
      return decompressedXz(raw, MAX_FILE);
    } catch (error) {
      return refuse(`${folder}/${file}: expected a compressed file, got something else: ${error.message}`);
    }
  };
  const document = await whole("expected.json"), expected = readExpected(`${folder}/expected.json`, document);
  const mark = recheck.exports.mark();
  const run = { program: name, device: "cpu", backend: "recheck-wasm", expected: expected.run_root, equal: false, milliseconds: 0 };
  try {
    const program = new Program(recheck, await unpacked("program.xz"));
    if (program.root !== expected.program_root) refuse(`${folder}: expected program ${expected.program_root}, got ${program.root}`);
    const tensors = (file, slots) => tensorsOf(there(`${folder}/${file}`), `${folder}/${file}`, slots);
    const state = await tensors("state.safetensors", program.state), data = await tensors("data.safetensors", program.data);
    const logs = expected.tolerances ? logsOf(`${folder}/logs.xz`, await unpacked("logs.xz"), expected.steps) : [];
    const began = performance.now();
    try {
      const replay = new Replay(program, Number(expected.precision), Number(expected.tolerances));
      const inputs = [[STATE, "state", state, expected.initial_state_root], [DATA, "data", data, expected.data_root]];
      for (const [kind, file, given, root] of inputs) {
        const found = await replay.fill(kind, given);
        if (found !== root) refuse(`${name}: ${file}.safetensors: expected root ${root}, got ${found}`);
      }
      Object.assign(run, await computed(replay, expected, logs, tell, budget));
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      run.problem = `VerificationError: ${error.message}`.replace(/[^ -~]/g, "?").slice(0, 1000);
    }
    run.milliseconds = Math.round(performance.now() - began);
  } finally {
    recheck.exports.release(mark);
  }
  run.equal = run.root === run.expected;
  return { run, digest: recheck.sha256(document) };
}

function logsOf(path, data, steps) {
  const found = [], view = new DataView(data.buffer, data.byteOffset, data.length);
  for (let at = 0; at + 4 <= data.length && found.length <= steps; at += 4 + found.at(-1).length) found.push(data.subarray(at + 4, at + 4 + view.getUint32(at)));
  if (found.reduce((all, log) => all + 4 + log.length, 0) !== data.length || BigInt(found.length) !== steps)
    refuse(`${path}: expected ${steps} whole logs, got ${found.length}`);
  return found;
}

/** Takes all steps; the run root, and where a record first differs. */
async function computed(replay, { steps, checkpoint_interval: interval, records }, logs, tell, budget) {
  const { recheck, program } = replay, known = new Map(records.map((record) => [record[0], record])), digests = [];
  let problem = "", root = null;
  for (let step = 1n; step <= steps; step++) {
    if (logs.length && (step - 1n) % interval === 0n) {
      const segment = logs.slice(Number(step - 1n), Number(step - 1n + interval));
      root = recheck.tree(segment.map((log, k) => recheck.scratch(() => {
        const { at, size } = putLog(program, log, step + BigInt(k));
        return recheck.digest("step_log", program.at, at, size);
      })));
    }
    const put = logs.length ? () => {
      const { at, size } = putLog(program, logs[Number(step - 1n)], step);
      return [at, size];
    } : null;
    const { state, loss } = await replay.step(step, put, (done) => tell({ step, steps, done, work: replay.work }), budget);
    const [, expected, bits] = known.get(step) ?? [step, state, BigInt(loss)];
    if (!problem && (expected !== state || bits !== BigInt(loss)))
      problem = `step ${step}: expected state ${expected} and loss bits ${bits}, got ${state} and ${loss}`;
    if (step % interval === 0n || step === steps) digests.push(replay.record(step, state, BigInt(loss), root));
    await tell({ step, steps, done: replay.work, work: replay.work });
  }
  return { root: recheck.tree(digests), ...(problem ? { problem } : {}) };
}

/** A new key: 32 random bytes below the order of the group. */
export function newKey(random = (bytes) => crypto.getRandomValues(bytes)) {
  const order = 0xfffffffffffffffffffffffffffffffebaaedce6af48a03bbfd25e8cd0364141n;
  for (;;) {
    const secret = random(new Uint8Array(32)), number = BigInt(`0x${hexOf(secret)}`);
    if (number && number < order) return secret;
  }
}

/** The envelope of a payload, signed by a key of this page. */
export function signedEnvelope(recheck, payload, secret) {
  const head = utf8(`DSSEv1 ${PAYLOAD.length} ${PAYLOAD} ${payload.length} `), pae = new Uint8Array(head.length + payload.length);
  pae.set(head);
  pae.set(payload, head.length);
  const digest = bytesOf(recheck.sha256(pae));
  const [address, signature] = recheck.scratch(() => {
    const key = recheck.put(secret);
    const of = hexOf(recheck.get(recheck.exports.address(key), 20));
    return [of, recheck.get(recheck.exports.sign(recheck.put(digest), key), 65)];
  });
  const signatures = [{ keyid: `0x${address}`, sig: base64(signature) }];
  return { address, text: `${JSON.stringify({ payload: base64(payload), payloadType: PAYLOAD, signatures })}\n` };
}

/**
 * The statement on computed programs, as a file's text, and the address that signed it.
 * @param {{run: object, digest: string}[]} computed @param {Record<string, string>} environment texts of printable ASCII
 */
export function statementOf(recheck, computed, environment, note, secret) {
  const subject = computed.map(({ run, digest }) => ({ name: run.program, digest: { sha256: digest } }));
  subject.sort((a, b) => (a.name < b.name ? -1 : 1));
  const predicate = { environment, note, computed: computed.map(({ run }) => run) };
  const document = { _type: "https://in-toto.io/Statement/v1", subject, predicateType: "urn:tiebreak:corpus:1", predicate };
  return signedEnvelope(recheck, utf8(dumps(document)), secret);
}
