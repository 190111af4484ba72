/* The corpus (docs/corpus.md): programs of known roots, computed here, and the signed statement that `tiebreak corpus` writes. */
import { refuse, refusing, bytesOf, hexOf, utf8, STATE, DATA } from "./module.js";
import { JsonFields, base64, dumps, isInteger } from "./formats.js";
import { readWhole, tensorsOf } from "./tensors.js";
import { Program, Replay } from "./replay.js";
import { joined, putLog } from "./logs.js";

const MAX_FILE = 1 << 26, MOST = (1n << 32n) - 1n, NAME = /^[a-z0-9][a-z0-9-]{0,31}$/;
const TERMS = { steps: 1n, checkpoint_interval: 1n, precision: 16n, tolerances: 0n };
const ROOTS = ["program_root", "initial_state_root", "data_root", "run_root"];
const PAYLOAD = "application/vnd.in-toto+json";

/** The terms, roots and records of an expected.json, of which nothing else is used. */
function readExpected(name, bytes) {
  const top = JsonFields.parse(name, bytes, 3), found = {};
  for (const [key, least] of Object.entries(TERMS)) found[key] = top.integer(key, least, MOST);
  for (const key of ROOTS) found[key] = top.text(key, /^[0-9a-f]{64}$/, "a root");
  const isRecord = (item) => Array.isArray(item) && item.length === 3 && typeof item[1] === "string"
    && isInteger(item[0], 0n, MOST) && isInteger(item[2], 0n, MOST);
  found.records = top.take("records", "[step, state root, loss bits] each", (all) => Array.isArray(all) && all.every(isRecord));
  return found;
}

/** The names of the programs in a dropped folder, whose files are `NAME/expected.json` and so on, and where they are. */
export function namesOf(files) {
  const found = [...files.keys()].filter((path) => path.endsWith("/expected.json")).map((path) => path.split("/").slice(0, -1));
  return new Map(found.filter((path) => NAME.test(path.at(-1))).map((path) => [path.at(-1), path.join("/")]).sort());
}

/** What a file of gzip holds: one member, whose last four bytes say how much. */
async function unzipped(packed) {
  const size = new DataView(packed.buffer, packed.byteOffset, packed.length).getUint32(packed.length - 4, true);
  if (size > MAX_FILE) refuse(`at most ${MAX_FILE} bytes, got ${size}`);
  const reader = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip")).getReader(), out = new Uint8Array(size);
  let at = 0;
  for (let next = await reader.read(); !next.done; next = await reader.read()) {
    out.set(next.value, at);
    at += next.value.length;
  }
  return at === size ? out : refuse(`${size} bytes, got ${at}`);
}

/** Computes a program; its run as the statement has it. A file that is none of the corpus is refused. */
export async function compute(recheck, name, folder, files, tell = async () => {}, budget = undefined) {
  const there = (file) => files.get(`${folder}/${file}`) ?? refuse(`${folder}/${file}: cannot be read: there is no such file`);
  const whole = (file) => readWhole(there(file), `${folder}/${file}`, MAX_FILE);
  const unpacked = async (file) => {
    const packed = await whole(file);
    try {
      return await unzipped(packed);
    } catch (error) {
      return refuse(`${folder}/${file}: expected a compressed file, got something else: ${error.message}`);
    }
  };
  const tensors = (file, slots) => tensorsOf(there(file), `${folder}/${file}`, slots);
  const document = await whole("expected.json"), expected = readExpected(`${folder}/expected.json`, document);
  const mark = recheck.exports.mark(), began = performance.now();
  const run = { program: name, device: "cpu", backend: "recheck-wasm", expected: expected.run_root };
  try {
    const program = new Program(recheck, await unpacked("program.gz"));
    if (program.root !== expected.program_root) refuse(`${folder}: expected program ${expected.program_root}, got ${program.root}`);
    const inputs = [[STATE, "state.safetensors", program.state, expected.initial_state_root],
      [DATA, "data.safetensors", program.data, expected.data_root]];
    for (const input of inputs) input.push(await tensors(input[1], input[2]));
    const logs = expected.tolerances ? logsOf(`${folder}/logs.gz`, await unpacked("logs.gz"), expected.steps) : [];
    const work = async () => {
      const replay = new Replay(program, Number(expected.precision), Number(expected.tolerances));
      for (const [kind, file, , root, given] of inputs) {
        const found = await replay.fill(kind, given);
        if (found !== root) refuse(`${name}: ${file}: expected root ${root}, got ${found}`);
      }
      return computed(replay, expected, logs, tell, budget);
    };
    const problem = (said) => ({ problem: `VerificationError: ${said}`.replace(/[^ -~]/g, "?").slice(0, 1000) });
    Object.assign(run, await refusing(work, problem));
  } finally {
    recheck.exports.release(mark);
  }
  Object.assign(run, { equal: run.root === run.expected, milliseconds: Math.round(performance.now() - began) });
  return { run, digest: recheck.sha256(document) };
}

function logsOf(path, data, steps) {
  const found = [], view = new DataView(data.buffer);
  let at = 0;
  while (at + 4 <= data.length && found.length < steps) {
    const size = view.getUint32(at);
    found.push(data.subarray(at + 4, at += 4 + size));
  }
  if (at !== data.length || BigInt(found.length) !== steps) refuse(`${path}: expected ${steps} whole logs, got ${found.length}`);
  return found;
}

/** Takes all steps; the run root, and where a record first differs. */
async function computed(replay, { steps, checkpoint_interval: interval, records }, logs, tell, budget) {
  const { recheck, program } = replay, known = new Map(records.map((record) => [record[0], record])), digests = [];
  const put = (step) => putLog(program, logs[Number(step - 1n)], step);
  let problem = "", roots = [];
  for (let step = 1n; step <= steps; step++) {
    const log = logs.length ? () => put(step) : null;
    if (log) roots.push(recheck.scratch(() => put(step).root));
    const made = await replay.step(step, log, (done) => tell({ step, steps, done, work: replay.work }), budget);
    const { state, loss } = made, [, expected, bits] = known.get(step) ?? [step, state, BigInt(loss)];
    if (!problem && (expected !== state || bits !== BigInt(loss)))
      problem = `step ${step}: expected state ${expected} and loss bits ${bits}, got ${state} and ${loss}`;
    if (step % interval === 0n || step === steps) {
      digests.push(replay.record(step, made, log && recheck.tree(roots)));
      roots = [];
    }
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
  const digest = bytesOf(recheck.sha256(joined(utf8(`DSSEv1 ${PAYLOAD.length} ${PAYLOAD} ${payload.length} `), payload)));
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
