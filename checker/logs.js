/* The rounding logs of a run's folder: a file for each segment, and in it a log for each step, compressed
   (tiebreak/engine/logged/files.py and encoding.py). The module takes them in the plain form of SPEC section 5.1. */
import { refuse, hexOf, utf8 } from "./module.js";
import { readAt } from "./tensors.js";
import { decompress } from "./vendor/fzstd.js";

const FILE_HEADER = 48, FRAME = 20, HEADER = 17, BLOCK = 1 << 16, ENTRY = 9, MAGIC = Uint8Array.of(0x28, 0xb5, 0x2f, 0xfd);

const CRC = Uint32Array.from({ length: 256 }, (_, k) => {
  for (let bit = 0; bit < 8; bit++) k = k & 1 ? 0xedb88320 ^ (k >>> 1) : k >>> 1;
  return k;
});

const crc32 = (bytes) => ~bytes.reduce((crc, byte) => CRC[(crc ^ byte) & 255] ^ (crc >>> 8), -1) >>> 0;
const sum = (numbers) => numbers.reduce((all, number) => all + number, 0);
const numberIn = (bytes) => BigInt(`0x0${hexOf(bytes)}`);
/** Bytes behind each other. */
export function joined(first, second) {
  const out = new Uint8Array(first.length + second.length);
  out.set(first);
  out.set(second, first.length);
  return out;
}

/** Bytes of the gaps between entries at most. */
const widthOf = (total) => Math.ceil(total.toString(16).length / 2);

/** An upper bound on the size of any log of a program. */
function mostBytes({ loggable, late }) {
  const parts = widthOf(loggable) + 1, blocks = Math.floor(loggable / BLOCK) + 1;
  const parted = sum(late.map(({ bytes }) => bytes + 3 * (Math.floor(bytes / BLOCK) + 1)));
  return HEADER + blocks * (1 + 4 * parts) + loggable * parts + parted;
}

/** Reads one encoded log. */
class Source {
  constructor(bytes, step) { Object.assign(this, { bytes, step, at: 0 }); }

  fail(rule) { return refuse(`encoded rounding log of step ${this.step}, up to byte ${this.at}: ${rule}`); }

  take(count) {
    const found = this.bytes.subarray(this.at, this.at + count);
    this.at += found.length;
    return found.length < count ? this.fail(`truncated: expected ${count} more bytes, got ${found.length}`) : found;
  }

  number(width) { return Number(numberIn(this.take(width))); }

  expect(what, expected, width) {
    const found = numberIn(this.take(width));
    if (found !== BigInt(expected)) this.fail(`expected ${what} ${expected}, got ${found}`);
  }

  /** So many bytes, at most 64 KiB: as they are, or in a Zstandard frame, whose header has one spelling for each size. */
  part(size) {
    const length = this.number(3), header = size < 256 ? [0x20, size] : [0x60, (size - 256) & 255, (size - 256) >> 8];
    if (length < 1 || length > size) this.fail(`expected a part of 1 to ${size} bytes, got ${length}`);
    const kept = this.take(length);
    if (length === size) return kept;
    if (header.some((byte, k) => kept[k] !== byte)) this.fail(`expected a Zstandard frame of ${size} bytes, got another`);
    try {
      return decompress(joined(MAGIC, kept), new Uint8Array(size));
    } catch (error) {
      return this.fail(`expected a Zstandard frame of ${size} bytes: ${error.message}`);
    }
  }

  /** The gaps and directions of a block. */
  block(count, limit) {
    const width = this.number(1), gaps = new Float64Array(count);
    if (width < 1 || width > limit) this.fail(`expected gaps of 1 to ${limit} bytes, got ${width}`);
    for (let k = 0; k < width; k++) {
      const plane = this.part(count);
      if (k && k === width - 1 && plane.every((byte) => !byte))
        this.fail(`expected gaps in as few bytes as they need, got ${width}`);
      plane.forEach((byte, n) => { gaps[n] += byte * 256 ** k; });
    }
    const up = this.part((count + 7) >> 3);
    if (count & 7 && up.at(-1) & (255 >> (count & 7))) this.fail(`expected zeros after the directions of ${count} entries`);
    return { gaps, up };
  }
}

