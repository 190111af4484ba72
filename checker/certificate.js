/** Certificates (tiebreak/protocol/commitments/certificate.py), with the same numbered plan and sentences. */
import { Refused, STATE, bytesOf, hexOf, refuse, utf8 } from "./module.js";
import { JsonFields, base64, commas, dumps, fromBase64, isInteger, quoted, readEnvelope, shown, sorted } from "./formats.js";
import { itemsOf, requireBytes, uint, unpack, versioned } from "./msgpack.js";

const MAX_JOB = 2048, MAX_SECONDS = 1n << 28n, MAX_GAME_SECONDS = 1n << 25n, MAX_GAMES = 16n, FINITE_LOSSES = 1n << 24n;
const ZERO = "00".repeat(20);
/** The order of secp256k1's group. */
const ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141n;

// ---------------------------------------------------------------- jobs and heads (SPEC section 8)

const WEI = [256, 0n, (1n << 128n) - 1n], SECONDS = [64, 1n, MAX_SECONDS], COUNT = [32, 1n, 1n << 20n];
/** Fields in order: bytes by their number, or an integer's bits, least and greatest value. */
const JOB = {
  client: 20, trainer: 20, program_root: 32, body_count: COUNT, state_count: COUNT, data_count: [32, 0n, 1n << 20n],
  initial_state_root: 32, data_root: 32, steps: [64, 1n], checkpoint_interval: [64, 1n], policy: [8, 0n, 1n],
  precision: [8, 16n, 32n], tolerances: [32], reward: WEI, trainer_stake: WEI, challenger_stake: [256, 1n, WEI[2]],
  challenge_window: SECONDS, clock: [64, 1n, MAX_GAME_SECONDS], replay_time: [64, 0n, MAX_GAME_SECONDS],
  talk_time: [64, 0n, MAX_GAME_SECONDS], audit_time: [64, 0n, MAX_SECONDS], deadline: SECONDS, seats: [8, 0n, 16n],
  seat_fee: WEI, seat_bond: WEI, descent_levels: [8, 1n, 5n], nonce: [256],
};
const HEAD = { job_id: 32, count: [64, 1n], run_root: 32 };

const wide = (bytes) => BigInt(`0x${hexOf(bytes) || "0"}`);
const word = (value) => (typeof value === "bigint" ? value.toString(16) : value).padStart(64, "0");

/** A record of fields from a decoded array, each checked. @returns {Object<string, bigint | string>} numbers, and hex */
function record(what, name, kinds, items) {
  const found = {};
  Object.entries(kinds).forEach(([field, kind], n) => {
    const place = `${what}, field ${n + 1}`, isWide = Array.isArray(kind) && kind[0] > 64;
    found[field] = isWide ? wide(requireBytes(place, items[n], kind[0] / 8)) : items[n];
  });
  for (const [field, kind] of Object.entries(kinds)) {
    const called = `${name}.${field}`;
    found[field] = Array.isArray(kind) ? uint(called, found[field], ...kind) : hexOf(requireBytes(called, found[field], kind));
  }
  return found;
}

const camel = (name) => name.replace(/_([a-z0-9])/g, (_, c) => c.toUpperCase());
const solidity = (kind) => (Array.isArray(kind) ? `uint${kind[0]}` : kind === 20 ? "address" : `bytes${kind}`);

/** EIP-712 `hashStruct`. */
function hashStruct(recheck, name, kinds, values) {
  const type = `${name}(${Object.entries(kinds).map(([field, kind]) => `${solidity(kind)} ${camel(field)}`).join(",")})`;
  const words = Object.keys(kinds).map((field) => word(values[field]));
  return recheck.keccak256(bytesOf(recheck.keccak256(utf8(type)) + words.join("")));
}

/** What is signed of a structure, by its hash. @param {{chain: bigint, contract: string}} domain */
function toSign(recheck, domain, hash) {
  const text = (words) => recheck.keccak256(utf8(words));
  const type = "EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)";
  const words = [text(type), text("Tiebreak"), text("1"), word(domain.chain), word(domain.contract)];
  return recheck.keccak256(bytesOf(`1901${recheck.keccak256(bytesOf(words.join("")))}${hash}`));
}

