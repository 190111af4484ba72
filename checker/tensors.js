/* The tensors of a job's state or data in a .safetensors file, read in slices, in the order of the program's slots. */
import { refuse } from "./module.js";
import { parseJson, JsonFields, isInteger, quoted, sorted } from "./formats.js";

const MAX_HEADER = 1 << 24, MAX_ELEMENTS = 2n ** 40n;
const WIDTHS = { F64: 8, F32: 4, F16: 2, BF16: 2, I64: 8, I32: 4, I16: 2, I8: 1, U64: 8, U32: 4, U16: 2, U8: 1, BOOL: 1 };
export const DTYPES = ["F32", "I64", "BOOL"];
const PIECE = 1 << 22;

/** Python's tuple of numbers. */
const tuple = (dims) => `(${dims.join(", ")}${dims.length === 1 ? "," : ""})`;
const list = (items) => `[${items.join(", ")}]`;
/** Their product; of hostile ones, any number above 2^100. */
const product = (dims) => (dims.some((dim) => !dim) ? 0n : dims.reduce((all, dim) => (all >> 100n ? all : all * BigInt(dim)), 1n));

/** Bytes of a file, which must have them. */
export async function readAt(file, path, from, to) {
  const found = await file.slice(from, to);
  return found.length === to - from ? found : refuse(`${path}: expected ${to - from} bytes, got the end of the file after ${found.length}`);
}

/** A whole file of at most so many bytes. */
export async function readWhole(file, path, limit) {
  if (file.size > limit) refuse(`${path}: expected at most ${limit} bytes, got ${file.size}`);
  return readAt(file, path, 0, file.size);
}

function entryOf(path, name, entry, start, size) {
  const what = `${path}, ${name}`, short = `${path}, ${name.slice(0, 60)}`, fields = new JsonFields(short, entry);
  const isCount = (value) => isInteger(value, 0n, (1n << 63n) - 1n), counts = "a list of at most 64 integers of 0 to 2^63 - 1";
  const areCounts = (values) => Array.isArray(values) && values.length <= 64 && values.every(isCount);
  const kind = fields.take("dtype", `one of ${Object.keys(WIDTHS).join(", ")}`, (found) => typeof found === "string" && Object.hasOwn(WIDTHS, found));
  const [shape, places] = ["shape", "data_offsets"].map((key) => fields.take(key, counts, areCounts));
  fields.finish();
  const bytes = product(shape) * BigInt(WIDTHS[kind]), offset = start + (places[0] ?? 0n);
  if (places.length !== 2 || places[1] - places[0] !== bytes) refuse(`${short}: expected ${kind} ${list(shape)} to fill its place, got ${list(places)}`);
  if (shape.length > 8 || shape.some((dim) => !dim) || product(shape) > MAX_ELEMENTS)
    refuse(`${what}: expected rank <= 8, dims >= 1, at most 2^40 elements; got ${tuple(shape)}`);
  if (offset + bytes > size) refuse(`${what}: expected ${bytes} bytes from byte ${offset} on, got a file of ${size}`);
  return { name, what, kind, shape, offset: Number(offset), bytes: Number(bytes) };
}

/** The tensors of a file by name, which must cover its data without gap or overlap. */
export async function openTensors(file, path) {
  const take = async (from, to) => {
    const found = await file.slice(from, Math.min(to, file.size));
    return found.length === to - from ? found : refuse(`${path}: expected ${to - from} bytes of a header, got ${found.length}`);
  };
  const size = new DataView((await take(0, 8)).slice().buffer).getBigUint64(0, true);
  if (size > MAX_HEADER) refuse(`${path}: expected a header of at most ${MAX_HEADER} bytes, got ${size}`);
  const text = await take(8, 8 + Number(size));
  let header = null;
  try {
    header = parseJson(text, 3);
  } catch (error) {
    refuse(`${path}: not a readable safetensors header: ${error.message}`);
  }
  if (!(header instanceof Map)) refuse(`${path}: expected a safetensors header of entries by name, got another value`);
  header.delete("__metadata__");
  const entries = [...header].map(([name, entry]) => entryOf(path, name, entry, 8n + size, BigInt(file.size)));
  let end = 8 + Number(size);
  for (const entry of [...entries].sort((a, b) => a.offset - b.offset)) {
    if (entry.offset !== end) refuse(`${entry.what}: expected to begin at byte ${end}, got ${entry.offset}`);
    end += entry.bytes;
  }
  if (end !== file.size) refuse(`${path}: expected ${end} bytes, got ${file.size}`);
  return new Map(entries.map((entry) => [entry.name, { ...entry, file }]));
}

/**
 * The tensors of a file that must be those of slots. Each slot: {name, dtype, dims, bytes}.
 * @param {Set<string>} absent those that the file may lack, all or none
 * @param {boolean} narrow whether a tensor of F32 may be BF16 in the file
 */
export async function tensorsOf(file, path, slots, absent = new Set(), narrow = false) {
  const most = slots.reduce((all, slot) => all + slot.bytes, 0);
  if (file.size > most + MAX_HEADER) refuse(`${path}: expected about ${most} bytes, got ${file.size}`);
  const found = await openTensors(file, path), hasAll = [...found.keys()].some((name) => absent.has(name));
  const wanted = slots.filter((slot) => hasAll || !absent.has(slot.name));
  const missing = wanted.filter((slot) => !found.has(slot.name)).map((slot) => slot.name), names = new Set(wanted.map((slot) => slot.name));
  const extra = [...found.keys()].filter((name) => !names.has(name));
  if (missing.length || extra.length) {
    const few = (all) => list(sorted(all).slice(0, 3).map((name) => quoted(name)));
    refuse(`${path}: expected ${wanted.length} tensors; missing ${few(missing)}, unexpected ${few(extra)}`);
  }
  const kinds = new Map(slots.map((slot) => [slot.name, slot]));
  for (const one of found.values()) {
    const { dtype, dims } = kinds.get(one.name), kind = DTYPES[dtype];
    const fits = one.kind === kind || (narrow && kind === "F32" && one.kind === "BF16");
    if (!fits || String(one.shape) !== String(dims)) refuse(`${one.what}: expected ${kind} ${tuple(dims)}, got ${one.kind} ${tuple(one.shape)}`);
  }
  return found;
}

/** The bytes of a tensor in pieces, as a job has them: BF16 as F32, bools of 0 and 1. */
export async function* piecesOf(tensor) {
  const { file, what, kind, offset, bytes } = tensor;
  for (let at = 0; at < bytes; at += PIECE) {
    const piece = await readAt(file, what, offset + at, offset + Math.min(at + PIECE, bytes));
    const greatest = kind === "BOOL" ? piece.reduce((most, byte) => Math.max(most, byte), 0) : 0;
    if (greatest > 1) refuse(`${what}: expected bools of 0 and 1, got ${greatest}`);
    if (kind !== "BF16") yield piece;
    else {
      const out = new Uint8Array(2 * piece.length);
      for (let k = 0; k < piece.length; k += 2) {
        out[2 * k + 2] = piece[k];
        out[2 * k + 3] = piece[k + 1];
      }
      yield out;
    }
  }
}
