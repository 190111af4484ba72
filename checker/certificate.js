/** Certificates (tiebreak/protocol/commitments/certificate.py), with the same numbered plan and sentences. */
import { STATE, naming, refuse, utf8 } from "./module.js";
import { JsonFields, dumps, fromBase64, isInteger, quoted, commas, readEnvelope, sorted } from "./formats.js";
import { DIGEST, PRINTABLE, listOf, matching, prefixedHex, upTo } from "./formats.js";
import { SignedHead, SignedJob } from "./job.js";

const depthOf = (leaves) => (leaves > 1 ? (BigInt(leaves) - 1n).toString(2).length : 0);

/** The root of a tree, from some leaves by ascending place and the nodes that cover all others, from left to right. */
function rootOfShown(recheck, leaves, places, shownLeaves, nodes) {
  let used = 0, next = 0;
  const fold = (height, position) => {
    const first = position * 2 ** height;
    if (first >= leaves) return recheck.empty(height);
    if (!(places[next] < first + 2 ** height)) return nodes[used++] ?? refuse("expected more nodes, got too few");
    if (!height) return shownLeaves[next++];
    return recheck.node(fold(height - 1, 2 * position), fold(height - 1, 2 * position + 1));
  };
  const root = fold(depthOf(leaves), 0);
  return used === nodes.length ? root : refuse(`expected ${used} nodes, got ${nodes.length}`);
}

function stateLeaf(recheck, name, tensor) {
  if (/^[!-~]{1,255}$/.test(name)) return recheck.entry(STATE, name, tensor);
  return refuse(`expected a name of 1 to 255 printable ASCII characters, got ${quoted(name)}`);
}

// ---------------------------------------------------------------- weights of a certificate

/** Whether one end of names becomes another by words that are inserted after its first. */
function insertsWords(end, entry) {
  const words = end.split("."), more = entry.split("."), inserted = more.length - words.length;
  const startsAlike = !words[0] && !more[0] && words[1] === more[1] && words[2] !== more[2];
  return startsAlike && inserted > 0 && words.slice(2).join(".") === more.slice(2 + inserted).join(".");
}

const PLACE = listOf("", upTo((1n << 32n) - 1n)), DIGESTS = listOf("a list of roots", DIGEST);
const PLACES = listOf("pairs of integers", ["", (pair) => PLACE[1](pair) && pair.length === 2], 1);

/** The entries of a state that the tensors of some files are. Ids are Maps from the names of tensors in files. */
class Weights {
  /** @param {JsonFields} found @param {bigint} leaves the number of entries of the state */
  constructor(found, leaves) {
    Object.assign(this, found.record({ prefix: PRINTABLE, places: PLACES, nodes: DIGESTS }));
    this.places = this.places.map((pair) => pair.map(Number));
    this.count = this.places.reduce((sum, [, count]) => sum + count, 0);
    this.names = found.inner("names").each(PRINTABLE);
    this.suffixes = found.has("suffixes") ? found.inner("suffixes").each(PRINTABLE, 1) : new Map();
    found.allSame({ entries: BigInt(this.count), of: leaves });
  }

  check(leaves) {
    const ends = [0, ...this.places.map(([first, count]) => first + count)];
    const begins = [...this.places.map(([first]) => first), leaves];
    if (ends.some((end, n) => end > begins[n]) || this.places.some(([, count]) => !count))
      refuse(`weights: expected ascending places below ${leaves}, got others`);
    for (const [end, entry] of this.suffixes)
      if (!insertsWords(end, entry)) refuse(`weights: expected ${end} with words inserted in it, got ${entry}`);
  }

  /** The name of the state's entry that is the tensor of this name. */
  entry(name) {
    const ends = ["", ...this.suffixes.keys()].filter((end) => name.endsWith(end));
    const end = ends.reduce((most, one) => one.length > most.length ? one : most);
    const made = this.prefix + name.slice(0, name.length - end.length) + (this.suffixes.get(end) ?? "");
    return this.names.get(name) ?? made;
  }

  entries(ids) {
    const found = new Map();
    for (const [name, tensor] of ids) {
      const entry = this.entry(name), other = found.get(entry) ?? tensor;
      if (other !== tensor) refuse(`weights: expected one tensor for ${entry}, got two, one of them ${name}`);
      found.set(entry, tensor);
    }
    return found;
  }