/** The address whose key made a signature. */
export function recover(recheck, digest, signature) {
  if (signature.length !== 65) refuse(`expected a signature of 65 bytes, got ${signature.length}`);
  const r = wide(signature.subarray(0, 32)), s = wide(signature.subarray(32, 64)), v = signature[64];
  if (r < 1n || r >= ORDER) refuse("expected r between 1 and the group order");
  if (s < 1n || s > ORDER / 2n) refuse("expected s in the lower half of the group order");
  if (v !== 27 && v !== 28) refuse(`expected v of 27 or 28, got ${v}`);
  try {
    return recheck.signer(digest, signature);
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    return refuse("no secp256k1 key makes this signature over this digest");
  }
}

export function verifySignature(recheck, digest, signature, address) {
  const found = recover(recheck, digest, signature);
  if (found !== address) refuse(`expected a signature by 0x${address}, got one by 0x${found}`);
}

/** A job file, with what follows from its fields (tiebreak/protocol/commitments/job.py). */
export class SignedJob {
  /** @param {Uint8Array} bytes */
  constructor(recheck, bytes) {
    const [, chain, contract, fields, client, trainer] = versioned("job file", unpack(bytes, MAX_JOB), 6);
    this.bytes = bytes;
    this.domain = { chain: wide(requireBytes("job file, field 2", chain, 32)), contract: hexOf(requireBytes("job file, field 3", contract, 20)) };
    const where = "job file, field 4";
    this.job = record(where, "Job", JOB, itemsOf(where, fields, Object.keys(JOB).length));
    checkJob(this.job);
    this.client = requireBytes("job file, field 5", client, 65);
    this.trainer = trainer instanceof Uint8Array && !trainer.length ? trainer : requireBytes("job file, field 6", trainer, 65);
    this.id = hashStruct(recheck, "Job", JOB, this.job);
    this.checkpoints = (this.job.steps + this.job.checkpoint_interval - 1n) / this.job.checkpoint_interval;
  }

  verify(recheck) {
    const digest = toSign(recheck, this.domain, this.id);
    verifySignature(recheck, digest, this.client, this.job.client);
    verifySignature(recheck, digest, this.trainer, this.job.trainer);
  }

  get isLogged() { return this.job.policy === 1n; }

  /** Refuses a record whose loss the job forbids. */
  checkLoss(step, loss) {
    if (!(this.job.tolerances & FINITE_LOSSES) || (loss & 0x7f800000n) !== 0x7f800000n) return;
    const said = loss & 0x7fffffn ? "nan" : loss >> 31n ? "-inf" : "inf";
    refuse(`step ${step}: expected a finite loss, as the job demands, got ${said} (0x${loss.toString(16).padStart(8, "0")})`);
  }
}

/** What the fields of a job must be together. */
function checkJob(job) {
  for (const name of ["client", "trainer"]) if (job[name] === ZERO) refuse(`job: expected a ${name} address, got zero`);
  const sums = job.tolerances & ~FINITE_LOSSES, logged = job.policy === 1n;
  ["PLAIN", "PRODUCTS", "SCATTER"].forEach((kind, n) => {
    const own = (sums >> BigInt(8 * n)) & 255n;
    if (own && (own < 2n || own > 64n)) refuse(`tolerances: expected 0 or 2 to 64 for ${kind} sums, got ${own}`);
  });
  if (sums >> 24n) refuse(`tolerances: expected a number below 2^24, got 0x${sums.toString(16)}`);
  if (job.tolerances & FINITE_LOSSES && !logged) refuse("job: expected policy logged if finite losses are demanded, got policy exact");
  if (job.tolerances && !logged) refuse(`job: expected tolerances 0 under policy exact, got 0x${job.tolerances.toString(16)}`);
  if (job.seats && logged) refuse(`job: expected no seats under policy logged, got ${job.seats}`);
  if (job.seat_fee && !job.seats) refuse(`job: expected a seat fee of 0 without seats, got ${job.seat_fee}`);
  if (!job.seat_bond !== !job.seats)
    refuse(`job: expected a seat bond ${job.seats ? "of at least 1 with seats" : "of 0 without seats"}, got ${job.seat_bond}`);
  if (job.seat_bond & (job.seat_bond - 1n)) refuse(`job: expected a seat bond that is a power of two, got ${job.seat_bond}: jobs of one bond share a pool`);
  const worth = 1n << (MAX_GAMES - 2n), all = job.reward + job.trainer_stake + job.seats * (job.seat_fee + job.seat_bond);
  const least = (all + worth - 1n) / worth;
  if (job.challenger_stake < least)
    refuse(`job: expected a challenger's stake of at least ${least} wei, got ${job.challenger_stake}: for less a trainer could `
      + `fill the job with ${MAX_GAMES} games of its own and shut challengers out`);
  const game = job.talk_time + 3n * job.clock + 6n * MAX_GAMES * job.replay_time;
  if (game > MAX_GAME_SECONDS)
    refuse(`job: expected a game of at most ${MAX_GAME_SECONDS} seconds, got ${game}: talk, three clocks, and six allowances, `
      + `each for ${MAX_GAMES} games`);
  if (job.checkpoint_interval > job.steps)
    refuse(`job: expected a checkpoint interval of at most ${job.steps} steps, got ${job.checkpoint_interval}`);
  const audits = ((job.steps + job.checkpoint_interval - 1n) / job.checkpoint_interval) * job.audit_time;
  if (audits > MAX_SECONDS) refuse(`job: expected an audit of all segments of at most ${MAX_SECONDS} seconds, got ${audits}`);
}

