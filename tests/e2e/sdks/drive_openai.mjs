// Drives a running Weir through openai for JavaScript, and prints what came of it as JSON. Arguments: base URL, API key.
import OpenAI, { toFile } from "openai";
import { VERSION } from "openai/version";

const [baseURL, apiKey] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey, timeout: 120_000 });
const model = "smollm2";
const messages = [{ role: "user", content: "What is the capital of France?" }]; // no near tie among its best tokens
const ping = { type: "function", function: { name: "ping", description: "Pings." } };
const done = { version: VERSION };

const plain = await client.chat.completions.create({ model, messages, max_tokens: 12, temperature: 0 });
let streamed = "";
let usage = null;
for await (const chunk of await client.chat.completions.create({
  model, messages, max_tokens: 12, temperature: 0, stream: true, stream_options: { include_usage: true },
})) {
  streamed += chunk.choices[0]?.delta?.content ?? "";
  usage = chunk.usage ?? usage;
}
done.chat = {
  plain: plain.choices[0].message.content, streamed,
  plain_tokens: plain.usage.completion_tokens, streamed_tokens: usage.completion_tokens,
};

const helper = client.chat.completions.stream({ model, messages, temperature: 0, max_tokens: 300 });
const final = await helper.finalChatCompletion();
done.helper = { role: final.choices[0].message.role, finish: final.choices[0].finish_reason };

const forced = { model, messages, tools: [ping], tool_choice: "required", parallel_tool_calls: false, max_tokens: 100 };
const calls = await client.chat.completions.stream(forced).finalChatCompletion();
const call = calls.choices[0].message.tool_calls[0].function;
done.tools = [call.name, JSON.parse(call.arguments), calls.choices[0].finish_reason];

const first = await client.responses.create({ model, input: "Say hello.", max_output_tokens: 12, temperature: 0 });
const kinds = [];
const events = client.responses.stream({ model, input: "Say hello.", temperature: 0 });
for await (const event of events) kinds.push(event.type);
const response = await events.finalResponse();
done.responses = {
  text: typeof first.output_text, first_event: kinds[0], last_event: kinds.at(-1), status: response.status,
  kept: (await client.responses.retrieve(first.id)).output_text === first.output_text,
};

const vectors = await client.embeddings.create({ model: "all-MiniLM-L6-v2", input: ["one", "two"] });
done.embeddings = [vectors.data.length, vectors.data[0].embedding.length];

const line = { custom_id: "q", method: "POST", url: "/v1/chat/completions", body: { model, messages, max_tokens: 4 } };
const file = await client.files.create({
  file: await toFile(Buffer.from(JSON.stringify(line) + "\n"), "input.jsonl"), purpose: "batch",
});
let batch = await client.batches.create({
  input_file_id: file.id, endpoint: "/v1/chat/completions", completion_window: "24h",
});
for (let tries = 0; tries < 300 && !["completed", "failed"].includes(batch.status); tries++) {
  await new Promise((resolve) => setTimeout(resolve, 200));
  batch = await client.batches.retrieve(batch.id);
}
const answers = (await (await client.files.content(batch.output_file_id)).text()).trim().split("\n");
done.batch = { status: batch.status, ids: answers.map((answer) => JSON.parse(answer).custom_id) };

done.errors = {};
for (const [name, ask] of Object.entries({
  model: () => client.chat.completions.create({ model: "no-such", messages }),
  messages: () => client.chat.completions.create({ model, messages: [] }),
})) {
  try {
    await ask();
  } catch (error) {
    done.errors[name] = [error.constructor.name, error.status, error.code, Boolean(error.requestID)];
  }
}
console.log(JSON.stringify(done));
