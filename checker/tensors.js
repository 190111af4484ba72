/* The tensors of a job's state or data in a .safetensors file, read in slices, in the order of the program's slots. */
import { refuse, refusing } from "./module.js";
import { parseJson, JsonFields, isInteger, quoted, sorted } from "./formats.js";

const MAX_HEADER = 1 << 24, MAX_ELEMENTS = 2n ** 40n;
export const PIECE = 1 << 22;
const WIDTHS = { F64: 8, F32: 4, F16: 2, BF16: 2, I64: 8, I32: 4, I16: 2, I8: 1, U64: 8, U32: 4, U16: 2, U8: 1,
  BOOL: 1 };
export const DTYPES = ["F32", "I64", "BOOL"];

/** Python's tuple of numbers. */
const tuple = (dims) => `(${dims.join(", ")}${dims.length === 1 ? "," : ""})`;
const list = (items) => `[${items.join(", ")}]`;
/** Their product; of hostile ones, any number above 2^100. */
const product = (dims) => (dims.includes(0n) ? 0n : dims.reduce((all, dim) => (all >> 100n ? all : all * dim), 1n));

/** Bytes of a file, which must have them. */
export async function readAt(file, path, from, to, of = "") {
  const found = await file.slice(from, to), size = to - from;
  return found.length === size ? found : refuse(`${path}: expected ${size} bytes${of}, got ${found.length}`);
}

/** A whole file of at most so many bytes. */
export async function readWhole(file, path, limit) {
  if (file.size > limit) refuse(`${path}: expected at most ${limit} bytes, got ${file.size}`);
  return readAt(file, path, 0, file.size);
}

function entryOf(path, name, entry, start, size) {
  const what = `${path}, ${name}`, short = `${path}, ${name.slice(0, 60)}`, fields = new JsonFields(short, entry);
  const isCount = (value) => isInteger(value, 0n, (1n << 63n) - 1n);
  const few = "a list of at most 64 integers of 0 to 2^63 - 1";
  const areCounts = (values) => Array.isArray(values) && values.length <= 64 && values.every(isCount);
  const isKind = (value) => typeof value === "string" && Object.hasOwn(WIDTHS, value);
  const kind = fields.take("dtype", `one of ${Object.keys(WIDTHS).join(", ")}`, isKind);
  const [shape, places] = ["shape", "data_offsets"].map((key) => fields.take(key, few, areCounts));
  fields.finish();
  const bytes = product(shape) * BigInt(WIDTHS[kind]), offset = start + (places[0] ?? 0n);
  if (places.length !== 2 || places[1] - places[0] !== bytes)
    refuse(`${short}: expected ${kind} ${list(shape)} to fill its place, got ${list(places)}`);
  if (shape.length > 8 || shape.includes(0n) || product(shape) > MAX_ELEMENTS)
    refuse(`${what}: expected rank <= 8, dims >= 1, at most 2^40 elements; got ${tuple(shape)}`);
  if (offset + bytes > size) refuse(`${what}: expected ${bytes} bytes from byte ${offset} on, got a file of ${size}`);
  return { name, what, kind, shape, offset: Number(offset), bytes: Number(bytes) };
}

/** The tensors of a file by name, which must cover its data without gap or overlap. */
export async function openTensors(file, path) {
  const size = new DataView((await readAt(file, path, 0, 8, " of a header")).slice().buffer).getBigUint64(0, true);
  if (size > MAX_HEADER) refuse(`${path}: expected a header of at most ${MAX_HEADER} bytes, got ${size}`);
  let end = 8 + Number(size);
  const text = await readAt(file, path, 8, end, " of a header");
  const unreadable = (said) => refuse(`${path}: not a readable safetensors header: ${said}`);
  const header = await refusing(() => parseJson(text, 3), unreadable);
  if (!(header instanceof Map)) refuse(`${path}: expected a safetensors header of entries by name, got another value`);
  header.delete("__metadata__");
  const entries = [...header].map(([name, entry]) => entryOf(path, name, entry, 8n + size, BigInt(file.size)));
  for (const entry of [...entries].sort((a, b) => a.offset - b.offset)) {
    if (entry.offset !== end) refuse(`${entry.what}: expected to begin at byte ${end}, got ${entry.offset}`);
    end += entry.bytes;
  }
  if (end !== file.size) refuse(`${path}: expected ${end} bytes, got ${file.size}`);
  return new Map(entries.map((entry) => [entry.name, { ...entry, file }]));
}