export class SignedHead {
  /** @param {Uint8Array} bytes */
  constructor(bytes) {
    const items = versioned("head file", unpack(bytes, MAX_JOB), 5);
    this.bytes = bytes;
    this.head = record("head", "Head", HEAD, items.slice(1, 4));
    this.signature = requireBytes("head file, field 5", items[4], 65);
  }

  /** @param {SignedJob} agreement */
  verify(recheck, agreement) {
    const { job_id: id, count } = this.head;
    if (id !== agreement.id) refuse(`head: expected job ${agreement.id}, got ${id}`);
    if (count > agreement.checkpoints) refuse(`head: expected at most ${agreement.checkpoints} checkpoints, got ${count}`);
    const digest = toSign(recheck, agreement.domain, hashStruct(recheck, "Head", HEAD, this.head));
    verifySignature(recheck, digest, this.signature, agreement.job.trainer);
  }
}

// ---------------------------------------------------------------- trees

const depthOf = (leaves) => (BigInt(leaves) - 1n > 0n ? (BigInt(leaves) - 1n).toString(2).length : 0);

export function verifyPath(recheck, root, depth, position, leaf, siblings) {
  if (position < 0n || position >= 1n << BigInt(depth)) refuse(`expected a position below ${1n << BigInt(depth)}, got ${position}`);
  if (siblings.length !== depth) refuse(`expected ${depth} siblings of 32 bytes, got ${siblings.length}`);
  const found = recheck.fold(leaf, position, siblings);
  if (found !== root) refuse(`expected root ${root}, got ${found} from position ${position}`);
}

/** The root of a tree, from some leaves by ascending place and the nodes that cover all others, from left to right. */
function rootOfShown(recheck, leaves, places, shownLeaves, nodes) {
  let used = 0, next = 0;
  const fold = (height, position) => {
    const first = position * 2 ** height;
    if (first >= leaves) return recheck.empty(height);
    if (!(places[next] < first + 2 ** height)) {
      return used < nodes.length ? nodes[used++] : refuse(`expected a node at height ${height}, position ${position}, got none`);
    }
    if (!height) return shownLeaves[next++];
    return recheck.node(fold(height - 1, 2 * position), fold(height - 1, 2 * position + 1));
  };
  const root = fold(depthOf(leaves), 0);
  return used === nodes.length ? root : refuse(`expected ${used} nodes, got ${nodes.length}`);
}

// ---------------------------------------------------------------- weights of a certificate

/** (suffix of a name from a dot on, its replacement in the entry) if only words are inserted there. */
function inserted(name, entry) {
  const words = name.split("."), more = entry.split("."), extra = more.length - words.length;
  let same = 0;
  while (same < words.length && words[same] === more[same]) same++;
  if (same < 2 || extra < 1 || words.slice(same).join(".") !== more.slice(same + extra).join(".")) return null;
  return [["", ...words.slice(same - 1)].join("."), ["", ...more.slice(same - 1)].join(".")];
}

const isList = (value) => Array.isArray(value) && value.length > 0;
const isPlace = (pair) => Array.isArray(pair) && pair.length === 2 && pair.every((x) => isInteger(x, 0n, (1n << 32n) - 1n));