  /**
   * Requires that these tensors are entries of a state of this root.
   * @param {Map<string, string>} more tensors of other files, by entry, which come first
   */
  checkRoot(recheck, leaves, what, ids, expected, run, more = []) {
    const found = new Map([...this.entries(ids), ...more]);
    if (found.size !== this.count) refuse(`weights: expected ${this.count} tensors of the state, got ${found.size}`);
    this.check(leaves);
    const places = this.places.flatMap(([first, count]) => Array.from({ length: count }, (_, n) => first + n));
    const shown = sorted(found.keys()).map((name) => stateLeaf(recheck, name, found.get(name)));
    const root = rootOfShown(recheck, leaves, places, shown, this.nodes);
    if (root === expected) return;
    refuse(`${what}: expected tensors under state root ${expected}, got ${root}: a tensor has another name, type, `
      + `shape or value than ${run}`);
  }
}

/** Requires the root by which weights are named: that of a state whose entries are these tensors under their ids. */
function checkName(recheck, what, expected, tensors) {
  const leaves = sorted(new Set(tensors)).map((id) => stateLeaf(recheck, id, id));
  const root = recheck.tree(leaves.length ? leaves : [recheck.empty(0)]);
  if (root !== expected) refuse(`${what}: expected the root ${expected}, got ${root}`);
}

// ---------------------------------------------------------------- the statement

const STATEMENT = "https://in-toto.io/Statement/v1", PAYLOAD = "application/vnd.in-toto+json";
const CERTIFICATE = "urn:tiebreak:certificate:1";
const FILE = matching("the name of a file", /^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$/);
const OBJECTS = (words) => listOf(words, ["", (one) => one instanceof Map], 1);
const OTHER = /^(?!.{256})(?!\.{1,2}(?:\/|$))[ -.0-~]+(?:\/(?!\.{1,2}(?:\/|$))[ -.0-~]+)*$/;
const MAX_OTHERS = 100, MAX_SHAPES = 32, MAX_EVIDENCE = 7 << 10;
const LOGGED = { transaction: prefixedHex(32), block: upTo((1n << 64n) - 1n) };
const SEAT = { auditor: prefixedHex(20), seat: upTo(255n), ...LOGGED };
const FINAL = { root: DIGEST, lossBits: upTo((1n << 32n) - 1n), logRoot: DIGEST, path: DIGESTS };
const NUMBER = upTo((1n << 80n) - 1n), SIZES = { parameters: NUMBER, trained: NUMBER, operations: NUMBER };
const SHAPE = ["a shape", (sizes) => listOf("", NUMBER)[1](sizes) && sizes.length <= 8];
const TYPE = matching("a type such as nvidia-gpu-eat", /^[a-z0-9][a-z0-9.+-]{0,63}$/);

function checkSizes(found) {
  found.record(SIZES);
  const names = [...found.inner("data").each(SHAPE).keys()];
  if (names.length > MAX_SHAPES || !names.every(PRINTABLE[1]))
    refuse(`sizes: expected shapes of at most ${MAX_SHAPES} printable names, got others`);
}

function readAttestation(found, nonce) {
  found.same("nonce", nonce);
  const type = found.take("type", ...TYPE), size = fromBase64("attestation", found.text("evidence")).length;
  if (size && size <= MAX_EVIDENCE) return { type };
  return refuse(`attestation: expected evidence of 1 to ${commas(MAX_EVIDENCE)} bytes, got ${commas(size)}`);
}

function readOthers(found) {
  const names = [...found.left.keys()];
  if (names.length <= MAX_OTHERS && names.every((name) => OTHER.test(name))) return found.each(DIGEST);
  return refuse(`others: expected at most ${MAX_OTHERS} paths in a folder, got ${names.length}, or other names`);
}

/** A certificate that holds by itself, and who has signed it. */
export class SignedCertificate {
  /** @param {import("./module.js").Recheck} recheck @param {Uint8Array} bytes */
  constructor(recheck, bytes) {
    const envelope = readEnvelope(bytes);
    this.recheck = recheck;
    this.decode(envelope);
    this.verify();
    this.signers = this.signersOf(envelope);
  }

