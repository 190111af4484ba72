/**
 * Weights against a certificate, with the plan and sentences of tiebreak/api/certification/certificates.py, folders.py.
 * A file is {size, slice(from, to) -> Promise<Uint8Array>}; a folder a Map of files by path, null for an empty one.
 */
import { attempt, naming, refuse } from "./module.js";
import { JsonFields, MAX_ENVELOPE, TooDeep, commas, dumps, parseJson, printable, quoted, sorted } from "./formats.js";
import { SignedCertificate, listed } from "./certificate.js";
import { DTYPES, PIECE, openTensors, piecesOf, readAt, readWhole } from "./tensors.js";
import { tensorId } from "./replay.js";

/** @typedef {{size: number, slice: (from: number, to: number) => Promise<Uint8Array>}} Source */
/** @typedef {{name: string, file?: Source, files?: Map<string, Source | null>}} Given weights: one file, or a folder */

const MAX_JSON = 1 << 24, MAX_OTHER = 1 << 28, MAX_CONFIGURATION = 1 << 20;
const MAX_ENTRIES = 10_000, MAX_JSON_FILES = 1000, MAX_NESTING = 200;
const WEIGHTS = "model.safetensors", INDEX = "model.safetensors.index.json", SUFFIX = ".safetensors";
const ADAPTER = "adapter_config.json", ADAPTER_WEIGHTS = "adapter_model.safetensors";
const EVALUATION = "evaluation.json", SCORES = "scores.safetensors";
/** What `certify --for` writes. */
const FORMATS = new Set(["tiebreak.slsa.json", "tiebreak.model.sig", "tiebreak.receipt.json", "tiebreak.intoto.json",
  "tiebreak.cdx.json", "tiebreak.spdx.json", "tiebreak.dossier.html"]);

// ---------------------------------------------------------------- reading

/** Has `work` read a file from its beginning to its end; the SHA-256 of what it read. */
async function hashed(recheck, file, work, advance = () => {}) {
  const { exports } = recheck, mark = exports.mark() >>> 0, hash = exports.sha256_begin();
  const slice = async (from, to) => {
    const bytes = await file.slice(from, to);
    recheck.scratch(() => exports.sha256_add(hash, recheck.put(bytes), bytes.length));
    await advance(bytes.length);
    return bytes;
  };
  try {
    await work({ size: file.size, slice });
    return recheck.digest("sha256_end", hash);
  } finally {
    exports.release(mark);
  }
}

async function readThrough(file, path, end) {
  for (let at = 0; at < end; at += PIECE) await readAt(file, path, at, Math.min(at + PIECE, end));
}

/** One pass over a file: its SHA-256, the ids of its tensors by name, and the types of their elements. */
async function readTensors(recheck, file, path, advance) {
  const arrays = [...(await openTensors(file, path)).values()].sort((a, b) => a.offset - b.offset), ids = new Map();
  if (!arrays.length) refuse(`${path}: expected at least one tensor, got none`);
  const digest = await hashed(recheck, file, async (read) => {
    await readThrough(read, path, arrays[0].offset);
    for (const { name, what, kind, shape: dims, ...place } of arrays) {
      const dtype = ["BF16", "F16"].includes(kind) ? 0 : kind === "U8" ? 1 : DTYPES.indexOf(kind);
      if (dtype < 0)
        refuse(`${what}: expected F32, BF16, F16, I64 or BOOL, which a run's tensors fill exactly, or U8, got ${kind}`);
      const held = kind === "U8" ? [BigInt(Math.ceil(place.bytes / 256) * 32)] : dims;
      ids.set(name, await tensorId(recheck, { dtype, dims: held }, piecesOf({ ...place, what, kind, file: read })));
    }
  }, advance);
  const plain = arrays.filter(({ name, kind }) => kind !== "U8" && !QUANTIZED.test(name));
  const matrices = plain.filter(({ shape }) => shape.length > 1).map(({ name }) => name);
  return { digest, ids, elements: plain.map(({ kind }) => kind), matrices };
}

