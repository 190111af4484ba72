/**
 * Weights against a certificate (tiebreak/api/certification/certificates.py and folders.py): the same plan and sentences.
 * A file is {size, slice(from, to) -> Promise<Uint8Array>}; a folder a Map of files by path, with null for an empty folder.
 */
import { Refused, hexOf, refuse } from "./module.js";
import { JsonFields, MAX_ENVELOPE, commas, dumps, isDeeper, parseJson, quoted, sorted } from "./formats.js";
import { SignedCertificate, listed } from "./certificate.js";
import { DTYPES, openTensors } from "./tensors.js";

/** @typedef {{size: number, slice: (from: number, to: number) => Promise<Uint8Array>}} Source */
/** @typedef {{name: string, file?: Source, files?: Map<string, Source | null>}} Given weights: one file, or a folder */

const PIECE = 1 << 22, MAX_JSON = 1 << 24, MAX_OTHER = 1 << 28, MAX_CONFIGURATION = 1 << 20;
const MAX_ENTRIES = 10_000, MAX_DEPTH = 8, MAX_JSON_FILES = 1000, MAX_NESTING = 200;
const WEIGHTS = "model.safetensors", INDEX = "model.safetensors.index.json", SUFFIX = ".safetensors";
const ADAPTER = "adapter_config.json", ADAPTER_WEIGHTS = "adapter_model.safetensors";
const EVALUATION = "evaluation.json", SCORES = "scores.safetensors", CONFIGURED = [[ADAPTER, ADAPTER_WEIGHTS], [EVALUATION, SCORES]];
/** What `certify --for` writes. */
const FORMATS = new Set(["slsa.json", "model.sig", "receipt.json", "intoto.json", "cdx.json", "spdx.json", "dossier.html"]
  .map((name) => `tiebreak.${name}`));
const HARMLESS = new Set(["", ".json", ".txt", ".md", ".jinja", ".model", ".sig"]), PROSE = new Set(["", ".md", ".sig"]);
const PIPELINES = new Set([ADAPTER, "modules.json", "model_index.json"]);
const TABLES = new Set([INDEX, "tokenizer.json", "vocab.json", "added_tokens.json"]);
const MISLEADING = new Set(["auto_map", "compression_config", "custom_pipelines", "kernel_config", "megatron_config",
  "quantization_config", "transformers_weights", "trust_remote_code", "use_kernels", "use_pretrained_backbone"]);
const FLOATS = ["F32", "BF16", "F16"], NARROW = { bfloat16: "BF16", float16: "F16" };
const WIDE = new Set(["float32", "float64", "auto", "None"]), MORE = "more than is read here";
const HEAD = /(?:^|\.)(?:lm_head|embed_out|proj_out|output_\w+|(?:predictions|lm_head)\.decoder)\.weight$/u;
const HAS_HEAD = /LMHead|For(?:CausalLM|MaskedLM|ConditionalGeneration)/;

// ---------------------------------------------------------------- reading

/** The bytes of a part of a file, in pieces; the next is read while one is looked at. */
async function* pieces(file, what, from, to) {
  const read = (at) => {
    const next = file.slice(at, Math.min(at + PIECE, to));
    next.catch(() => {}); // whoever takes it sees the error
    return next;
  };
  for (let at = from, next = read(from); at < to; at += PIECE) {
    const piece = await next;
    if (piece.length !== Math.min(PIECE, to - at)) refuse(`${what}: expected ${to - at} bytes more, got the end of the file`);
    if (at + PIECE < to) next = read(at + PIECE);
    yield piece;
  }
}

async function whole(file, path, limit) {
  if (file.size > limit) refuse(`${path}: expected at most ${limit} bytes, got ${file.size}`);
  const bytes = await file.slice(0, file.size);
  return bytes.length === file.size ? bytes : refuse(`${path}: expected ${file.size} bytes, got ${bytes.length}`);
}

/** Frees what the module took meanwhile. */
async function within(recheck, work) {
  const mark = recheck.exports.mark() >>> 0;
  try { return await work(); } finally { recheck.exports.release(mark); }
}

function sha256Of(recheck, file, path) {
  return within(recheck, async () => {
    const hash = recheck.exports.sha256_begin(), room = recheck.exports.allocate(BigInt(Math.min(PIECE, file.size))) >>> 0;
    for await (const piece of pieces(file, path, 0, file.size)) recheck.exports.sha256_add(hash, recheck.put(piece, room), piece.length);
    return recheck.digest("sha256_end", hash);
  });
}