  /** Reads the statement (1): what the signed job and head in it say, no other fields, and in its one spelling. */
  decode({ kind, payload }) {
    if (kind !== PAYLOAD) refuse(`envelope: expected a payload of type ${PAYLOAD}, got ${kind}`);
    const top = JsonFields.parse("statement", payload, 6), predicate = top.inner("predicate");
    top.allSame({ _type: STATEMENT, predicateType: CERTIFICATE });
    const given = (name, read) => (predicate.has(name) ? read(predicate.inner(name)) : undefined);
    const list = (from, name, words) => from.take(name, ...OBJECTS(words)).map((one) => top.part(name, one));
    this.readAgreement(predicate.inner("job"), predicate.inner("head"));
    const leaves = this.agreement.job.state_count;
    this.final = predicate.inner("finalState").record(FINAL);
    const files = list(top, "subject", "at least one file")
      .map((one) => [one.take("name", ...FILE), one.inner("digest").digest("sha256")]);
    this.files = new Map(files);
    if (String(sorted(this.files.keys())) !== String(files.map(([name]) => name)))
      refuse("subject: expected ascending names of files, got others");
    this.weights = new Weights(predicate.inner("weights"), leaves);
    this.audits = predicate.has("audits") && list(predicate, "audits", "seats").map((one) => one.record(SEAT));
    this.settlement = given("settlement", (found) => found.record(LOGGED));
    this.adapter = given("adapter", (found) => (
      { ...found.record({ configuration: DIGEST, root: DIGEST }), base: new Weights(found.inner("base"), leaves) }));
    this.start = given("start", (found) => {
      const own = found.inner("nodes"), differs = (node) => [DIGEST[0], (value) => DIGEST[1](value) && value !== node];
      const nodes = this.weights.nodes.map((node, n) => own.has(`${n}`) ? own.take(`${n}`, ...differs(node)) : node);
      return { root: found.digest("root"), nodes };
    });
    this.others = given("others", readOthers);
    this.environment = predicate.inner("environment").each(PRINTABLE);
    this.attestation = given("attestation", (found) => readAttestation(found, this.head.head.run_root));
    given("sizes", checkSizes);
    top.finish();
    if (dumps(top.data) !== new TextDecoder("utf-8", { ignoreBOM: true }).decode(payload))
      refuse("statement: expected its one spelling, got another");
  }

  readAgreement(job, head) {
    this.agreement = new SignedJob(this.recheck, fromBase64("job, signed", job.text("signed")));
    this.head = new SignedHead(fromBase64("head, signed", head.text("signed")));
    const { job: signed, domain, id, checkpoints, isLogged } = this.agreement;
    job.allSame({
      id, client: `0x${signed.client}`, trainer: `0x${signed.trainer}`, chain: `${domain.chain}`,
      board: `0x${domain.contract}`, data: signed.data_root, program: signed.program_root,
      firstState: signed.initial_state_root, steps: signed.steps, checkpoints,
      policy: isLogged ? "logged" : "exact", precision: signed.precision,
    });
    head.allSame({ count: this.head.head.count, runRoot: this.head.head.run_root });
  }

  verify() {
    const { agreement, recheck, final } = this, { checkpoints, job } = agreement;
    const { count, run_root: root } = this.head.head;
    if (!agreement.domain.chain && (this.settlement || this.audits))
      refuse("certificate: expected nothing that a chain has settled or paid, as it names none");
    agreement.verify(); // (2)
    this.head.verify(agreement); // (3)
    if (count !== checkpoints) refuse(`head: expected one of all ${checkpoints} checkpoints, got ${count}`);
    const depth = depthOf(checkpoints), record = recheck.record(job.steps, final.root, final.lossBits, final.logRoot);
    if (final.path.length !== depth) refuse(`expected ${depth} siblings of 32 bytes, got ${final.path.length}`);
    const found = recheck.fold(record, count - 1n, final.path); // (4)
    if (found !== root) refuse(`expected root ${root}, got ${found} from position ${count - 1n}`);
    agreement.checkLoss(job.steps, final.lossBits);
    this.weights.check(this.leaves);
    this.adapter?.base.check(this.leaves);
  }

  /** The addresses under the statement (5). */
  signersOf({ kind, payload, signatures }) {
    const { recheck, agreement: { job: { trainer } } } = this, found = [];
    const what = "certificate: expected a signature by";
    const head = utf8(`DSSEv1 ${kind.length} ${kind} ${payload.length} `);
    const digest = recheck.sha256(Uint8Array.of(...head, ...payload));
    for (const [key, signature] of [...signatures].filter(([id]) => id.startsWith("0x"))) {
      const signer = naming(`${what} ${key}, got none`, () => recheck.signer(digest, signature));
      if (key !== `0x${signer}`) refuse(`${what} ${key}, got one by 0x${signer}`);
      found.push(signer);
    }
    return found.includes(trainer) ? found : refuse(`${what} its trainer, 0x${trainer}, got none`);
  }