/** The entries of a state that the tensors of some files are. Ids are Maps from the names of tensors in files. */
class Weights {
  /** @param {JsonFields} found */
  static read(found) {
    const made = new Weights();
    made.prefix = found.text("prefix", /^[ -~]{0,255}$/, "printable text");
    made.names = found.inner("names").texts();
    made.suffixes = found.has("suffixes") ? found.inner("suffixes").texts() : new Map();
    made.places = found.take("places", "pairs of integers", (x) => isList(x) && x.every(isPlace)).map((pair) => pair.map(Number));
    made.nodes = found.digests("nodes");
    return made;
  }

  with(nodes) { return Object.assign(new Weights(), this, { nodes }); }
  get count() { return this.places.reduce((sum, [, count]) => sum + count, 0); }

  document(leaves) {
    const { prefix, names, places, nodes, suffixes } = this;
    return { entries: this.count, of: leaves, prefix, names, places, nodes, ...(suffixes.size ? { suffixes } : {}) };
  }

  check(leaves) {
    const ends = [0, ...this.places.map(([first, count]) => first + count)], begins = [...this.places.map(([first]) => first), leaves];
    if (ends.some((end, n) => end > begins[n]) || this.places.some(([, count]) => !count)) {
      const said = `(${this.places.map((pair) => `(${pair.join(", ")})`).join(", ")}${this.places.length === 1 ? "," : ""})`;
      refuse(`weights: expected ascending places below ${leaves}, got ${said.slice(0, 200)}`);
    }
    for (const [end, replaced] of this.suffixes) {
      if (inserted(`x${end}`, `x${replaced}`)?.join() !== [end, replaced].join())
        refuse(`weights: expected ${end} with words inserted in it, got ${replaced}`);
    }
  }

  /** The name of the state's entry that is the tensor of this name. */
  entry(name) {
    if (this.names.has(name)) return this.names.get(name);
    let end = "";
    for (const one of this.suffixes.keys()) if (name.endsWith(one) && one.length > end.length) end = one;
    return this.prefix + name.slice(0, name.length - end.length) + (this.suffixes.get(end) ?? "");
  }

  entries(ids) {
    const found = new Map();
    for (const [name, tensor] of ids) {
      const entry = this.entry(name);
      if ((found.get(entry) ?? tensor) !== tensor) refuse(`weights: expected one tensor for ${entry}, got two, one of them ${name}`);
      found.set(entry, tensor);
    }
    return found;
  }

  /** The root of the state whose entries these tensors are. more: tensors of other files, by entry, which come first. */
  root(recheck, leaves, ids, more = new Map()) {
    const found = new Map([...this.entries(ids), ...more]);
    if (found.size !== this.count) refuse(`weights: expected ${this.count} tensors of the state, got ${found.size}`);
    this.check(leaves);
    const places = this.places.flatMap(([first, count]) => Array.from({ length: count }, (_, n) => first + n));
    const leavesShown = sorted(found.keys()).map((name) => stateLeaf(recheck, name, found.get(name)));
    return rootOfShown(recheck, leaves, places, leavesShown, this.nodes);
  }
}

function stateLeaf(recheck, name, tensor) {
  if (!/^[!-~]{1,255}$/.test(name)) refuse(`expected a name of 1 to 255 printable ASCII characters, got ${quoted(name)}`);
  return recheck.entry(STATE, name, tensor);
}

/** The root by which weights are named: that of a state whose entries are these tensors under their ids. */
function nameOf(recheck, tensors) {
  const ids = sorted(new Set(tensors));
  return recheck.tree(ids.length ? ids.map((id) => stateLeaf(recheck, id, id)) : [recheck.empty(0)]);
}

function checkName(recheck, what, expected, tensors) {
  const root = nameOf(recheck, tensors);
  if (root !== expected) refuse(`${what}: expected the root ${expected}, got ${root}`);
}

function checkRoot(what, root, expected, run) {
  if (root !== expected) {
    refuse(`${what}: expected tensors under state root ${expected}, got ${root}: a tensor has another name, type, shape or `
      + `value than ${run}`);
  }
}

// ---------------------------------------------------------------- the statement

const STATEMENT = "https://in-toto.io/Statement/v1", PAYLOAD = "application/vnd.in-toto+json", CERTIFICATE = "urn:tiebreak:certificate:1";
const FILE = /^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$/, OTHER = /^(?!.{256})(?!\.{1,2}(?:\/|$))[ -.0-~]+(?:\/(?!\.{1,2}(?:\/|$))[ -.0-~]+)*$/;
const MAX_OPERATIONS = (1n << 80n) - 1n, MAX_OTHERS = 100, MAX_SHAPES = 32, MAX_EVIDENCE = 7 << 10;

