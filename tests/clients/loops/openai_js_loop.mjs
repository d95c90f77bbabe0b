import assert from "node:assert/strict";
import OpenAI from "openai";
import { zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";

const model = process.env.MODEL;
const client = new OpenAI({ maxRetries: 0 });
const ask = { model, messages: [{ role: "user", content: "Say hello." }], seed: 1, max_tokens: 24 };

const whole = await client.chat.completions.create(ask);
let text = "";
for await (const chunk of await client.chat.completions.create({ ...ask, stream: true })) {
  text += chunk.choices[0]?.delta.content ?? "";
}
assert.equal(text, whole.choices[0].message.content ?? "");
const { prompt_tokens, completion_tokens, total_tokens } = whole.usage;
assert.equal(prompt_tokens + completion_tokens, total_tokens);
console.log("stream");

const parameters = {
  type: "object",
  properties: { city: { type: "string", enum: ["Berlin", "Paris"] } },
  required: ["city"],
  additionalProperties: false,
};
const tools = [{ type: "function", function: { name: "weather", parameters } }];
const messages = [{ role: "user", content: "Weather in Paris?" }];
const answer = await client.chat.completions.create({
  model, messages, tools, tool_choice: "required", seed: 1, max_tokens: 300,
});
const [call] = answer.choices[0].message.tool_calls;
assert(["Berlin", "Paris"].includes(JSON.parse(call.function.arguments).city));
messages.push(answer.choices[0].message, { role: "tool", tool_call_id: call.id, content: "sunny" });
const after = await client.chat.completions.create({
  model, messages, tools, tool_choice: "none", max_tokens: 16,
});
assert(["stop", "length"].includes(after.choices[0].finish_reason));
console.log("tools");

const Person = z.object({ name: z.string(), is_adult: z.boolean() });
const parsed = await client.chat.completions.parse({
  ...ask, max_tokens: 300, response_format: zodResponseFormat(Person, "person"),
});
assert.equal(typeof parsed.choices[0].message.parsed.is_adult, "boolean");
console.log("structured");

const history = [
  { role: "user", content: "One?" },
  { role: "assistant", content: "1", reasoning_content: "The first number." },
  { role: "user", content: "Two?" },
];
const last = await client.chat.completions.create({ model, messages: history, max_tokens: 16 });
assert(!(last.choices[0].message.content ?? "").includes("<think>"));
console.log("history");