  get leaves() { return Number(this.agreement.job.state_count); }
  get isEvaluation() { return this.files.size === 1 && this.files.has("scores.safetensors"); }

  checkTensors(ids) {
    this.weights.checkRoot(this.recheck, this.leaves, "weights", ids, this.final.root, "the run ended with"); // (6)
  }

  checkBase(ids, base) {
    if (!this.adapter) refuse("certificate: expected one for an adapter, which has a base, got one for a model");
    const own = this.weights.entries(ids), { root, base: weights } = this.adapter;
    weights.checkRoot(this.recheck, this.leaves, "base", base, this.final.root, "the run ended with", own); // (7)
    const frozen = [...weights.entries(base)].filter(([entry]) => !own.has(entry));
    checkName(this.recheck, "base", root, frozen.map(([, id]) => id));
  }

  checkStart(ids) {
    if (!this.start) refuse("certificate: expected one that names what its run started from, got an older one");
    const { recheck, leaves, weights, start } = this, first = this.agreement.job.initial_state_root;
    const began = Object.assign(Object.create(Weights.prototype), weights, { nodes: start.nodes });
    began.checkRoot(recheck, leaves, "start", ids, first, "the run started from"); // (8)
    checkName(recheck, "start", start.root, weights.entries(ids).values());
  }

  role(signer) {
    const { trainer, client } = this.agreement.job;
    return signer === trainer ? "trainer" : signer === client ? "client" : "auditor";
  }

  /** Sentences that follow from the certificate alone. */
  proves() {
    const { job, domain } = this.agreement, role = (signer) => this.role(signer);
    const where = domain.chain ? `board 0x${domain.contract} of chain ${domain.chain}` : "no chain";
    return [
      `The client 0x${job.client} and the trainer 0x${job.trainer} agreed on program, data, first state and `
      + `${commas(job.steps)} steps, with ${where} to judge them; both signed.`,
      "The trainer is bound to the final state: a replay that ends in another one convicts it by the signed head in "
      + "this certificate.",
      ...this.signers.filter((signer) => role(signer) !== "trainer").map((signer) => role(signer) === "client"
        ? "The client signed for these weights too."
        : `0x${signer} signed too, and so says that its own replay of the run ended in this state.`),
    ];
  }

  /** Sentences on what the certificate does not prove. */
  leavesOpen(baseGiven = false) {
    const { adapter, attestation, environment, weights, agreement, isEvaluation } = this;
    const check = environment.get("check"), late = environment.get("late data"), rest = this.leaves - weights.count;
    const ends = [...weights.suffixes].map(([end, entry]) => `${end} as ${entry}`);
    return [
      "That the run was computed as agreed: the signers say so. An audit finds out, with the run's files.",
      "Whose the keys are, and that the signers are independent of each other: anybody can make keys.",
      "What program and data are: they are named by their roots, and shown by the run's files.",
      "When it was signed, and on which machine: that is the word of whoever made it.",
      attestation && `What the attestation in it, of type ${attestation.type}, says of a machine: nothing here reads `
        + "it (--attestation-verifier), and no machine's word makes a result right.",
      agreement.isLogged
        && "Unverifiable: how sums within the job's tolerance were rounded, which the trainer's log says.",
      adapter && (isEvaluation
        ? "What evaluation.json says of examples, columns and metrics: the signers say that the program computed so. "
          + "Whoever has the examples makes the program again (`tiebreak evaluate --against`)."
        : "What adapter_config.json and the names make of the tensors (scale, rank, places): the signers say that the "
          + `program computed so, with ${listed(ends)}.`),
      adapter && !baseGiven && `That these are ${isEvaluation ? "scores" : "adapters"} of your model: the signers name `
        + `a base of root ${adapter.root} (--base).`,
      check && `That the program is the model that was captured: by its maker's word, ${check}.`,
      late && `What was declared of the data that the trainer gave with each step: ${late}.`,
      rest && `That the files hold the whole model: ${rest} entries of the state, such as moments, are in none.`,
      agreement.domain.chain
        && "That the job was settled and auditors were paid: no node of its chain was asked (--rpc).",
    ].filter(Boolean);
  }
}

/** Names joined for a message: the first 20, and the number of the rest. */
export function listed(names) {
  const more = names.length > 20 ? ` and ${commas(names.length - 20)} more` : "";
  return names.slice(0, 20).map(quoted).join(", ") + more;
}