/** Of each pattern of an F16: that of the F32 of the same value. */
const halves = () => Uint32Array.from({ length: 1 << 16 }, (_, bits) => {
  const exponent = (bits >> 10) & 31, fraction = bits & 1023, sign = (bits >> 15) * 2 ** 31;
  if (exponent) return sign + ((exponent === 31 ? 255 : exponent + 112) << 23 >>> 0) + (fraction << 13);
  return sign + new Uint32Array(Float32Array.of(fraction * 2 ** -24).buffer)[0];
});

/** Narrow floats as F32: a state has no narrower ones. */
function widened(kind, bytes, table) {
  const narrow = new Uint16Array(bytes.buffer, bytes.byteOffset, bytes.length / 2);
  return new Uint8Array(Uint32Array.from(narrow, kind === "BF16" ? (bits) => bits * 65536 : (bits) => table[bits]).buffer);
}

/** One pass over a file: its SHA-256, the ids of its tensors by name, and the types of their elements. */
function readTensors(recheck, file, path, advance) {
  return within(recheck, async () => {
    const arrays = [...(await openTensors(file, path)).values()].sort((a, b) => a.offset - b.offset);
    if (!arrays.length) refuse(`${path}: expected at least one tensor, got none`);
    const { exports } = recheck, hash = exports.sha256_begin(), ids = new Map(), kinds = arrays.map((one) => one.kind);
    const most = Math.min(PIECE, arrays.reduce((all, one) => Math.max(all, one.bytes), arrays[0].offset));
    const [room, wide] = [most, 2 * most].map((bytes) => exports.allocate(BigInt(bytes)) >>> 0), table = kinds.includes("F16") ? halves() : [];
    const add = (piece) => exports.sha256_add(hash, recheck.put(piece, room), piece.length);
    for await (const piece of pieces(file, path, 0, arrays[0].offset)) add(piece);
    for (const { name, what, kind, shape, offset, bytes } of arrays) {
      const isNarrow = kind === "BF16" || kind === "F16", dtype = isNarrow ? 0 : DTYPES.indexOf(kind);
      if (dtype < 0) refuse(`${what}: expected F32, BF16, F16, I64 or BOOL, which a run's tensors fill exactly, got ${kind}`);
      const id = await within(recheck, async () => {
        const dims = new Uint8Array(BigUint64Array.from(shape, BigInt).buffer), tensor = exports.tensor_begin(dtype, shape.length, recheck.put(dims));
        for await (const piece of pieces(file, what, offset, offset + bytes)) {
          add(piece);
          const greatest = kind === "BOOL" ? piece.reduce((most, byte) => Math.max(most, byte), 0) : 0;
          if (greatest > 1) refuse(`${what}: expected bools of 0 and 1, got ${greatest}`);
          if (isNarrow) exports.tensor_add(tensor, recheck.put(widened(kind, piece, table), wide), 2 * piece.length);
          else exports.tensor_add(tensor, room, piece.length);
          await advance(piece.length);
        }
        return hexOf(recheck.get(exports.tensor_id(tensor), 32));
      });
      ids.set(name, id);
    }
    return { digest: recheck.digest("sha256_end", hash), ids, elements: kinds };
  });
}

/** All that is in a folder and its folders, sorted; the path of one that is empty or too deep ends in `/`. */
function othersIn(given) {
  const found = new Set(), places = new Set();
  for (const [path, file] of given.files) {
    const parts = path.split("/"), last = parts.length - (file ? 1 : 0);
    for (let depth = 1; depth <= last; depth++) places.add(parts.slice(0, depth).join("/"));
    found.add(parts.length > MAX_DEPTH + 1 ? `${parts.slice(0, MAX_DEPTH + 1).join("/")}/` : file ? path : `${path}/`);
  }
  if (given.files.size + places.size > MAX_ENTRIES) refuse(`${given.name}: expected at most ${commas(MAX_ENTRIES)} files and folders, got more`);
  return sorted(found);
}

