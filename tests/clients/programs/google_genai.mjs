// A tool loop of @google/genai, streamed; the program calls the function.
import { client } from "./documented.mjs";

const number = { type: "NUMBER" };
const parameters = { type: "OBJECT", properties: { a: number, b: number }, required: ["a", "b"] };
const tools = [{ functionDeclarations: [{ name: "add", description: "Adds two numbers.", parameters }] }];
const contents = [{ role: "user", parts: [{ text: "Add 1 and 2, 3 and 4, then both sums." }] }];
for (let calls = [null]; calls.length; ) {
  const parts = [];
  for await (const piece of await client.models.generateContentStream({ model: "auto", contents, config: { tools } })) {
    parts.push(...(piece.candidates[0].content.parts ?? []));
  }
  contents.push({ role: "model", parts });
  calls = parts.flatMap((part) => part.functionCall ?? []);
  const results = calls.map(({ id, name, args }) => ({
    functionResponse: { id, name, response: { result: String(args.a + args.b) } },
  }));
  contents.push({ role: "user", parts: results });
}
console.log(contents.at(-2).parts.map((part) => part.text ?? "").join(""));