/** The files of a folder by the paths within it. */
export class Folder {
  /** @param {Map<string, {size: number, slice: (from: number, to: number) => Promise<Uint8Array>}>} files of more */
  constructor(files, name) {
    const inside = [...files].filter(([path]) => path.startsWith(`${name}/`) || !name);
    this.files = new Map(inside.map(([path, file]) => [path.slice(name.length && name.length + 1), file]));
    this.name = name || "the run";
  }

  file(path) { return this.files.get(path) ?? refuse(`${this.name}/${path}: cannot be read: there is no such file`); }
  async whole(path, limit) { return readWhole(this.file(path), `${this.name}/${path}`, limit); }

  /**
   * The tensors of a file that must be those of slots. Each slot: {name, dtype, dims, bytes}.
   * @param {Set<string>} absent those that the file may lack, all or none
   * @param {boolean} narrow whether a tensor of F32 may be BF16 in the file
   */
  async tensors(name, slots, absent = new Set(), narrow = false) {
    const path = `${this.name}/${name}`;
    const found = await openTensors(this.file(name), path), hasAll = [...found.keys()].some((name) => absent.has(name));
    const wanted = new Map(slots.filter((slot) => hasAll || !absent.has(slot.name)).map((slot) => [slot.name, slot]));
    const [missing, extra] = [[wanted, found], [found, wanted]].map(([some, others]) => {
      const names = sorted([...some.keys()].filter((name) => !others.has(name)));
      return list(names.slice(0, 3).map((name) => quoted(name)));
    });
    if (missing !== "[]" || extra !== "[]")
      refuse(`${path}: expected ${wanted.size} tensors; missing ${missing}, unexpected ${extra}`);
    for (const { name: tensor, what, kind, shape } of found.values()) {
      const { dtype, dims } = wanted.get(tensor), expected = DTYPES[dtype];
      const isNarrow = narrow && !dtype && kind === "BF16";
      if ((kind !== expected && !isNarrow) || String(shape) !== String(dims))
        refuse(`${what}: expected ${expected} ${tuple(dims)}, got ${kind} ${tuple(shape)}`);
    }
    return found;
  }
}

/** Of each pattern of an F16: that of the F32 of the same value. */
const halves = () => Uint32Array.from({ length: 1 << 16 }, (_, bits) => {
  const exponent = (bits >> 10) & 31, fraction = bits & 1023, sign = (bits >> 15) * 2 ** 31;
  if (exponent) return sign + ((exponent === 31 ? 255 : exponent + 112) << 23 >>> 0) + (fraction << 13);
  return sign + new Uint32Array(Float32Array.of(fraction * 2 ** -24).buffer)[0];
});
let table = null;

/** Elements as a job has them: BF16 and F16 as F32, bytes, codes of 4-bit weights, filled up to 256; bools of 0 and 1. */
export function widened(what, kind, bytes) {
  if (kind === "U8" && bytes.length % 256) {
    const filled = new Uint8Array(Math.ceil(bytes.length / 256) * 256);
    filled.set(bytes);
    return filled;
  }
  const greatest = kind === "BOOL" ? bytes.reduce((most, byte) => Math.max(most, byte), 0) : 0;
  if (greatest > 1) refuse(`${what}: expected bools of 0 and 1, got ${greatest}`);
  if (kind !== "BF16" && kind !== "F16") return bytes;
  if (kind === "F16") table ??= halves();
  const narrow = new Uint16Array(bytes.buffer, bytes.byteOffset, bytes.length / 2);
  const wide = kind === "BF16" ? (bits) => bits * 65536 : (bits) => table[bits];
  return new Uint8Array(Uint32Array.from(narrow, wide).buffer);
}

/** The bytes of a tensor in pieces, as a job has them. see: gets each piece as the file has it. */
export async function* piecesOf({ file, what, kind, offset, bytes }, see = () => {}) {
  for (let at = 0; at < bytes; at += PIECE) {
    const piece = await readAt(file, what, offset + at, offset + Math.min(at + PIECE, bytes));
    see(piece);
    yield widened(what, kind, piece);
  }
}