/** Weights, read once (3). @param {Given} given @param {string} [besides] the path of the certificate in the folder */
async function readWeights(recheck, given, besides, advance) {
  const files = given.files ?? new Map([[given.name, given.file]]), read = new Map(), tensors = new Map();
  const path = (name) => (given.files ? `${given.name}/${name}` : name);
  const at = (name) => files.get(name) ?? refuse(`${path(name)}: expected a plain file, got a folder`);
  const top = sorted(new Set([...files.keys()].map((name) => name.split("/")[0])));
  if (files.size > MAX_ENTRIES)
    refuse(`${given.name}: expected at most ${commas(MAX_ENTRIES)} files and folders, got more`);
  const pairs = [[ADAPTER, ADAPTER_WEIGHTS], [EVALUATION, SCORES]];
  const [configured] = pairs.find((pair) => pair.every((name) => top.includes(name))) ?? [];
  const configuration = configured ? await readWhole(at(configured), path(configured), MAX_CONFIGURATION) : null;
  for (const name of top.filter((one) => !given.files || one.endsWith(SUFFIX)))
    read.set(name, await readTensors(recheck, at(name), path(name), advance));
  if (!read.size) refuse(`${given.name}: expected ${SUFFIX} files in the folder, got none`);
  if (top.includes(INDEX)) checkIndex(path(INDEX), await readWhole(at(INDEX), path(INDEX), MAX_JSON), read);
  for (const [name, { ids }] of read) {
    const [twice] = sorted(ids.keys()).filter((one) => tensors.has(one));
    if (twice !== undefined)
      refuse(`${given.name}: expected each tensor once, got ${quoted(twice)} in ${name} once more`);
    ids.forEach((id, one) => tensors.set(one, id));
  }
  const own = new Set([...read.keys(), configured, besides]), parts = [...read.values()];
  return {
    tensors, files: new Map([...read].map(([name, { digest }]) => [name, digest])),
    elements: new Set(parts.flatMap((one) => one.elements)), matrices: parts.flatMap((one) => one.matrices),
    others: sorted([...files].map(([name, file]) => file ? name : `${name}/`)).filter((name) => !own.has(name)),
    configuration: configuration && recheck.sha256(configuration), isModel: !configuration,
    isEvaluation: read.size === 1 && read.has(SCORES), same: new Set(), different: new Set(),
  };
}

/** Refuses an index, by which a model is loaded, unless it names each tensor and its file. */
function checkIndex(path, bytes, read) {
  const found = JsonFields.parse(path, bytes, 4).inner("weight_map").left;
  const right = new Map([...read].flatMap(([name, { ids }]) => [...ids.keys()].map((one) => [one, name])));
  const [wrong] = sorted([...right.keys(), ...found.keys()].filter((one) => right.get(one) !== found.get(one)));
  if (wrong !== undefined)
    refuse(`${path}: expected each tensor of the files with its file, got ${quoted(wrong)} otherwise`);
}

// ---------------------------------------------------------------- the other files of a folder

const PROSE = new Set(["", ".md", ".sig"]), HARMLESS = new Set([...PROSE, ".json", ".txt", ".jinja", ".model"]);
const PIPELINES = new Set([ADAPTER, "modules.json", "model_index.json"]);
const TABLES = new Set([INDEX, "tokenizer.json", "vocab.json", "added_tokens.json"]);
const MISLEADING = new Set(["auto_map", "compression_config", "custom_pipelines", "kernel_config", "megatron_config",
  "quantization_config", "transformers_weights", "trust_remote_code", "use_kernels", "use_pretrained_backbone"]);
const NARROW = { '"bfloat16"': "BF16", '"float16"': "F16" };
const WIDE = new Set(['"float32"', '"float64"', '"auto"', '"None"', "null"]);
const FALSE = new Set(["null", "false", "0", '""', "[]", "{}"]), MORE = "more than is read here";
const HEAD = /(?:^|\.)(?:lm_head|embed_out|proj_out|output_\w+|(?:predictions|lm_head)\.decoder)\.weight$/;
/** What bitsandbytes saves beside the codes of a 4-bit weight, and matrices of no layer, which it never quantizes. */
const QUANTIZED =
  /\.weight\.(?:(?:nested_)?absmax|(?:nested_)?quant_map|quant_state\.bitsandbytes__(?:nf4|fp4))$/;