const readLogged = (found) => ({ transaction: `0x${found.hex("transaction", 32)}`, block: found.integer("block", 0n, (1n << 64n) - 1n) });

function readSeat(item) {
  const one = new JsonFields("seat", item);
  return { auditor: `0x${one.hex("auditor", 20)}`, seat: one.integer("seat", 0n, 255n), ...readLogged(one) };
}

function readSizes(found) {
  const shapes = found.inner("data"), names = [...shapes.left.keys()], data = new Map();
  if (names.length > MAX_SHAPES || !names.every((name) => /^[ -~]{0,255}$/.test(name)))
    refuse(`sizes: expected shapes of at most ${MAX_SHAPES} printable names, got others`);
  const made = {};
  for (const name of ["parameters", "trained", "operations"]) made[name] = found.integer(name, 0n, MAX_OPERATIONS);
  const isShape = (value) => Array.isArray(value) && value.length <= 8 && value.every((size) => isInteger(size, 0n, MAX_OPERATIONS));
  for (const name of names) data.set(name, shapes.take(name, "a shape", isShape));
  return { ...made, data };
}

function readAttestation(found) {
  const evidence = fromBase64("attestation", found.text("evidence")), type = found.text("type");
  if (!/^[a-z0-9][a-z0-9.+-]{0,63}$/.test(type)) refuse(`attestation: expected a type such as nvidia-gpu-eat, got ${quoted(type.slice(0, 80))}`);
  if (!evidence.length || evidence.length > MAX_EVIDENCE)
    refuse(`attestation: expected evidence of 1 to ${commas(MAX_EVIDENCE)} bytes, got ${commas(evidence.length)}`);
  return { type, evidence: base64(evidence) };
}

function readOthers(found) {
  const names = [...found.left.keys()];
  if (names.length > MAX_OTHERS || !names.every((name) => OTHER.test(name)))
    refuse(`others: expected at most ${MAX_OTHERS} paths in a folder, got ${names.length}, or other names`);
  return new Map(names.map((name) => [name, found.digest(name)]));
}

/** The first place where two JSON values differ, in words. */
function difference(name, expected, found) {
  if (!(expected instanceof Map && found instanceof Map)) return dumps(expected) === dumps(found) ? ""
    : `${name} ${quoted(shown(found, 80))} instead of ${quoted(shown(expected, 80))}`;
  const others = sorted([...expected.keys(), ...found.keys()].filter((key) => expected.has(key) !== found.has(key)));
  if (others.length) return `${name} with other fields: ${quoted(others[0].slice(0, 40))}`;
  return sorted(expected.keys()).reduce((said, key) => said || difference(`${name}, ${key}`, expected.get(key), found.get(key)), "");
}

/** A certificate that holds by itself, and who has signed it. */
export class SignedCertificate {
  /** @param {import("./module.js").Recheck} recheck @param {Uint8Array} bytes */
  constructor(recheck, bytes) {
    this.recheck = recheck;
    const envelope = readEnvelope(bytes);
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
    const predicate = top.inner("predicate"), [job, head, final] = ["job", "head", "finalState"].map((name) => predicate.inner(name));
    const given = (name, read) => (predicate.has(name) ? read(predicate.inner(name)) : undefined);
    this.agreement = new SignedJob(this.recheck, fromBase64("job, signed", job.text("signed")));
    this.audits = predicate.has("audits") ? predicate.take("audits", "seats", isList) : [];
    this.weights = Weights.read(predicate.inner("weights"));
    this.head = new SignedHead(fromBase64("head, signed", head.text("signed")));
    this.state = final.digest("root"), this.loss = final.integer("lossBits", 0n, (1n << 32n) - 1n), this.log = final.digest("logRoot");
    this.path = final.digests("path");
    this.files = new Map(top.take("subject", "at least one file", isList).map((item) => {
      const one = new JsonFields("subject", item);
      return [one.text("name", FILE, "the name of a file"), one.inner("digest").digest("sha256")];
    }));
    this.audits = this.audits.map(readSeat);
    this.settlement = given("settlement", readLogged);
    this.adapter = given("adapter", (found) => ({
      configuration: found.digest("configuration"), root: found.digest("root"), base: Weights.read(found.inner("base")),
    }));
    this.start = given("start", (found) => {
      const root = found.digest("root"), own = found.inner("nodes");
      return { root, nodes: this.weights.nodes.map((node, n) => (own.has(String(n)) ? own.digest(String(n)) : node)) };
    });
    this.sizes = given("sizes", readSizes);
    this.others = given("others", readOthers);
    this.environment = predicate.inner("environment").texts();
    this.attestation = given("attestation", readAttestation);
    const made = dumps(this.document());
    if (made === new TextDecoder("utf-8", { ignoreBOM: true }).decode(payload)) return;
    const parse = (bytes) => JsonFields.parse("statement", bytes, 8).left;
    const said = difference("statement", parse(utf8(made)), parse(payload)) || "another spelling of it";
    refuse(`statement: expected what the signed job and head in it say, in its one spelling, got ${said}`);
  }

