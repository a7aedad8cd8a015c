// Judges custom resources by the schemas of their publishers: `node custom_resources.mjs FOLDER OBJECTS.json`.
// FOLDER has node_modules with @kubernetes-models/* and typescript. Two judges, since each sees what the other does not: the
// validators know patterns and ranges, the types know which fields there are. Prints a JSON list of what is wrong.
import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const [folder, file] = process.argv.slice(2);
const PACKAGES = {
  "gateway.networking.k8s.io": "gateway-api",
  "karpenter.sh": "karpenter",
  "keda.sh": "keda",
  "monitoring.coreos.com": "prometheus-operator",
};
const require = createRequire(pathToFileURL(join(folder, "package.json")));
const objects = JSON.parse(readFileSync(file, "utf8"));
const problems = [];
const typed = [];

for (const [at, object] of objects.entries()) {
  const [group, version] = object.apiVersion.split("/");
  const path = `@kubernetes-models/${PACKAGES[group]}/${group}/${version}/${object.kind}`;
  const name = `${object.kind}/${object.metadata.name}`;
  try {
    const models = await import(pathToFileURL(join(folder, "node_modules", `${path}.js`)));
    new models[object.kind](object).validate();
  } catch (error) {
    problems.push(`${name}: ${error.message}`);
  }
  typed.push(`import type { I${object.kind} as T${at} } from "${path}";`);
  typed.push(`export const o${at}: T${at} = ${JSON.stringify(object)};`);
}

const work = mkdtempSync(join(folder, "typed-"));
try {
  writeFileSync(join(work, "objects.ts"), typed.join("\n"));
  const options = ["--noEmit", "--strict", "--skipLibCheck", "--module", "nodenext", "--moduleResolution", "nodenext"];
  const compiler = require.resolve("typescript/bin/tsc");
  execFileSync(process.execPath, [compiler, ...options, join(work, "objects.ts")], { encoding: "utf8" });
} catch (error) {
  problems.push(...(error.stdout ?? String(error)).trim().split("\n"));
} finally {
  rmSync(work, { recursive: true });
}
console.log(JSON.stringify(problems));