const EMBEDDED = /(?:^|\.)(?:embed_(?:tokens|in|positions)|w[tp]e|\w+_embeddings)$/;
const HAS_HEAD = /LMHead|For(?:CausalLM|MaskedLM|ConditionalGeneration)/;

const suffixOf = (path) => /[^/](\.[^./]+)$/.exec(path)?.[1] ?? "";

/** Compares the other files with the signed ones, and reads only these. */
async function compare(recheck, files, found, signed) {
  for (const [name, digest] of signed) {
    const file = found.others.includes(name) && files.get(name), isRead = file && file.size <= MAX_OTHER;
    const isSame = isRead && digest === await hashed(recheck, file, (read) => readThrough(read, name, file.size));
    (isSame ? found.same : found.different).add(name);
  }
}

/**
 * What makes a loader take other weights than those found from a folder, or run code.
 * @param {boolean} isListed whether other files were signed for
 */
async function doubtful(files, found, isListed) {
  if (found.isEvaluation) return [];
  const { others, same, different, isModel } = found, weights = isModel ? WEIGHTS : ADAPTER_WEIGHTS;
  const isIndexed = others.includes(INDEX) && isModel && !found.files.has(WEIGHTS);
  const named = new Set([...found.files.keys()].filter((name) => name !== weights && !isIndexed));
  for (const name of different) if (!PROSE.has(suffixOf(name))) named.add(`${name}, not as it was signed for`);
  const settings = isModel ? [] : [ADAPTER];
  for (const name of others) {
    const parts = name.split("/"), last = parts.at(-1), suffix = suffixOf(name), isInside = parts.length > 1;
    const isHarmless = HARMLESS.has(suffix) || name === "training_args.bin" || FORMATS.has(name);
    if (isInside && !same.has(name)) named.add(parts[0]);
    else if (!isHarmless || PIPELINES.has(last) || (last.endsWith(".index.json") && name !== INDEX)) named.add(name);
    else if (isListed && !same.has(name) && !different.has(name) && !FORMATS.has(name) && !PROSE.has(suffix))
      named.add(`${name}, which nobody signed for`);
    if ((!isInside || same.has(name)) && suffix === ".json" && !TABLES.has(last)) settings.push(name);
  }
  settings.slice(MAX_JSON_FILES).forEach((name) => named.add(name));
  for (const name of settings.slice(0, MAX_JSON_FILES))
    for (const field of await misleading(files.get(name), found)) named.add(`${name} with ${field}`);
  return sorted(named);
}

/** The fields of a JSON document, at any depth, by which a loader is misled. */
async function misleading(file, found) {
  if (!file || file.size > MAX_JSON) return [MORE];
  const bytes = await file.slice(0, file.size), fields = new Set();
  // UTF-16 and UTF-32, which no loader writes, are not looked into.
  if (bytes.length !== file.size || bytes.subarray(0, 4).some((byte) => !byte || byte > 0xfd)) return [MORE];
  const [document, refusal] = attempt(() => parseJson(bytes, MAX_NESTING, true)), left = [document];
  if (refusal) return refusal instanceof TooDeep ? [MORE] : []; // what breaks a rule of JSON no loader reads either
  while (left.length) {
    const one = left.pop();
    if (!(one instanceof Map || Array.isArray(one))) continue;
    for (const [field, value] of one.entries()) {
      if (one instanceof Map && misleads(field, value, one, found)) fields.add(field.slice(0, 80));
      left.push(value);
    }
  }
  return fields;
}