/** Puts a log into the module in plain form: its address and size, how many entries it has, and its root. */
export function putLog(program, bytes, step) {
  const { recheck, loggedSums: sums, loggable: total, late } = program, source = new Source(bytes, step);
  source.expect("format", 1, 1);
  source.expect("step", step, 8);
  const count = source.number(8), size = 4 + ENTRY * count + sum(late.map((one) => one.bytes));
  if (count > Math.min(total, 2 ** 32 - 1)) source.fail(`expected at most ${total} entries, got ${count}`);
  const start = recheck.exports.allocate(BigInt(size)) >>> 0;
  let at = start, n = 0, first = 0, place = -1;
  const put = (piece) => { at = recheck.put(piece, at) + piece.length; };
  put(Uint8Array.of(count >>> 24, count >>> 16, count >>> 8, count));
  for (let done = 0; done < count; done += BLOCK) {
    const { gaps, up } = source.block(Math.min(BLOCK, count - done), widthOf(total));
    const plain = new DataView(new ArrayBuffer(ENTRY * gaps.length));
    gaps.forEach((gap, k) => {
      place += gap + 1;
      while (n < sums.length && place >= first + sums[n].elements) first += sums[n++].elements;
      if (n === sums.length) outOfRange(sums.at(-1), place - total, step);
      plain.setUint32(ENTRY * k, sums[n].number);
      plain.setUint32(ENTRY * k + 4, place - first);
      plain.setUint8(ENTRY * k + 8, (up[k >> 3] >> (7 - (k & 7))) & 1 ? 2 : 1);
    });
    put(new Uint8Array(plain.buffer));
  }
  for (const { bytes: whole, dtype } of late) {
    for (let done = 0; done < whole; done += BLOCK) {
      const piece = source.part(Math.min(BLOCK, whole - done));
      if (dtype === 2 && piece.some((byte) => byte > 1)) {
        const names = late.map(({ name }) => name).join(", ");
        refuse(`rounding log of step ${step}: expected late data ${names} of their sizes, got others`);
      }
      put(piece);
    }
  }
  if (source.at < bytes.length) source.fail(`expected the end, got ${bytes.length - source.at} more bytes`);
  return { at: start, size, count, root: recheck.digest("step_log", program.at, start, size) };
}

function outOfRange({ number, elements }, beyond, step) {
  refuse(`rounding log of step ${step}, instruction ${number}, element ${elements + beyond}: out of range: expected an element `
    + `below ${elements}`);
}

/** The log file of a segment. */
export class LogFile {
  /** @param {bigint} first the segment's first step @param {bigint} last */
  constructor(file, path, program, job, first, last) { Object.assign(this, { file, path, program, job, first, last }); }

  /** Finds the logs: reads only what stands before each. */
  async open() {
    const { file, path, program, job, first, last } = this, most = mostBytes(program);
    const head = await readAt(file, path, 0, Math.min(FILE_HEADER, file.size)), [kind, ofJob] = [head.subarray(0, 8), head.subarray(8, 40)];
    const begins = numberIn(head.subarray(40));
    if (hexOf(kind) !== hexOf(utf8("TBLOGS01"))) refuse(`${path}: expected a file of rounding logs, got another`);
    if (hexOf(ofJob) !== job) refuse(`${path}: expected logs of job ${job}, got ${hexOf(ofJob)}`);
    if (begins !== first) refuse(`${path}: expected a segment from step ${first}, got ${begins}`);
    this.frames = [];
    let at = FILE_HEADER;
    for (let step = first; at < file.size; step++) {
      if (step > last) refuse(`${path}: expected the end after the log of step ${last}, got ${file.size - at} more bytes`);
      if (at + FRAME > file.size) break;
      const frame = await readAt(file, path, at, at + FRAME);
      const [found, length] = [numberIn(frame.subarray(0, 8)), numberIn(frame.subarray(8, 16))], end = at + FRAME + Number(length);
      if (found !== step) refuse(`${path}: expected the log of step ${step}, got one of step ${found}`);
      if (length < HEADER || length > most)
        refuse(`${path}: expected ${HEADER} to ${most} bytes for the log of step ${step}, got ${length}`);
      if (end > file.size) break;
      this.frames.push([at, end]);
      at = end;
    }
    this.torn = file.size - at;
    return this;
  }

  /** The encoded log of a step. */
  async read(step) {
    const { file, path, frames, torn } = this, frame = frames[Number(step - this.first)];
    const more = torn ? `, and ${torn} bytes of a frame that is not whole` : "";
    if (!frame) refuse(`${path}: expected the log of step ${step}, got the end after ${frames.length} logs${more}`);
    const raw = await readAt(file, path, ...frame), log = raw.subarray(FRAME), expected = numberIn(raw.subarray(16, FRAME));
    const found = BigInt(crc32(joined(raw.subarray(0, 16), log))), hex = (crc) => crc.toString(16).padStart(8, "0");
    if (found !== expected)
      refuse(`${path}: expected checksum ${hex(expected)} of the log of step ${step}, got ${hex(found)}`);
    return log;
  }
}