/** Weights, read once (3). @param {Given} given @param {string} [besides] the path of the certificate, if it lies in the folder */
async function readWeights(recheck, given, besides, advance) {
  const read = new Map(), path = (name) => (given.files ? `${given.name}/${name}` : name);
  let configuration = null, configured = null, others = [];
  if (given.files) {
    const top = new Set([...given.files.keys()].map((name) => name.split("/")[0])), at = (name) => given.files.get(name);
    others = othersIn(given);
    configured = CONFIGURED.find((pair) => pair.every((name) => top.has(name)))?.[0];
    if (configured) configuration = recheck.sha256(await whole(at(configured), path(configured), MAX_CONFIGURATION));
    for (const name of sorted(top).filter((one) => one.endsWith(SUFFIX))) {
      if (!at(name)) refuse(`${path(name)}: expected a plain file, got a folder`);
      read.set(name, await readTensors(recheck, at(name), path(name), advance));
    }
    if (!read.size) refuse(`${given.name}: expected ${SUFFIX} files in the folder, got none`);
    if (top.has(INDEX)) checkIndex(path(INDEX), await whole(at(INDEX), path(INDEX), MAX_JSON), read);
    others = others.filter((name) => !read.has(name) && name !== configured && name !== besides);
  } else read.set(given.name, await readTensors(recheck, given.file, given.name, advance));
  const tensors = new Map();
  for (const [name, { ids }] of read) {
    const twice = sorted([...ids.keys()].filter((one) => tensors.has(one)));
    if (twice.length) refuse(`${given.name}: expected each tensor once, got ${quoted(twice[0])} in ${name} once more`);
    ids.forEach((id, one) => tensors.set(one, id));
  }
  return {
    files: new Map([...read].map(([name, { digest }]) => [name, digest])), tensors, configuration, others, same: new Set(),
    different: new Set(), elements: new Set([...read.values()].flatMap((one) => one.elements)), isEvaluation: read.size === 1 && read.has(SCORES),
  };
}

/** Refuses an index, by which a model is loaded, unless it names each tensor and its file. */
function checkIndex(path, bytes, read) {
  const found = JsonFields.parse(path, bytes, 4).take("weight_map", "an object", (x) => x instanceof Map);
  const right = new Map([...read].flatMap(([name, { ids }]) => [...ids.keys()].map((tensor) => [tensor, name])));
  const wrong = sorted([...right.keys(), ...found.keys()].filter((tensor) => right.get(tensor) !== found.get(tensor)));
  if (wrong.length) refuse(`${path}: expected each tensor of the files with its file, got ${quoted(wrong[0])} otherwise`);
}

// ---------------------------------------------------------------- the other files of a folder

const suffixOf = (path) => {
  const last = path.split("/").at(-1), at = last.lastIndexOf(".");
  return at > 0 && at < last.length - 1 ? last.slice(at) : "";
};

/** Compares the other files with the signed ones, and reads only these. */
async function compare(recheck, given, found, signed) {
  for (const [name, digest] of signed) {
    const file = found.others.includes(name) ? given.files.get(name) : null;
    const isSame = file && file.size <= MAX_OTHER && (await sha256Of(recheck, file, name)) === digest;
    (isSame ? found.same : found.different).add(name);
  }
}

/** What makes a loader take other weights than those found from a folder, or run code. */
async function doubtful(given, found, isListed) {
  if (found.isEvaluation) return [];
  const weights = found.configuration === null ? WEIGHTS : ADAPTER_WEIGHTS;
  const indexed = found.others.includes(INDEX) && weights === WEIGHTS && !found.files.has(WEIGHTS);
  const named = new Set([...found.files.keys()].filter((name) => name !== weights && !indexed));
  for (const name of found.different) if (!PROSE.has(suffixOf(name))) named.add(`${name}, not as it was signed for`);
  const settings = found.configuration === null ? [] : [ADAPTER];
  for (const name of found.others) {
    const isInside = name.includes("/"), last = name.split("/").at(-1), suffix = suffixOf(name), isSame = found.same.has(name);
    const misleads = PIPELINES.has(last) || (last.endsWith(".index.json") && name !== INDEX);
    if (isInside && !isSame) named.add(name.split("/")[0]);
    else if (misleads || (!HARMLESS.has(suffix) && name !== "training_args.bin" && !FORMATS.has(name))) named.add(name);
    else if (isListed && !isSame && !found.different.has(name) && !FORMATS.has(name) && !PROSE.has(suffix)) {
      named.add(`${name}, which nobody signed for`);
    }
    if ((!isInside || isSame) && suffix === ".json" && !TABLES.has(last)) settings.push(name);
  }
  for (const [n, name] of settings.entries()) {
    const fields = n < MAX_JSON_FILES ? await misleading(given.files.get(name), found) : [];
    if (n >= MAX_JSON_FILES) named.add(name);
    for (const field of fields) named.add(`${name} with ${field}`);
  }
  return sorted(named);
}