  document() {
    const { job, domain, id, checkpoints, isLogged } = this.agreement, { head } = this.head, leaves = job.state_count;
    const subject = sorted(this.files.keys()).map((name) => ({ name, digest: { sha256: this.files.get(name) } }));
    const predicate = {
      job: {
        id, client: `0x${job.client}`, trainer: `0x${job.trainer}`, chain: String(domain.chain), board: `0x${domain.contract}`,
        data: job.data_root, program: job.program_root, firstState: job.initial_state_root, steps: job.steps, checkpoints,
        policy: isLogged ? "logged" : "exact", precision: job.precision, signed: base64(this.agreement.bytes),
      },
      head: { count: head.count, runRoot: head.run_root, signed: base64(this.head.bytes) },
      finalState: { root: this.state, lossBits: this.loss, logRoot: this.log, path: this.path },
      weights: this.weights.document(leaves), environment: this.environment,
    };
    if (this.audits.length) predicate.audits = this.audits;
    if (this.settlement) predicate.settlement = this.settlement;
    if (this.adapter) predicate.adapter = { ...this.adapter, base: this.adapter.base.document(leaves) };
    if (this.start) {
      const nodes = this.start.nodes.map((node, n) => [String(n), node]).filter(([, node], n) => node !== this.weights.nodes[n]);
      predicate.start = { root: this.start.root, nodes: new Map(nodes) };
    }
    if (this.sizes) predicate.sizes = this.sizes;
    if (this.others) predicate.others = this.others;
    if (this.attestation) predicate.attestation = { ...this.attestation, nonce: head.run_root };
    return { _type: STATEMENT, subject, predicateType: CERTIFICATE, predicate };
  }

  verify() {
    const { agreement, recheck } = this, { head } = this.head, { chain } = agreement.domain, leaves = Number(agreement.job.state_count);
    if (!chain && (this.settlement || this.audits.length))
      refuse("certificate: expected nothing that a chain has settled or paid, as it names none");
    agreement.verify(recheck); // (2)
    this.head.verify(recheck, agreement); // (3)
    if (head.count !== agreement.checkpoints) refuse(`head: expected one of all ${agreement.checkpoints} checkpoints, got ${head.count}`);
    const digest = recheck.record(agreement.job.steps, this.state, this.loss, this.log);
    verifyPath(recheck, head.run_root, depthOf(agreement.checkpoints), head.count - 1n, digest, this.path); // (4)
    agreement.checkLoss(agreement.job.steps, this.loss);
    this.weights.check(leaves);
    this.adapter?.base.check(leaves);
  }

  /** The addresses under the statement (5). */
  signersOf({ kind, payload, signatures }) {
    const { recheck } = this, found = [], head = utf8(`DSSEv1 ${kind.length} ${kind} ${payload.length} `);
    const digest = recheck.sha256(Uint8Array.of(...head, ...payload));
    for (const [key, signature] of signatures) {
      if (!key.startsWith("0x")) continue;
      let signer = "";
      try {
        signer = recover(recheck, digest, signature);
      } catch (error) {
        if (!(error instanceof Refused)) throw error;
        refuse(`certificate: expected a signature by ${key}, got none: ${error.message}`);
      }
      if (key !== `0x${signer}`) refuse(`certificate: expected a signature by ${key}, got one by 0x${signer}`);
      found.push(signer);
    }
    const { trainer } = this.agreement.job;
    return found.includes(trainer) ? found : refuse(`certificate: expected a signature by its trainer, 0x${trainer}, got none`);
  }