/** Whether a field makes a loader run code, or take other weights. beside: the fields of its object */
function misleads(field, value, beside, found) {
  const { tensors, elements } = found;
  if (field.includes("_implementation")) return dumps(value).includes("/"); // of attention or experts: code from a hub
  if (field === "tie_word_embeddings") { // a head that is not the tensor in the files
    const heads = [...tensors].filter(([name]) => HEAD.test(name)), isFalse = FALSE.has(dumps(value));
    const embedded = new Set([...tensors].filter(([name]) => !HEAD.test(name)).map(([, id]) => id));
    if (!isFalse) return heads.some(([, id]) => !embedded.has(id));
    return !heads.length && HAS_HEAD.test(dumps(beside.get("architectures") ?? null));
  }
  if (field === "dtype" || field === "torch_dtype") { // floats of the files would be rounded
    const all = value instanceof Map ? [...value.values()] : [value];
    const kinds = all.map((kind) => dumps(kind).replace(/^"torch\./, '"'));
    const rounds = (kind) => ["F32", "BF16", "F16"].some((one) => elements.has(one) && NARROW[kind] !== one);
    return kinds.some((kind) => !WIDE.has(kind) && rounds(kind));
  }
  if (field === "quantization_config" && value instanceof Map) return !keepsCodes(value, found);
  return MISLEADING.has(field) && value !== null && value !== false;
}

/** Whether transformers takes 4-bit weights as their codes say, and makes no others of the plain matrices. */
function keepsCodes(settings, { tensors, matrices }) {
  const skipped = settings.get("llm_int8_skip_modules") ?? ["lm_head"], all = Array.isArray(skipped) ? skipped : [];
  const named = all.filter((one) => typeof one === "string"); // others would become texts
  const layers = matrices.map((name) => name.replace(/\.weight$/, "")).filter((name) => !EMBEDDED.test(name));
  const kept = [...layers, "lm_head"].every((name) => named.some((one) => `.${name}`.endsWith(`.${one}`)));
  const is4Bit = settings.get("quant_method") === "bitsandbytes" && settings.get("load_in_4bit") === true;
  const is8Bit = !FALSE.has(dumps(settings.get("load_in_8bit") ?? null));
  return is4Bit && !is8Bit && kept && [...tensors.keys()].some((name) => QUANTIZED.test(name));
}

// ---------------------------------------------------------------- the checks

/** Refuses weights that are not those of a certificate (4, 5). */
async function checkWeights(certificate, found, { name, files }, resaved, pass) {
  const wanted = certificate.adapter?.configuration ?? null;
  if (wanted !== found.configuration) {
    const words = (digest, isEvaluation) => digest === null ? "a model" : isEvaluation
      ? `the folder of an evaluation whose ${EVALUATION} has SHA-256 ${digest}`
      : `the folder of an adapter whose ${ADAPTER} has SHA-256 ${digest}`;
    const [right, got] = [words(wanted, certificate.isEvaluation), words(found.configuration, found.isEvaluation)];
    refuse(`${name}: expected ${right}, got ${got}; the configuration decides the result as the tensors do, and a `
      + "merged model has sums that whoever merged it rounded");
  }
  if (found.isEvaluation && wanted !== null) {
    const path = `${name}/${EVALUATION}`, { job } = certificate.agreement;
    const said = JsonFields.parse(path, await readWhole(files.get(EVALUATION), path, MAX_CONFIGURATION), MAX_NESTING);
    said.same("program", job.program_root, ", as the job has it");
    said.same("data", job.data_root, ", as the job has it");
  }
  naming(name, () => certificate.checkTensors(found.tensors));
  pass(5);
  if (resaved) return;
  const [expected, got] = [certificate.files, found.files].map((digests) => sorted(digests.values()));
  if (String(expected) !== String(got))
    refuse(`${name}: expected files of the SHA-256 that was signed for, ${listed(expected)}, got ${listed(got)}; each `
      + "tensor is the certified one, so pass --resaved if you saved them again");
  pass(4);
}

/** Steps (4) to (6) for weights, with a certificate or without. */
async function checkGiven(recheck, given, found, certificate, options, pass) {
  const signed = certificate?.others;
  if (certificate) await checkWeights(certificate, found, given, options.resaved, pass);
  if (!given.files) return;
  if (signed) await compare(recheck, given.files, found, signed);
  if (options.others) return;
  const named = await doubtful(given.files, found, Boolean(signed)); // (6)
  if (named.length) {
    const right = found.isModel ? `${WEIGHTS}, or ${INDEX} with the files that it names,` : ADAPTER_WEIGHTS;
    refuse(`${given.name}: expected ${right} and no other weights or code, got ${listed(named)}: who loads the folder `
      + "may get something else; --others leaves that to you");
  }
  pass(6);
}

/** The name of the origin that others are of certified weights (7). all: what may be origins of scores. */
function roleOf(certificate, found, other, all) {
  const idsOf = ({ tensors }) => String(sorted(new Set(tensors.values())));
  if (found.isEvaluation && !other.isEvaluation) {
    const check = (one) => certificate.checkBase(found.tensors, new Map([...one.tensors, ...other.tensors]));
    const isBaseWith = (one) => one.isModel !== other.isModel && !attempt(() => check(one))[1];
    if (all.some(isBaseWith)) return other.isModel ? "under" : "scored";
  }
  if (certificate.adapter && other.isModel) {
    certificate.checkBase(found.tensors, other.tensors);
    return found.isEvaluation ? "scored" : "base";
  }
  if (idsOf(other) === idsOf(found))
    refuse("start: expected weights that training changed, got those that it ended with");
  certificate.checkStart(other.tensors);
  return "start";
}

/** Gives each link its origins, and refuses weights to which the first link does not lead (7). */
function follow(made) {
  const links = [made[0]], why = new Map(), rest = made.slice(1).map((link) => link.found);
  const startsFirst = [...made].sort((a, b) => Number(a.found.isModel) - Number(b.found.isModel));
  for (const link of links) { // which grow
    for (const other of link.certificate ? startsFirst : []) {
      const [role, refusal] = attempt(() => roleOf(link.certificate, link.found, other.found, rest));
      if (refusal && !why.has(other)) why.set(other, refusal.message);
      if (role && !link.origins.has(role)) link.origins.set(role, other);
      if (role && link.origins.get(role) === other && !links.includes(other)) links.push(other);
    }
  }
  const other = made.find((one) => !links.includes(one));
  if (other) refuse(`${other.name}: expected the base of ${made[0].name} or what its run started from, or that of `
    + `another --base with a certificate, once, got others: ${why.get(other) ?? "it is given twice"}`);
  requireEnd(made[0], []);
}

/** Refuses origins that lead back to themselves. */
function requireEnd(link, before) {
  const names = [...before, link].map(({ name }) => name);
  if (before.includes(link)) refuse(`lineage: expected one that ends, got a circle: ${names.join(" from ")}`);
  for (const origin of link.origins.values()) requireEnd(origin, [...before, link]);
}

const ORIGINS = {
  start: "is what the run started from: its first state has these tensors in the same places.",
  base: "is the base that these adapters were trained on: that state has its frozen tensors too.",
  scored: "is what was scored: that state has its tensors too.",
  under: "is the base of the adapter that was scored: that state has its tensors too.",
};

async function readCertificate(recheck, { path, file }) {
  const bytes = await readWhole(file, path, MAX_ENVELOPE);
  return naming(path, () => new SignedCertificate(recheck, bytes));
}

/** What certified weights prove, and what they do not, in the words of `tiebreak verify`. */
function saidOf({ name, found, certificate, origins }) {
  const { same, different, others, tensors } = found, top = (path) => path.split("/")[0];
  const isSigned = (path) => same.has(path) || different.has(path), kept = new Set([...same, ...different].map(top));
  const unsigned = others.filter((path) => !isSigned(path) && !FORMATS.has(path));
  const kinds = [["What the other files that were signed for make of the weights, as the signers chose", sorted(same)],
    ["Anything about files that are not as they were signed for, or missing", sorted(different)],
    ["Anything about other files, which decide how weights are used",
      [...new Set(unsigned.map((path) => kept.has(top(path)) ? path : top(path)))]],
    ["Whether files that `certify --for` wrote say the same, which `tiebreak verify` compares and nothing here reads",
      others.filter((path) => FORMATS.has(path))]];
  const proves = [
    ...certificate.proves(), `Each of the ${tensors.size} tensors in ${name} is one of that final state.`,
    same.size && `${same.size} other files of ${name} have the SHA-256 that was signed for.`,
    ...[...origins].map(([role, other]) => `${other.name} ${ORIGINS[role]}`),
  ].filter(Boolean);
  const left = kinds.filter(([, names]) => names.length).map(([words, names]) => `${words}: ${listed(names)}.`);
  const open = [...certificate.leavesOpen(origins.has("base") || origins.has("scored")), ...left];
  return { proves: proves.map(printable), open };
}

/**
 * Checks weights against a certificate, and their origins. `pass(n)` is called for each numbered check that holds.
 * @param {{model: Given | null, certificate: {path: string, file: Source, inside?: string}, bases: object[]}} given
 *   bases: the same again
 * @param {{require: string[], resaved: boolean, others: boolean}} options
 * @param {{pass: (n: number) => void, advance: (bytes: number) => Promise<void>}} tell
 */
export async function verify(recheck, given, options, { pass, advance }) {
  const signed = [], made = [], { require } = options;
  for (const { certificate } of [given, ...given.bases])
    signed.push(certificate && await readCertificate(recheck, certificate));
  const [certificate] = signed, lacking = require.find((one) => !certificate.signers.includes(one));
  pass(1);
  if (lacking) refuse(`${given.certificate.path}: expected a signature by 0x${lacking}, got none`);
  if (require.length) pass(2);
  const by = require.length ? `, signed by ${require.map((one) => `0x${one}`).join(", ")}.`
    : " for keys that anybody can make: no --require is given.";
  const result = { title: `The certificate holds${by}`, facts: factsOf(certificate) };
  if (!given.model) {
    const open = ["Whether weights that you have are its: drop them here as well.", ...certificate.leavesOpen()];
    return { ...result, proves: certificate.proves(), open };
  }
  for (const [n, { model, certificate: own }] of [given, ...given.bases].entries()) {
    const tell = n ? () => {} : pass, found = await readWeights(recheck, model, own?.inside, advance);
    tell(3);
    await checkGiven(recheck, model, found, signed[n], options, tell);
    made.push({ name: model.name, found, certificate: signed[n], origins: new Map() });
  }
  follow(made);
  if (given.bases.length) pass(7);
  return { ...result, ...saidOf(made[0]) };
}

/** The roots and signers of a certificate, for whoever wants to compare them. */
function factsOf(certificate) {
  const { agreement: { job, id }, final, files, signers } = certificate;
  return [
    ["Job", id], ["Program", job.program_root], ["Data", job.data_root], ["First state", job.initial_state_root],
    ["Final state", final.root], ...[...files].map(([name, digest]) => [`SHA-256 of ${name}`, digest]),
    ...signers.map((one) => [`Signed by ${certificate.role(one)}`, `0x${one}`]),
  ];
}

// ---------------------------------------------------------------- what was dropped

const namesOf = (entries) => listed(entries.map(([path]) => path));

/** The certificate among files, by what is in them, and by its name if it is one of several. */
async function certificateIn(entries) {
  const found = [], isNamed = ([path]) => path === "certificate.json";
  for (const entry of entries) {
    const [path, file] = entry;
    if (!file || !path.endsWith(".json") || FORMATS.has(path) || file.size > MAX_ENVELOPE) continue;
    const text = new TextDecoder().decode(await file.slice(0, file.size));
    if (text.includes('"payloadType"')) found.push(entry);
  }
  if (found.length < 2) return found[0] ?? entries.find(isNamed);
  return found.find(isNamed) ?? refuse(`expected one certificate, got ${namesOf(found)}; drop one of them`);
}

/** Sorts what was dropped: the certificate, and the weights. @param {[string, Source | null][]} entries by path */
export async function arrange(entries) {
  const isLoose = ([path, file]) => file && !path.includes("/"), loose = entries.filter(isLoose);
  const folders = new Set(entries.filter((one) => !isLoose(one)).map(([path]) => path.split("/")[0]));
  const own = await certificateIn(loose), left = loose.filter((entry) => entry !== own), [folder] = folders;
  if (folders.size > 1)
    refuse(`expected one folder of weights, got ${listed([...folders])}; what they come from has a place of its own`);
  if (folders.size && left.length) refuse(`expected a folder and a certificate, got ${namesOf(left)} as well`);
  const inside = entries.filter(([path]) => path.startsWith(`${folder}/`))
    .map(([path, file]) => [path.slice(folder.length + 1), file]);
  const other = own ? undefined : await certificateIn(inside.filter(isLoose));
  const certificate = own ? { path: own[0], file: own[1] }
    : other && { path: `${folder}/${other[0]}`, file: other[1], inside: other[0] };
  if (folders.size) return { model: { name: folder, files: new Map(inside) }, certificate };
  const file = left.length === 1 ? { file: left[0][1] } : { files: new Map(left) };
  return { model: left.length ? { name: left.length > 1 ? "these files" : left[0][0], ...file } : null, certificate };
}