/** The fields of a JSON document, at any depth, by which a loader is misled. */
async function misleading(file, found) {
  if (!file || file.size > MAX_JSON) return [MORE];
  const bytes = await file.slice(0, file.size), fields = new Set(), left = [];
  // UTF-16 and UTF-32, which no loader writes, are not looked into.
  if (bytes.length !== file.size || isDeeper(bytes, MAX_NESTING) || bytes.subarray(0, 4).some((byte) => !byte || byte > 0xfd)) return [MORE];
  try {
    left.push(parseJson(bytes, MAX_NESTING, true));
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    return []; // then a loader does not read it either
  }
  while (left.length) {
    const one = left.pop();
    if (one instanceof Map) for (const [field, value] of one) if (misleads(field, value, one, found)) fields.add(field.slice(0, 80));
    if (one instanceof Map || Array.isArray(one)) for (const value of one.values()) left.push(value);
  }
  return [...fields];
}

const isTrue = (value) => (value instanceof Map ? value.size > 0 : Array.isArray(value) ? value.length > 0 : Boolean(value));
const textOf = (value) => ({ null: "None", true: "True", false: "False" })[String(value)] ?? String(value);

function misleads(field, value, beside, found) {
  if (field.includes("_implementation")) return dumps(value).includes("/"); // of attention or experts: code from a hub
  if (field === "tie_word_embeddings") { // a head that is not the tensor in the files
    const heads = [...found.tensors].filter(([name]) => HEAD.test(name));
    const embedded = new Set([...found.tensors].filter(([name]) => !HEAD.test(name)).map(([, id]) => id));
    if (isTrue(value)) return heads.some(([, id]) => !embedded.has(id));
    return !heads.length && HAS_HEAD.test(dumps(beside.get("architectures") ?? null));
  }
  if (field === "dtype" || field === "torch_dtype") {
    const kinds = (value instanceof Map ? [...value.values()] : [value]).map((kind) => textOf(kind).replace(/^torch\./, ""));
    return kinds.some((kind) => !WIDE.has(kind) && FLOATS.some((one) => found.elements.has(one) && NARROW[kind] !== one));
  }
  return MISLEADING.has(field) && value !== null && value !== false;
}

// ---------------------------------------------------------------- the checks

/** Refuses weights that are not those of a certificate (4, 5). */
async function checkWeights(certificate, found, given, resaved, pass) {
  const wanted = certificate.adapter?.configuration ?? null, { name } = given;
  if (wanted !== found.configuration) {
    const words = [[wanted, certificate.isEvaluation], [found.configuration, found.isEvaluation]].map(([digest, isEvaluation]) => (
      digest === null ? "a model"
        : `the folder of an ${isEvaluation ? "evaluation" : "adapter"} whose ${isEvaluation ? EVALUATION : ADAPTER} has SHA-256 ${digest}`));
    refuse(`${name}: expected ${words[0]}, got ${words[1]}; the configuration decides the result as the tensors do, and a merged `
      + "model has sums that whoever merged it rounded");
  }
  if (found.isEvaluation && wanted !== null) {
    const path = `${name}/${EVALUATION}`, { job } = certificate.agreement;
    const said = JsonFields.parse(path, await whole(given.files.get(EVALUATION), path, MAX_CONFIGURATION), MAX_NESTING);
    said.same("program", job.program_root, ", as the job has it");
    said.same("data", job.data_root, ", as the job has it");
  }
  naming(name, () => certificate.checkTensors(found.tensors));
  pass(5);
  const [expected, got] = [certificate.files, found.files].map((files) => sorted(files.values()));
  if (String(expected) !== String(got) && !resaved) {
    refuse(`${name}: expected files of the SHA-256 that was signed for, ${listed(expected)}, got ${listed(got)}; each tensor is the `
      + "certified one, so pass --resaved if you saved them again");
  }
  if (!resaved) pass(4);
}

/** Names the file in a refusal, unless that does. */
function naming(path, work) {
  try {
    return work();
  } catch (error) {
    if (error instanceof Refused && !error.message.includes(path)) error.message = `${path}: ${error.message}`;
    throw error;
  }
}

/** Steps (4) to (6) for weights, with a certificate or without. */
async function checked(recheck, given, found, certificate, options, pass) {
  if (certificate) await checkWeights(certificate, found, given, options.resaved, pass);
  if (certificate?.others && given.files) await compare(recheck, given, found, certificate.others);
  const named = options.others || !given.files ? [] : await doubtful(given, found, Boolean(certificate?.others)); // (6)
  if (named.length) {
    const right = found.configuration === null ? `${WEIGHTS}, or ${INDEX} with the files that it names,` : ADAPTER_WEIGHTS;
    refuse(`${given.name}: expected ${right} and no other weights or code, got ${listed(named)}: who loads the folder may get `
      + "something else; --others leaves that to you");
  }
  if (given.files && !options.others) pass(6);
  return found;
}