  get leaves() { return Number(this.agreement.job.state_count); }
  get isEvaluation() { return this.files.size === 1 && this.files.has("scores.safetensors"); }

  checkTensors(ids) {
    checkRoot("weights", this.weights.root(this.recheck, this.leaves, ids), this.state, "the run ended with"); // (6)
  }

  checkBase(ids, base) {
    if (!this.adapter) refuse("certificate: expected one for an adapter, which has a base, got one for a model");
    const own = this.weights.entries(ids), { root, base: weights } = this.adapter;
    checkRoot("base", weights.root(this.recheck, this.leaves, base, own), this.state, "the run ended with"); // (7)
    checkName(this.recheck, "base", root, [...weights.entries(base)].filter(([entry]) => !own.has(entry)).map(([, id]) => id));
  }

  checkStart(ids) {
    if (!this.start) refuse("certificate: expected one that names what its run started from, got an older one");
    const root = this.weights.with(this.start.nodes).root(this.recheck, this.leaves, ids);
    checkRoot("start", root, this.agreement.job.initial_state_root, "the run started from"); // (8)
    checkName(this.recheck, "start", this.start.root, this.weights.entries(ids).values());
  }

  role(signer) {
    const { trainer, client } = this.agreement.job;
    return signer === trainer ? "trainer" : signer === client ? "client" : "auditor";
  }

  /** Sentences that follow from the certificate alone. */
  proves() {
    const { job, domain } = this.agreement, where = domain.chain ? `board 0x${domain.contract} of chain ${domain.chain}` : "no chain";
    const said = {
      trainer: () => [], client: () => ["The client signed for these weights too."],
      auditor: (signer) => [`0x${signer} signed too, and so says that its own replay of the run ended in this state.`],
    };
    return [
      `The client 0x${job.client} and the trainer 0x${job.trainer} agreed on program, data, first state and `
      + `${commas(job.steps)} steps, with ${where} to judge them; both signed.`,
      "The trainer is bound to the final state: a replay that ends in another one convicts it by the signed head in this certificate.",
      ...this.signers.flatMap((signer) => said[this.role(signer)](signer)),
    ];
  }

  /** Sentences on what the certificate does not prove. */
  leavesOpen(baseGiven = false) {
    const { adapter, attestation, environment, weights } = this, said = [
      "That the run was computed as agreed: the signers say so. An audit finds out, with the run's files.",
      "Whose the keys are, and that the signers are independent of each other: anybody can make keys.",
      "What program and data are: they are named by their roots, and shown by the run's files.",
      "When it was signed, and on which machine: that is the word of whoever made it.",
    ];
    if (attestation)
      said.push(`What the attestation in it, of type ${attestation.type}, says of a machine: nothing here reads it `
        + "(--attestation-verifier), and no machine's word makes a result right.");
    if (this.agreement.isLogged)
      said.push("Unverifiable: how sums within the job's tolerance were rounded, which the trainer's log says.");
    if (adapter) {
      const ends = [...weights.suffixes].map(([end, entry]) => `${end} as ${entry}`);
      said.push(this.isEvaluation
        ? "What evaluation.json says of examples, columns and metrics: the signers say that the program computed so. Whoever has "
          + "the examples makes the program again (`tiebreak evaluate --against`)."
        : "What adapter_config.json and the names make of the tensors (scale, rank, places): the signers say that the program "
          + `computed so, with ${listed(ends)}.`);
      const what = this.isEvaluation ? "scores" : "adapters";
      if (!baseGiven) said.push(`That these are ${what} of your model: the signers name a base of root ${adapter.root} (--base).`);
    }
    const check = environment.get("check"), late = environment.get("late data"), rest = this.leaves - weights.count;
    if (check !== undefined) said.push(`That the program is the model that was captured: by its maker's word, ${check}.`);
    if (late !== undefined) said.push(`What was declared of the data that the trainer gave with each step: ${late}.`);
    if (rest) said.push(`That the files hold the whole model: ${rest} entries of the state, such as moments, are in none.`);
    if (this.agreement.domain.chain)
      said.push("That the job was settled and auditors were paid: no node of its chain was asked (--rpc).");
    return said;
  }
}

/** Names joined for a message: the first 20, and the number of the rest. */
export function listed(names) {
  const more = names.length > 20 ? ` and ${commas(names.length - 20)} more` : "";
  return names.slice(0, 20).map((name) => quoted(name, true)).join(", ") + more;
}
