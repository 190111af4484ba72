/** Certificates (tiebreak/protocol/commitments/certificate.py), with the same numbered plan and sentences. */
import { STATE, naming, refuse, utf8 } from "./module.js";
import { JsonFields, base64, commas, dumps, fromBase64, isInteger, quoted, readEnvelope, sorted } from "./formats.js";
import { SignedHead, SignedJob } from "./job.js";

const depthOf = (leaves) => (leaves > 1 ? (BigInt(leaves) - 1n).toString(2).length : 0);
const isList = (value) => Array.isArray(value) && value.length > 0;

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

const isPlace = (pair) => Array.isArray(pair) && pair.length === 2 && pair.every((x) => isInteger(x, 0n, (1n << 32n) - 1n));

/** The entries of a state that the tensors of some files are. Ids are Maps from the names of tensors in files. */
class Weights {
  /** @param {JsonFields} found */
  static read(found) {
    const texts = (key) => found.inner(key).texts();
    return Object.assign(new Weights(), {
      prefix: found.printable("prefix"), names: texts("names"),
      suffixes: found.has("suffixes") ? texts("suffixes") : new Map(),
      places: found.take("places", "pairs of integers", (x) => isList(x) && x.every(isPlace)).map((pair) => pair.map(Number)),
      nodes: found.digests("nodes"),
    });
  }

  with(nodes) { return Object.assign(new Weights(), this, { nodes }); }
  get count() { return this.places.reduce((sum, [, count]) => sum + count, 0); }

  document(leaves) {
    const { prefix, names, places, nodes, suffixes, count } = this;
    return { entries: count, of: leaves, prefix, names, places, nodes, suffixes: suffixes.size ? suffixes : undefined };
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
    if (this.names.has(name)) return this.names.get(name);
    const ends = ["", ...this.suffixes.keys()].filter((end) => name.endsWith(end));
    const end = ends.reduce((most, one) => one.length > most.length ? one : most);
    return this.prefix + name.slice(0, name.length - end.length) + (this.suffixes.get(end) ?? "");
  }