/** The name of the origin that others are of certified weights (7). all: what may be origins of scores. */
function roleOf(certificate, found, other, all) {
  if (found.isEvaluation && !other.isEvaluation) {
    for (const one of all.filter((given) => (given.configuration === null) !== (other.configuration === null))) {
      try {
        certificate.checkBase(found.tensors, new Map([...one.tensors, ...other.tensors]));
        return other.configuration === null ? "under" : "scored";
      } catch (error) {
        if (!(error instanceof Refused)) throw error;
      }
    }
  }
  if (certificate.adapter && other.configuration === null) {
    certificate.checkBase(found.tensors, other.tensors);
    return found.isEvaluation ? "scored" : "base";
  }
  if (String(sorted(new Set(other.tensors.values()))) === String(sorted(new Set(found.tensors.values()))))
    refuse("start: expected weights that training changed, got those that it ended with");
  certificate.checkStart(other.tensors);
  return "start";
}

/** Gives each link its origins, and refuses weights to which the first link does not lead (7). */
function follow(made) {
  const links = [made[0]], why = new Map(), rest = made.slice(1).map((link) => link.found);
  const startsFirst = [...made].sort((a, b) => Number(a.found.configuration === null) - Number(b.found.configuration === null));
  for (const link of links) { // which grow
    for (const other of link.certificate ? startsFirst : []) {
      try {
        const role = roleOf(link.certificate, link.found, other.found, rest);
        if (!link.origins.has(role)) link.origins.set(role, other);
        if (link.origins.get(role) === other && !links.includes(other)) links.push(other);
      } catch (error) {
        if (!(error instanceof Refused)) throw error;
        if (!why.has(other)) why.set(other, error.message);
      }
    }
  }
  for (const other of made.filter((one) => !links.includes(one))) {
    refuse(`${other.name}: expected the base of ${made[0].name} or what its run started from, or that of another --base with a `
      + `certificate, once, got others: ${why.get(other) ?? "it is given twice"}`);
  }
  const ends = (link, before) => (before.includes(link)
    ? refuse(`lineage: expected one that ends, got a circle: ${[...before, link].map((one) => one.name).join(" from ")}`)
    : [...link.origins.values()].every((other) => ends(other, [...before, link])) || true);
  ends(made[0], []);
}

const ORIGINS = {
  start: "is what the run started from: its first state has these tensors in the same places.",
  base: "is the base that these adapters were trained on: that state has its frozen tensors too.",
  scored: "is what was scored: that state has its tensors too.",
  under: "is the base of the adapter that was scored: that state has its tensors too.",
};

const readCertificate = async (recheck, { path, file }) => {
  const bytes = await whole(file, path, MAX_ENVELOPE);
  return naming(path, () => new SignedCertificate(recheck, bytes));
};

/** What certified weights prove, and what they do not, in the words of `tiebreak verify`. */
function saidOf(link, options) {
  const { name, found, certificate, origins } = link, formats = found.others.filter((one) => FORMATS.has(one));
  const proves = [...certificate.proves(), `Each of the ${found.tensors.size} tensors in ${name} is one of that final state.`];
  if (found.same.size) proves.push(`${found.same.size} other files of ${name} have the SHA-256 that was signed for.`);
  origins.forEach((other, role) => proves.push(`${other.name} ${ORIGINS[role]}`));
  const known = new Set([...found.same, ...found.different]), kept = new Set([...known].map((one) => one.split("/")[0]));
  const unsigned = found.others.filter((one) => !known.has(one) && !FORMATS.has(one))
    .map((one) => (kept.has(one.split("/")[0]) ? one : one.split("/")[0]));
  const open = certificate.leavesOpen(origins.has("base") || origins.has("scored"));
  const kinds = [["What the other files that were signed for make of the weights, as the signers chose", sorted(found.same)],
    ["Anything about files that are not as they were signed for, or missing", sorted(found.different)],
    ["Anything about other files, which decide how weights are used", [...new Set(unsigned)]],
    ["Whether files that `certify --for` wrote say the same, which `tiebreak verify` compares and nothing here reads", formats]];
  for (const [words, names] of kinds) if (names.length) open.push(`${words}: ${listed(names)}.`);
  return { title: titleOf(options), proves, open };
}