  entries(ids) {
    const found = new Map();
    for (const [name, tensor] of ids) {
      const entry = this.entry(name);
      if ((found.get(entry) ?? tensor) !== tensor)
        refuse(`weights: expected one tensor for ${entry}, got two, one of them ${name}`);
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
    if (root !== expected) refuse(`${what}: expected tensors under state root ${expected}, got ${root}: a tensor has another `
      + `name, type, shape or value than ${run}`);
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
const FILE = /^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$/;
const OTHER = /^(?!.{256})(?!\.{1,2}(?:\/|$))[ -.0-~]+(?:\/(?!\.{1,2}(?:\/|$))[ -.0-~]+)*$/;
const MAX_OPERATIONS = (1n << 80n) - 1n, MAX_OTHERS = 100, MAX_SHAPES = 32, MAX_EVIDENCE = 7 << 10;

// What is read of a part of the predicate is what the part says again.

const readLogged = (found) => ({ transaction: `0x${found.hex("transaction", 32)}`, block: found.integer("block", 0n, (1n << 64n) - 1n) });

function readSeat(item) {
  const one = new JsonFields("seat", item);
  return { auditor: `0x${one.hex("auditor", 20)}`, seat: one.integer("seat", 0n, 255n), ...readLogged(one) };
}

function readSizes(found) {
  const [parameters, trained, operations] = ["parameters", "trained", "operations"].map((name) => found.integer(name, 0n, MAX_OPERATIONS));
  const isSize = (size) => isInteger(size, 0n, MAX_OPERATIONS), shapes = found.inner("data");
  const data = shapes.all((name) => shapes.take(name, "a shape", (sizes) => Array.isArray(sizes) && sizes.length <= 8 && sizes.every(isSize)));
  if (data.size > MAX_SHAPES) refuse(`sizes: expected shapes of at most ${MAX_SHAPES} printable names, got others`);
  return { parameters, trained, operations, data };
}

function readAttestation(found) {
  const evidence = found.text("evidence"), size = fromBase64("attestation", evidence).length;
  if (!size || size > MAX_EVIDENCE)
    refuse(`attestation: expected evidence of 1 to ${commas(MAX_EVIDENCE)} bytes, got ${commas(size)}`);
  return { type: found.text("type", /^[a-z0-9][a-z0-9.+-]{0,63}$/, "a type such as nvidia-gpu-eat"), evidence };
}

function readOthers(found) {
  const names = [...found.left.keys()];
  if (names.length > MAX_OTHERS || !names.every((name) => OTHER.test(name)))
    refuse(`others: expected at most ${MAX_OTHERS} paths in a folder, got ${names.length}, or other names`);
  return found.all((name) => found.digest(name));
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

  /** Reads the statement, makes it again from its content, and compares every byte (1). */
  decode({ kind, payload }) {
    if (kind !== PAYLOAD) refuse(`envelope: expected a payload of type ${PAYLOAD}, got ${kind}`);
    const top = JsonFields.parse("statement", payload, 6);
    top.same("_type", STATEMENT);
    top.same("predicateType", CERTIFICATE);
    const predicate = top.inner("predicate"), signed = (name) => fromBase64(`${name}, signed`, predicate.inner(name).text("signed"));
    const given = (name, read) => (predicate.has(name) ? read(predicate.inner(name)) : undefined);
    this.agreement = new SignedJob(this.recheck, signed("job"));
    this.head = new SignedHead(signed("head"));
    const final = predicate.inner("finalState");
    this.state = final.digest("root");
    this.loss = final.integer("lossBits", 0n, (1n << 32n) - 1n);
    this.log = final.digest("logRoot");
    this.path = final.digests("path");
    this.files = new Map(top.take("subject", "at least one file", isList).map((item) => {
      const one = new JsonFields("subject", item);
      return [one.text("name", FILE, "the name of a file"), one.inner("digest").digest("sha256")];
    }));
    this.weights = Weights.read(predicate.inner("weights"));
    this.audits = predicate.has("audits") ? predicate.take("audits", "seats", isList).map(readSeat) : undefined;
    this.settlement = given("settlement", readLogged);
    this.adapter = given("adapter", (found) => ({
      configuration: found.digest("configuration"), root: found.digest("root"), base: Weights.read(found.inner("base")),
    }));
    this.start = given("start", (found) => {
      const own = found.inner("nodes"), theirs = this.weights.nodes;
      const nodes = theirs.map((node, n) => [`${n}`, own.has(`${n}`) ? own.digest(`${n}`) : node]);
      return { root: found.digest("root"), nodes: new Map(nodes.filter(([, node], n) => node !== theirs[n])) };
    });
    this.sizes = given("sizes", readSizes);
    this.others = given("others", readOthers);
    this.environment = predicate.inner("environment").texts();
    this.attestation = given("attestation", readAttestation);
    const made = dumps(this.document()), text = new TextDecoder("utf-8", { ignoreBOM: true }).decode(payload);
    let at = 0;
    while (at < made.length && made[at] === text[at]) at++;
    if (made !== text) refuse("statement: expected what the signed job and head in it say, in its one spelling, got another, "
      + `from character ${at} on: ${quoted(text.slice(at, at + 80))}`);
  }

  /** The statement that has this content. */
  document() {
    const { agreement, adapter, attestation, leaves } = this, { job, domain, id, checkpoints, isLogged } = agreement;
    const { head, bytes } = this.head;
    const subject = sorted(this.files.keys()).map((name) => ({ name, digest: { sha256: this.files.get(name) } }));
    const predicate = {
      job: {
        id, client: `0x${job.client}`, trainer: `0x${job.trainer}`, chain: String(domain.chain), board: `0x${domain.contract}`,
        data: job.data_root, program: job.program_root, firstState: job.initial_state_root, steps: job.steps, checkpoints,
        policy: isLogged ? "logged" : "exact", precision: job.precision, signed: base64(agreement.bytes),
      },
      head: { count: head.count, runRoot: head.run_root, signed: base64(bytes) },
      finalState: { root: this.state, lossBits: this.loss, logRoot: this.log, path: this.path },
      weights: this.weights.document(leaves), environment: this.environment,
      audits: this.audits, settlement: this.settlement,
      adapter: adapter && { ...adapter, base: adapter.base.document(leaves) },
      start: this.start, sizes: this.sizes, others: this.others,
      attestation: attestation && { ...attestation, nonce: head.run_root },
    };
    return { _type: STATEMENT, subject, predicateType: CERTIFICATE, predicate };
  }

  verify() {
    const { agreement, recheck, path } = this, { head } = this.head, { checkpoints, job } = agreement;
    if (!agreement.domain.chain && (this.settlement || this.audits))
      refuse("certificate: expected nothing that a chain has settled or paid, as it names none");
    agreement.verify(); // (2)
    this.head.verify(agreement); // (3)
    if (head.count !== checkpoints) refuse(`head: expected one of all ${checkpoints} checkpoints, got ${head.count}`);
    if (path.length !== depthOf(checkpoints)) refuse(`expected ${depthOf(checkpoints)} siblings of 32 bytes, got ${path.length}`);
    const found = recheck.fold(recheck.record(job.steps, this.state, this.loss, this.log), head.count - 1n, path);
    if (found !== head.run_root) refuse(`expected root ${head.run_root}, got ${found} from position ${head.count - 1n}`); // (4)
    agreement.checkLoss(job.steps, this.loss);
    this.weights.check(this.leaves);
    this.adapter?.base.check(this.leaves);
  }

  /** The addresses under the statement (5). */
  signersOf({ kind, payload, signatures }) {
    const { recheck, agreement: { job: { trainer } } } = this, found = [];
    const digest = recheck.sha256(Uint8Array.of(...utf8(`DSSEv1 ${kind.length} ${kind} ${payload.length} `), ...payload));
    for (const [key, signature] of [...signatures].filter(([id]) => id.startsWith("0x"))) {
      const signer = naming(`certificate: expected a signature by ${key}, got none`, () => recheck.signer(digest, signature));
      if (key !== `0x${signer}`) refuse(`certificate: expected a signature by ${key}, got one by 0x${signer}`);
      found.push(signer);
    }
    return found.includes(trainer) ? found : refuse(`certificate: expected a signature by its trainer, 0x${trainer}, got none`);
  }

  get leaves() { return Number(this.agreement.job.state_count); }
  get isEvaluation() { return this.files.size === 1 && this.files.has("scores.safetensors"); }

  checkTensors(ids) {
    this.weights.checkRoot(this.recheck, this.leaves, "weights", ids, this.state, "the run ended with"); // (6)
  }

  checkBase(ids, base) {
    if (!this.adapter) refuse("certificate: expected one for an adapter, which has a base, got one for a model");
    const own = this.weights.entries(ids), { root, base: weights } = this.adapter;
    weights.checkRoot(this.recheck, this.leaves, "base", base, this.state, "the run ended with", own); // (7)
    const frozen = [...weights.entries(base)].filter(([entry]) => !own.has(entry));
    checkName(this.recheck, "base", root, frozen.map(([, id]) => id));
  }

  checkStart(ids) {
    if (!this.start) refuse("certificate: expected one that names what its run started from, got an older one");
    const { recheck, leaves, weights, start } = this, first = this.agreement.job.initial_state_root;
    const began = weights.with(weights.nodes.map((node, n) => start.nodes.get(`${n}`) ?? node));
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
      "The trainer is bound to the final state: a replay that ends in another one convicts it by the signed head in this "
      + "certificate.",
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
      attestation && `What the attestation in it, of type ${attestation.type}, says of a machine: nothing here reads it `
        + "(--attestation-verifier), and no machine's word makes a result right.",
      agreement.isLogged
        && "Unverifiable: how sums within the job's tolerance were rounded, which the trainer's log says.",
      adapter && (isEvaluation
        ? "What evaluation.json says of examples, columns and metrics: the signers say that the program computed so. Whoever has "
          + "the examples makes the program again (`tiebreak evaluate --against`)."
        : "What adapter_config.json and the names make of the tensors (scale, rank, places): the signers say that the program "
          + `computed so, with ${listed(ends)}.`),
      adapter && !baseGiven && `That these are ${isEvaluation ? "scores" : "adapters"} of your model: the signers name a base of `
        + `root ${adapter.root} (--base).`,
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