function titleOf({ require }) {
  const by = require.length ? `, signed by ${require.map((one) => `0x${one}`).join(", ")}.` : " for keys that anybody can make: no --require is given.";
  return `The certificate holds${by}`;
}

/**
 * Checks weights against a certificate, and their origins. `pass(n)` is called for each numbered check that holds.
 * @param {{model: Given | null, certificate: {path: string, file: Source, inside?: string}, bases: object[]}} given bases: the same again
 * @param {{require: string[], resaved: boolean, others: boolean}} options
 * @param {{pass: (n: number) => void, advance: (bytes: number) => Promise<void>}} tell
 */
export async function verify(recheck, given, options, { pass, advance }) {
  const certificate = await readCertificate(recheck, given.certificate);
  const bases = [];
  for (const base of given.bases) bases.push({ ...base, signed: base.certificate ? await readCertificate(recheck, base.certificate) : null });
  pass(1);
  for (const one of options.require)
    if (!certificate.signers.includes(one)) refuse(`${given.certificate.path}: expected a signature by 0x${one}, got none`);
  if (options.require.length) pass(2);
  const facts = factsOf(certificate);
  if (!given.model) {
    const open = ["Whether weights that you have are its: drop them here as well.", ...certificate.leavesOpen()];
    return { title: titleOf(options), facts, proves: certificate.proves(), open };
  }
  const made = [];
  for (const { model, certificate: own, signed } of [{ ...given, signed: certificate }, ...bases]) {
    const tell = made.length ? () => {} : pass, found = await readWeights(recheck, model, own?.inside, advance);
    tell(3);
    await checked(recheck, model, found, signed, options, tell);
    made.push({ name: model.name, found, certificate: signed, origins: new Map() });
  }
  follow(made);
  if (bases.length) pass(7);
  return { facts, ...saidOf(made[0], options) };
}

/** The roots and signers of a certificate, for whoever wants to compare them. */
function factsOf(certificate) {
  const { agreement, state, files, signers } = certificate, { job } = agreement;
  return [["Job", agreement.id], ["Program", job.program_root], ["Data", job.data_root], ["First state", job.initial_state_root],
    ["Final state", state], ...[...files].map(([name, digest]) => [`SHA-256 of ${name}`, digest]),
    ...signers.map((one) => [`Signed by ${certificate.role(one)}`, `0x${one}`])];
}

// ---------------------------------------------------------------- what was dropped

const isCertificate = async ([path, file]) => Boolean(file) && path.endsWith(".json") && !FORMATS.has(path) && file.size <= MAX_ENVELOPE
  && new TextDecoder().decode(await file.slice(0, file.size)).includes('"payloadType"');

/** The certificate among files, by what is in them; else the one that is named so. */
async function certificateIn(entries) {
  const found = [];
  for (const entry of entries) if (await isCertificate(entry)) found.push(entry);
  const named = (found.length ? found : entries).find(([path]) => path === "certificate.json");
  if (found.length > 1 && !named) refuse(`expected one certificate, got ${listed(found.map(([path]) => path))}; drop one of them`);
  return named ?? found[0];
}

/** Sorts what was dropped: the certificate, and the weights. @param {[string, Source | null][]} entries by path */
export async function arrange(entries) {
  const loose = entries.filter(([path, file]) => file && !path.includes("/")), tops = new Map();
  for (const [path, file] of entries) {
    const [top, ...rest] = path.split("/");
    if (file && !rest.length) continue;
    if (!tops.has(top)) tops.set(top, new Map());
    if (rest.length) tops.get(top).set(rest.join("/"), file);
  }
  if (tops.size > 1) refuse(`expected one folder of weights, got ${listed([...tops.keys()])}; those from which they come have a place of their own`);
  const own = await certificateIn(loose), left = loose.filter((entry) => entry !== own), [folder] = tops;
  if (folder && left.length) refuse(`expected a folder and a certificate, got ${listed(left.map(([path]) => path))} as well`);
  const model = folder ? { name: folder[0], files: folder[1] } : left.length > 1 ? { name: "these files", files: new Map(left) }
    : left.length ? { name: left[0][0], file: left[0][1] } : null;
  const inside = own || !folder ? undefined : await certificateIn([...folder[1]].filter(([path]) => !path.includes("/")));
  const certificate = own ? { path: own[0], file: own[1] } : inside && { path: `${folder[0]}/${inside[0]}`, file: inside[1], inside: inside[0] };
  return { model, certificate };
}
